"""`pdx bench`: measures the goodput of a deployment, compares it with the alternatives, and explains the result."""

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import uvloop

from pdx_cli import interrupts, usage
from pdx_cli.bench import compare, options, targets
from pdx_cli.bench.analysis.advise import advise
from pdx_cli.bench.arms.cluster import ClusterArms
from pdx_cli.bench.arms.layouts import CHUNKS, devices_in_use
from pdx_cli.bench.arms.local import LocalArms
from pdx_cli.bench.live import observe_live
from pdx_cli.bench.measure import Plan
from pdx_cli.bench.options import LoadOptions, duration
from pdx_cli.bench.results.files import check_new, regenerate
from pdx_cli.bench.session import Request, Session, report
from pdx_cli.bench.targets import Target
from pdx_cli.errors import InputError
from pdx_cli.inputs import document, target
from pdx_cli.inputs.target import Local
from pdx_cli.local.layout import EngineKind
from pdx_cli.local.requirements import check_vllm
from pdx_cli.runs.run_record import default_root
from pdx_cli.sources.access import access_to

EPILOG: Final = """\
examples:
  pdx bench                                      what `pdx up` runs here
  pdx bench qwen -n llm --isl 4000 --osl 300 --ttft 1s --tpot 30ms
  pdx bench qwen -n llm --trace day.csv.gz --scale-tokens 1/4
  pdx bench http://127.0.0.1:8000 --rate 2,4,8   TTFT and TPOT of any OpenAI-compatible server
  pdx bench examples/tiny-cpu.yaml --engine sim --compare
                                                 both modes as local processes, on simulated engines
  pdx bench qwen -n llm --compare --devices 4 --ratios 1:3,2:2
  pdx bench qwen -n llm --advise                 an estimate from live traffic, without load
  pdx bench qwen -n llm --clean                  remove what a killed comparison left
  pdx bench --report bench-qwen                  write the report of a saved run again

A request is good if it ends without an error within --ttft and --tpot. Goodput is the highest rate at which 90 % are.
The load is open-loop: each request is sent when it is due, whether or not earlier ones have ended. Requests of the
warm-up of each step do not count. OPENAI_API_KEY, if set, is sent as the API key.
The results are in --output: result.json, requests.jsonl, report.html, and files with the keys of `vllm bench serve` and
of inference-perf. docs/should-i-split.md explains them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `pdx bench`."""
    target.add_arguments(parser)
    _positional(parser).type = None  # a file is a target here
    _positional(parser).help = (
        "name of the PDDeployment, a YAML file to run on this machine, or the URL of any OpenAI-compatible server "
        "(default: the only PDDeployment)"
    )
    parser.add_argument(
        "--url",
        metavar="URL",
        type=usage.text("write http://HOST:PORT"),
        help="send requests to this URL instead of the gateway's Service",
    )
    parser.add_argument(
        "--advise", action="store_true", help="send no load: estimate the result from live metrics of --duration"
    )
    parser.add_argument(
        "--report", type=usage.file, metavar="FILE", help="write only the report of a saved result again"
    )
    _add_load(parser.add_argument_group("load"))
    _add_comparison(parser.add_argument_group("comparison"))
    _add_measurement(parser.add_argument_group("measurement"))
    parser.epilog = target.epilog(parser, EPILOG)


def _positional(parser: argparse.ArgumentParser) -> argparse.Action:
    return next(action for action in parser._actions if not action.option_strings)


