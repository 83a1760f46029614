"""The measurements of `pdx bench`: one deployment, a file, or the arms of a comparison."""

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import uvloop

from pdx_api.spec.types import PDDeployment
from pdx_api.user_info import shown_url
from pdx_cli import interrupts
from pdx_cli.bench import compare, targets
from pdx_cli.bench.analysis.advise import advise
from pdx_cli.bench.arguments import check_new
from pdx_cli.bench.arms.cluster import ClusterArms
from pdx_cli.bench.arms.layouts import CHUNKS, devices_in_use
from pdx_cli.bench.arms.local import LocalArms
from pdx_cli.bench.live import observe_live
from pdx_cli.bench.loads import LoadOptions, slo_of, workload
from pdx_cli.bench.measure import Plan
from pdx_cli.bench.results.files import regenerate
from pdx_cli.bench.session import Request, Session, report
from pdx_cli.bench.targets import Target
from pdx_cli.errors import InputError
from pdx_cli.inputs.target import InCluster, Local
from pdx_cli.local.engines import EngineKind, default_limit
from pdx_cli.local.requirements import check_vllm
from pdx_cli.runs.run_record import default_root
from pdx_cli.sources.access import access_to


def run(args: argparse.Namespace, chosen: Local | InCluster | None, read: PDDeployment | None) -> int:
    """Measure, or write a report again. `chosen` is a deployment that runs, and `read` one of a file."""
    if args.report is not None:
        print(regenerate(args.report))
        return 0
    load, rates = workload(
        LoadOptions(args.isl, args.osl, args.trace, args.scale_tokens, args.scale_time, args.poisson, args.rate)
    )

    def plan(spec: Mapping[str, Any]) -> Plan:
        slo = slo_of(args.ttft, args.tpot, spec)
        return Plan(load, slo, args.duration, args.warm_up, args.repeats, args.seed, rates)

    if read is not None:
        return _interruptible(lambda: _run_file(args, read, plan), asyncio.new_event_loop)
    if args.advise:
        return _interruptible(lambda: _advise(args, chosen))
    if chosen is not None and (args.compare or args.clean):
        return _interruptible(lambda: _compare_in_cluster(args, chosen, plan))
    return _interruptible(lambda: _measure(args, chosen, plan))


def _interruptible(
    work: Callable[[], Coroutine[Any, Any, int]],
    loop: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop,
) -> int:
    """Do the work until it ends or a signal arrives. `loop`: uvloop's starts no process group, which arms here need."""
    ended = interrupts.run(work, loop)
    return 128 + ended if isinstance(ended, signal.Signals) else ended


MakePlan = Callable[[Mapping[str, Any]], Plan]


async def _measure(args: argparse.Namespace, chosen: Local | InCluster | None, plan: MakePlan) -> int:
    """One arm: the deployment as it is."""
    async with AsyncExitStack() as stack:
        entered = await _enter(args, chosen, stack)
        session = _session(args, entered.name, plan(entered.spec), 1)
        return await _finished(session, session.measure(entered))


async def _advise(args: argparse.Namespace, chosen: Local | InCluster | None) -> int:
    """An estimate from what live traffic does."""
    async with AsyncExitStack() as stack:
        entered = await _enter(args, chosen, stack)
        slo = slo_of(args.ttft, args.tpot, entered.spec)
        print(f"Reading the metrics of {entered.name} for {args.duration:g} s", file=sys.stderr, flush=True)
        for line in advise(await observe_live(entered, args.duration), slo):
            print(line)
    return 0


async def _run_file(args: argparse.Namespace, deployment: PDDeployment, plan: MakePlan) -> int:
    """The object of a file as local processes: as it is, or as the arms of a comparison."""
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


async def _compare_in_cluster(args: argparse.Namespace, chosen: Local | InCluster, plan: MakePlan) -> int:
    """Arms as objects of a cluster."""
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
    return compare.Choices(args.devices, args.chunks or CHUNKS, args.intervals, args.ratios, args.above)


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


async def _enter(args: argparse.Namespace, found: Local | InCluster | None, stack: AsyncExitStack) -> Target:
    if args.name and "://" in args.name:
        return await stack.enter_async_context(targets.by_url(args.name, args.admin))
    if args.admin and args.url:
        return await stack.enter_async_context(targets.by_url(args.url, args.admin))
    assert found is not None, "check refuses anything else"
    if isinstance(found, Local):
        if args.url:
            raise InputError(
                "--url is not used for a run of this machine; leave it out, or write the URL as NAME: "
                f"`pdx bench {shown_url(args.url)}`."
            )
        return await stack.enter_async_context(targets.on_this_machine(found, sends=not args.advise))
    return await stack.enter_async_context(targets.in_cluster(found, args.url))


def _request(args: argparse.Namespace) -> Request:
    key = os.environ.get("OPENAI_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return Request(args.model, args.chat, headers, args.start_rate)


def _slug(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name.partition("://")[2] or name).strip("-")
