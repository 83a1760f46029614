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

from pdx_api.spec.types import PDDeployment
from pdx_cli import interrupts
from pdx_cli.bench import arguments, compare, options, targets
from pdx_cli.bench.analysis.advise import advise
from pdx_cli.bench.arms.cluster import ClusterArms
from pdx_cli.bench.arms.layouts import CHUNKS, devices_in_use
from pdx_cli.bench.arms.local import LocalArms
from pdx_cli.bench.live import observe_live
from pdx_cli.bench.measure import Plan
from pdx_cli.bench.options import LoadOptions
from pdx_cli.bench.results.files import check_new, regenerate
from pdx_cli.bench.session import Request, Session, report
from pdx_cli.bench.targets import Target
from pdx_cli.errors import InputError
from pdx_cli.inputs import document, target
from pdx_cli.inputs.target import Local
from pdx_cli.local.layout import EngineKind
from pdx_cli.local.requirements import check_vllm, default_limit
from pdx_cli.runs.run_record import default_root
from pdx_cli.sources.access import access_to

NAMED: Final = "name a PDDeployment, a YAML file or a URL"
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
    arguments.add(parser)
    parser.epilog = target.epilog(parser, EPILOG)


def run(args: argparse.Namespace) -> int:
    """Measure, or write a report again."""
    arguments.check(args)
    if args.report is not None:
        print(regenerate(args.report))
        return 0
    load, rates = options.workload(
        LoadOptions(args.isl, args.osl, args.trace, args.scale_tokens, args.scale_time, args.poisson, args.rate)
    )

    def plan(spec: Mapping[str, Any]) -> Plan:
        slo = options.slo_of(args.ttft, args.tpot, spec)
        return Plan(load, slo, args.duration, args.warm_up, args.repeats, args.seed, rates)

    if args.name and arguments.is_file(args.name):
        return _interruptible(lambda: _run_file(args, plan), asyncio.new_event_loop)
    if args.advise:
        return _interruptible(lambda: _advise(args))
    if args.compare or args.clean:
        return _interruptible(lambda: _compare_in_cluster(args, plan))
    _confirm(args)
    return _interruptible(lambda: _measure(args, plan))


def _confirm(args: argparse.Namespace) -> None:
    """Ask before load is sent to a PDDeployment of a cluster, which may serve users; raises InputError."""
    is_url = "://" in (args.name or "") or (args.url and args.admin)
    if args.yes or is_url or isinstance(target.target_of(args, NAMED), Local):
        return
    load = f"The load goes to the gateway of {args.name or 'the PDDeployment'}, which may serve users"
    if not sys.stdin.isatty():
        raise InputError(f"{load}: add --yes, or use --advise, which sends none.")
    print(f"{load}. Send it? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise InputError("Nothing was sent; --advise estimates the result without load.")


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


async def _run_file(args: argparse.Namespace, plan: MakePlan) -> int:
    """The object of a file as local processes: as it is, or as the arms of a comparison."""
    deployment = document.load(Path(args.name), [], args.object)
    body = deployment.model_dump(mode="json", by_alias=True, exclude_unset=True)
    arms = LocalArms(args.run_dir or default_root(), EngineKind(args.engine), args.sim_flags)
    if args.clean:
        return _cleaned(deployment.metadata.name, _clean_local(arms, deployment))
    if arms.kind is EngineKind.VLLM:
        check_vllm(deployment.spec)
    found, devices = [targets.arm_of(deployment.spec)], devices_in_use(deployment.spec)
    if args.compare:
        found, devices = compare.planned_arms(deployment, _choices(args), None)
    compare.check_count(found, args.devices, default_limit(os.cpu_count()))
    _clean_local(arms, deployment)
    session = _session(args, deployment.metadata.name, plan(body["spec"]), len(found))
    session.devices = devices
    session.announce()
    return await _finished(session, compare.measure_all(session, found, compare.local_running(arms, body)))


def _clean_local(arms: LocalArms, deployment: PDDeployment) -> list[str]:
    removed = compare.clean_local(arms, deployment.metadata.name)
    for name in removed:
        report(f"Removed {name}, which an earlier run left.")
    return removed


async def _compare_in_cluster(args: argparse.Namespace, plan: MakePlan) -> int:
    """Arms as objects of a cluster."""
    chosen = target.target_of(args, NAMED)
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
        session.announce()
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
    return Session(name, plan, _request(args), output, arms)


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
    found = target.target_of(args, NAMED)
    if isinstance(found, Local):
        if args.url:
            raise InputError(
                "--url is not used for a run of this machine; leave it out, or write the URL as NAME: "
                f"`pdx bench {args.url}`."
            )
        return await stack.enter_async_context(targets.on_this_machine(found, sends=not args.advise))
    return await stack.enter_async_context(targets.in_cluster(found, args.url))


def _request(args: argparse.Namespace) -> Request:
    key = os.environ.get("OPENAI_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return Request(args.model, args.chat, headers, args.start_rate)


def _slug(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name.partition("://")[2] or name).strip("-")