def _add_load(group: Any) -> None:
    tokens = options.count(1, 10_000_000)
    group.add_argument("--isl", type=tokens, metavar="TOKENS", help="tokens of each prompt (default: 1000)")
    group.add_argument("--osl", type=tokens, metavar="TOKENS", help="tokens of each answer (default: 200)")
    group.add_argument(
        "--trace",
        type=usage.file,
        metavar="FILE",
        help="CSV with arrival_ms, input_tokens, output_tokens, prefix_blocks",
    )
    group.add_argument(
        "--scale-tokens",
        type=options.factor,
        default=1.0,
        metavar="FACTOR",
        help="multiplies the trace's tokens, such as 1/32",
    )
    group.add_argument(
        "--scale-time", type=options.factor, metavar="FACTOR", help="multiplies the trace's speed; replaces the search"
    )
    group.add_argument("--poisson", action="store_true", help="use random arrival times instead of the trace's")
    group.add_argument(
        "--rate", type=options.rates, default=(), metavar="RATES", help="requests per second; replaces the search"
    )
    group.add_argument("--start-rate", type=options.factor, metavar="RATE", help="rate at which the search begins")
    group.add_argument("--model", metavar="NAME", help="model to request (default: the one that is served)")
    group.add_argument("--chat", action="store_true", help="use /v1/chat/completions")


def _add_comparison(group: Any) -> None:
    group.add_argument(
        "--compare",
        action="store_true",
        help="measure aggregated engines with several chunk sizes, and split engines at several ratios, one arm "
        "after the other, each under its own name",
    )
    group.add_argument("--clean", action="store_true", help="remove what a killed comparison left, and end")
    group.add_argument(
        "--devices",
        type=options.count(2, 4096),
        metavar="N",
        help="devices of each arm (default: as many as the object)",
    )
    group.add_argument(
        "--chunks",
        type=options.chunks,
        default=(),
        metavar="TOKENS",
        help="chunk sizes of the aggregated arms (default: 512,2048)",
    )
    group.add_argument(
        "--ratios",
        type=options.ratios,
        default=(),
        metavar="P:D",
        help="ratios of the split arms, such as 1:3,2:2 (default: by the devices)",
    )
    group.add_argument(
        "--above",
        type=options.count(1, 10_000_000),
        default=0,
        metavar="TOKENS",
        help="also measure an arm that splits only prompts of more than so many tokens",
    )
    group.add_argument(
        "--engine",
        choices=[str(kind) for kind in EngineKind],
        default=str(EngineKind.VLLM),
        help="engines of FILE: real vLLM or simulated (default: %(default)s)",
    )
    group.add_argument(
        "--sim-flags",
        type=options.flags,
        default=(),
        metavar="FLAGS",
        help="further flags of simulated engines, in quotes",
    )


def _add_measurement(group: Any) -> None:
    group.add_argument(
        "--ttft", type=duration, metavar="TIME", help="longest time to first token (default: spec.slo, 1s)"
    )
    group.add_argument(
        "--tpot", type=duration, metavar="TIME", help="longest time per output token (default: spec.slo, 50ms)"
    )
    group.add_argument(
        "--duration",
        type=duration,
        default=60.0,
        metavar="TIME",
        help="duration of a step, without its warm-up (default: 60s)",
    )
    group.add_argument(
        "--warm-up",
        type=duration,
        default=10.0,
        metavar="TIME",
        help="warm-up of each step, which is not counted (default: 10s)",
    )
    group.add_argument(
        "--repeats",
        type=options.count(1, 100),
        default=3,
        metavar="N",
        help="number of searches; the report shows their spread (default: 3)",
    )
    group.add_argument(
        "--seed", type=options.count(0, 2**31), default=0, metavar="N", help="seed of the load (default: 0)"
    )
    group.add_argument(
        "--output", type=usage.directory, metavar="DIR", help="directory of the results (default: bench-NAME-TIME)"
    )


def run(args: argparse.Namespace) -> int:
    """Measure, or write a report again."""
    _check(args)
    if args.report is not None:
        print(regenerate(args.report))
        return 0
    load, rates = options.workload(
        LoadOptions(args.isl, args.osl, args.trace, args.scale_tokens, args.scale_time, args.poisson, args.rate)
    )

    def plan(spec: Mapping[str, Any]) -> Plan:
        slo = options.slo_of(args.ttft, args.tpot, spec)
        return Plan(load, slo, args.duration, args.warm_up, args.repeats, args.seed, rates)

    if args.name and is_file(args.name):
        return _interruptible(lambda: _run_file(args, plan), asyncio.new_event_loop)
    if args.advise:
        return _interruptible(lambda: _advise(args))
    if args.compare or args.clean:
        return _interruptible(lambda: _compare_in_cluster(args, plan))
    return _interruptible(lambda: _measure(args, plan))


def _check(args: argparse.Namespace) -> None:
    """Refuse flags that have no meaning together, and would be ignored."""
    name = args.name or ""
    is_url, of_file = "://" in name, is_file(name) if name else False
    if args.report is not None and name:
        raise InputError(f"--report writes the page of a saved run; leave out {name}.")
    if is_url and (args.compare or args.clean):
        raise InputError("A URL has no object whose modes can be compared; name a PDDeployment, or a YAML file.")
    if not is_url and not of_file and ":" in name:
        raise InputError(f"{name} is not the name of a PDDeployment; for a server, write http://{name}.")
    if not is_url and not of_file and "/" in name:
        raise InputError(f"There is no file {name}; name a YAML file, a PDDeployment, or a URL with http://.")
    if not args.compare and (given := [f"--{each}" for each in _COMPARED if getattr(args, each)]):
        raise InputError(f"{given[0]} is for a comparison; add --compare, or leave it out.")
    if not of_file and (args.sim_flags or args.engine == EngineKind.SIM):
        raise InputError("--engine and --sim-flags are for a YAML file that runs on this machine; name one.")
    if of_file and (given := [f"--{each}" for each in _ELSEWHERE if getattr(args, each)]):
        raise InputError(f"FILE runs engines of its own on this machine; leave out {given[0]}.")


_COMPARED: Final = ("devices", "chunks", "ratios", "above")
_ELSEWHERE: Final = ("url", "admin", "advise", "namespace", "kubeconfig", "context", "local")


class Stop:
    """The first signal cancels the measurement."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None

    def on_signal(self, number: signal.Signals) -> None:
        """Handle a signal in the main thread."""
        self.received = self.received or number
        if self._loop is not None and self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)

    def attach(self) -> None:
        """Signals cancel the current task from here on; one may have arrived before."""
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        if self.received is not None and self._task is not None:
            self._task.cancel()


def _interruptible(
    work: Callable[[], Awaitable[int]], loop: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
) -> int:
    """Do the work until it ends or a signal arrives. `loop`: uvloop's starts no process group, which arms here need."""
    stop = Stop()

    async def main() -> int:
        stop.attach()
        try:
            return await work()
        except asyncio.CancelledError:
            if stop.received is None:
                raise
            return 128 + stop.received

    with interrupts.handled(stop.on_signal), asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(main())


MakePlan = Callable[[Mapping[str, Any]], Plan]


async def _measure(args: argparse.Namespace, plan: MakePlan) -> int:
    """One arm: the deployment as it is."""
    async with AsyncExitStack() as stack:
        chosen = await _enter(args, stack)
        session = _session(args, chosen.name, plan(chosen.spec), 1)
        return await _finished(session, session.measure(chosen))


async def _advise(args: argparse.Namespace) -> int:
    """An estimate from what live traffic does."""
    async with AsyncExitStack() as stack:
        chosen = await _enter(args, stack)
        slo = options.slo_of(args.ttft, args.tpot, chosen.spec)
        print(f"Reading the metrics of {chosen.name} for {args.duration:g} s", file=sys.stderr, flush=True)
        for line in advise(await observe_live(chosen, args.duration), slo):
            print(line)
    return 0


def is_file(name: str) -> bool:
    """Whether the argument names a YAML file, and not a PDDeployment or a URL."""
    return name == "-" or ("://" not in name and (name.endswith((".yaml", ".yml")) or Path(name).is_file()))


async def _run_file(args: argparse.Namespace, plan: MakePlan) -> int:
    """The object of a file as local processes: as it is, or as the arms of a comparison."""
    deployment = document.load(Path(args.name), [])
    body = deployment.model_dump(mode="json", by_alias=True, exclude_unset=True)
    arms = LocalArms(args.run_dir or default_root(), EngineKind(args.engine), args.sim_flags)
    if arms.kind is EngineKind.VLLM and not args.clean:
        check_vllm(deployment.spec)
    removed = compare.clean_local(arms, deployment.metadata.name)
    for name in removed:
        report(f"Removed {name}, which an earlier run left.")
    if args.clean:
        return _cleaned(deployment.metadata.name, removed)
    found, devices = [targets.arm_of(deployment.spec)], devices_in_use(deployment.spec)
    if args.compare:
        found, devices = compare.planned_arms(deployment, _choices(args), None)
    session = _session(args, deployment.metadata.name, plan(body["spec"]), len(found))
    session.devices = devices
    return await _finished(session, compare.measure_all(session, found, compare.local_running(arms, body)))


async def _compare_in_cluster(args: argparse.Namespace, plan: MakePlan) -> int:
    """Arms as objects of a cluster."""
    chosen = target.target_of(args)
    if isinstance(chosen, Local):
        if args.clean:
            raise InputError("--clean needs the file that was compared on this machine: pdx bench FILE --clean.")
        raise InputError("A running `pdx up` has no free devices; compare its file: pdx bench FILE --compare.")
    async with access_to(chosen) as access:
        body = await access.object()
        arms = ClusterArms(access, body, args.url, report=report)
        removed = await compare.clean_cluster(arms, everything=args.clean)
        if args.clean:
            return _cleaned(access.name, removed)
        deployment = targets.deployment_of(body)
        free = await arms.free(deployment.spec)
        found, devices = compare.planned_arms(deployment, _choices(args), free)
        session = _session(args, access.name, plan(body["spec"]), len(found))
        session.devices = devices
        return await _finished(session, compare.measure_all(session, found, arms.running))


def _cleaned(name: str, removed: Sequence[str]) -> int:
    if not removed:
        report(f"No comparison of {name} has left anything.")
    return 0


def _choices(args: argparse.Namespace) -> compare.Choices:
    return compare.Choices(args.devices, args.chunks or CHUNKS, args.ratios, args.above)


def _session(args: argparse.Namespace, name: str, plan: Plan, arms: int) -> Session:
    output = args.output or Path(f"bench-{_slug(name)}-{time.strftime('%Y%m%d-%H%M%S')}")
    check_new(output)
    session = Session(name, plan, _request(args), output, arms)
    session.announce()
    return session


async def _finished(session: Session, work: Awaitable[object]) -> int:
    """Do the work; print and write the results, also of a run that ends early."""
    interrupted = True
    try:
        await work
        interrupted = False
    except asyncio.CancelledError:
        if not session.has_results:
            report("Interrupted before a step has ended: there are no results.")
        raise
    finally:
        found = session.finish(interrupted=interrupted)
    return 0 if found is not None and all(each.is_valid for each in found.results) else 1


async def _enter(args: argparse.Namespace, stack: AsyncExitStack) -> Target:
    if args.name and "://" in args.name:
        if args.url:
            raise InputError("--url and a URL as NAME are the same; write only one of them.")
        return await stack.enter_async_context(targets.by_url(args.name, args.admin))
    if args.admin and args.url:
        return await stack.enter_async_context(targets.by_url(args.url, args.admin))
    found = target.target_of(args)
    if isinstance(found, Local):
        return await stack.enter_async_context(targets.on_this_machine(found, args.url))
    return await stack.enter_async_context(targets.in_cluster(found, args.url))


def _request(args: argparse.Namespace) -> Request:
    key = os.environ.get("OPENAI_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return Request(args.model, args.chat, headers, args.start_rate)


def _slug(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name.partition("://")[2] or name).strip("-")
