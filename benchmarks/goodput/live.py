"""PDX and vllm-router's `cache_aware` in front of the same simulated engines, in real time.

Ten minutes of a trace pass four times as fast; the engines' times and the SLO are divided by four. So the comparison of
`make goodput` does not rest on the simulation alone. Both gateways serve the same requests, one after the other, load
by load; the table shows beside each what the simulation says of the same requests. All of it runs on this machine: use
one that is idle.
"""

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import aiohttp

from benchmarks.gateway import cache, processes
from benchmarks.gateway.commits import CHECKOUT
from benchmarks.gateway.gateways import Command, Engines, checkout_version, vllm_router
from benchmarks.goodput import report
from benchmarks.goodput.campaign import Plan, Runner, capacity
from benchmarks.goodput.engine import EngineModel
from benchmarks.goodput.measures import Outcome, Slo, outcome
from benchmarks.goodput.policies import DEFAULT, POLICIES
from benchmarks.goodput.realtime import prompt_of
from benchmarks.goodput.simulation import Layout, Record, Route, Simulation
from benchmarks.goodput.traces import Request, read
from benchmarks.soak.program import free_port
from pdx_api.names import Role
from pdx_sim.engine import SimEngine
from pdx_sim.profiles import PROFILES
from pdx_sim.settings import SimSettings

SPEED: Final = 4.0
"""How much faster than real time everything passes."""
SLO: Final = Slo(5.0, 0.05)
"""In the time of the trace."""
_PEER: Final = "vllm-router cache_aware"
_START_SECONDS: Final = 60.0
_WARM: Final = 32
"""Requests before those that count."""
_DROPPED: Final = 1e6
"""Seconds that count for the first token of a request that failed."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """What all runs have in common."""

    trace: Path
    seconds: float
    """Of the trace."""
    layout: Layout
    settings: SimSettings
    """Of the engines, in the time of the trace."""

    def requests(self, rate: float) -> list[tuple[float, Request]]:
        """The requests of a run and when they come, in the time of the trace."""
        return [(at, request) for at, request in read(self.trace).at_rate(rate) if at < self.seconds]

    @property
    def fast(self) -> SimSettings:
        """The engines' settings in real time."""
        own = self.settings
        return replace(
            own,
            step_seconds=own.step_seconds / SPEED,
            step_sequence_seconds=own.step_sequence_seconds / SPEED,
            step_token_seconds=own.step_token_seconds / SPEED,
            engine_gigabytes_per_second=own.engine_gigabytes_per_second * SPEED,
        )


def simulate(experiment: Experiment, policy: str, rate: float) -> Outcome:
    """What the simulation says of the same requests."""
    model = EngineModel.from_settings(experiment.settings)
    engines = experiment.layout.engines(model)
    router = POLICIES[policy].make(engines, model, random.Random(1))
    requests = [(at, replace(each, index=index)) for index, (at, each) in enumerate(experiment.requests(rate))]
    return outcome(Simulation(engines, router, model).run(requests), rate, SLO, 0.0)


async def measure(experiment: Experiment, policy: str, rate: float) -> Outcome:
    """The same in real time; times are given in the time of the trace."""
    async with AsyncExitStack() as stack:
        engines = await stack.enter_async_context(_engines(experiment))
        url = await stack.enter_async_context(_gateway(policy, engines))
        connector = aiohttp.TCPConnector(limit=0)
        session = await stack.enter_async_context(aiohttp.ClientSession(url, connector=connector))
        loop = asyncio.get_running_loop()
        began = loop.time()

        async def at_its_time(at: float, request: Request) -> Record:
            await asyncio.sleep(max(0.0, began + at / SPEED - loop.time()))
            return await _serve(session, request)

        records = await asyncio.gather(*(at_its_time(*each) for each in experiment.requests(rate)))
        hits = [engine.counts.prompt_tokens_found for engine in engines if engine.settings.role is Role.PREFILL]
        found = outcome(records, rate, SLO, 0.0)
        return replace(found, hit_share=sum(hits) / sum(record.request.prompt for record in records))


async def _serve(session: aiohttp.ClientSession, request: Request) -> Record:
    """One request; its first and its last token are events of the stream."""
    clock = asyncio.get_running_loop().time
    body = {"model": "sim", "prompt": prompt_of(request), "max_tokens": request.output, "ignore_eos": True}
    began = clock()
    record = Record(request, 0.0, route=Route(0))
    record.first = record.last = _DROPPED
    try:
        async with session.post("/v1/completions", json={**body, "stream": True}) as answer:
            answer.raise_for_status()
            async for line in answer.content:
                if line.startswith(b"data: {"):
                    record.last = (clock() - began) * SPEED
                    record.first = min(record.first, record.last)
    except aiohttp.ClientError:
        record.first = record.last = _DROPPED
    return record


@asynccontextmanager
async def _engines(experiment: Experiment) -> AsyncIterator[list[SimEngine]]:
    roles = [Role.PREFILL] * experiment.layout.prefill + [Role.DECODE] * experiment.layout.decode
    engines = [SimEngine(replace(experiment.fast, role=role)) for role in roles]
    async with AsyncExitStack() as stack:
        for engine in engines:
            await engine.start()
            stack.push_async_callback(engine.stop)
        yield engines


@asynccontextmanager
async def _gateway(policy: str, engines: Sequence[SimEngine]) -> AsyncIterator[str]:
    """A gateway as a process that serves; yields its URL."""
    port, cores = free_port(), ",".join(map(str, sorted(os.sched_getaffinity(0))))
    ports = (
        tuple(int(engine.url.rpartition(":")[2]) for engine in engines if engine.settings.role is role)
        for role in (Role.PREFILL, Role.DECODE)
    )
    start = vllm_router("cache_aware") if policy == _PEER else _pdx
    with tempfile.TemporaryDirectory() as folder:
        command = start(Engines(*ports), port, Path(folder))
        process = processes.start(command.line, cores, Path(folder) / "log", command.env, CHECKOUT)
        try:
            url = f"http://127.0.0.1:{port}"
            if not await _serves(url):
                raise RuntimeError(f"{policy} serves nothing: {(Path(folder) / 'log').read_text()[-500:]}")
            yield url
        finally:
            await asyncio.to_thread(processes.end, process)


async def _serves(url: str) -> bool:
    """Wait until every engine has served a request, so that pairs have exchanged their addresses."""
    loop = asyncio.get_running_loop()
    ends = loop.time() + _START_SECONDS
    async with aiohttp.ClientSession(url) as session:
        served = 0
        while served < _WARM and loop.time() < ends:
            body = {"model": "sim", "prompt": f"{served} is the first", "max_tokens": 2}
            try:
                async with session.post("/v1/completions", json=body) as answer:
                    await answer.read()
                    if answer.status == 200:
                        served += 1
                        continue
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.1)
    return served == _WARM


def _pdx(engines: Engines, port: int, _: Path) -> Command:
    """PDX as a user starts it."""
    line = [sys.executable, "-m", "pdx_cli", "gateway", "--listen", f"127.0.0.1:{port}"]
    line += ["--admin", f"127.0.0.1:{free_port()}"]
    for flag, ports in (("--prefill", engines.prefill), ("--decode", engines.decode)):
        line += [flag, *(f"http://127.0.0.1:{each}" for each in ports)]
    return Command(line, checkout_version(), {"PYTHONPATH": str(cache.compile_gateway(CHECKOUT))})


async def compare(experiment: Experiment, rates: Mapping[float, float], repeats: int) -> list[dict[str, object]]:
    """Every load, both gateways; of repeated runs, the one in the middle by its share."""
    found: list[dict[str, object]] = []
    for load, rate in rates.items():
        runs: dict[str, list[Outcome]] = {DEFAULT: [], _PEER: []}
        for _ in range(repeats):
            for policy, outcomes in runs.items():
                outcomes.append(await measure(experiment, policy, rate))
                sys.stderr.write(f"{load:g} {policy:24} {outcomes[-1].document()}\n")
        for policy, outcomes in runs.items():
            live = sorted(outcomes, key=lambda each: each.share)[len(outcomes) // 2]
            simulated = await asyncio.to_thread(simulate, experiment, policy, rate)
            found.append({"load": load, "policy": policy, "live": live.document(), "simulated": simulated.document()})
    return found


def table(results: Sequence[Mapping[str, object]]) -> str:
    """A row for each load and gateway, in Markdown."""
    head = ["load", "gateway", "within the SLO", "TTFT p50 / p99, s", "cached"]
    rows = [[*head, "simulated: within the SLO, TTFT, cached"]]
    for each in results:
        live, simulated = (Outcome.read(each[name]) for name in ("live", "simulated"))  # type: ignore[arg-type]
        rows.append([f"{each['load']:g}", str(each["policy"]), *_cells(live), ", ".join(_cells(simulated))])
    return report.markdown(rows)


def _cells(found: Outcome) -> tuple[str, str, str]:
    return f"{found.share:.1%}", f"{found.ttft_p50:.2f} / {found.ttft_p99:.1f}", f"{found.hit_share:.0%}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison and print its table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.goodput.live", description=__doc__)
    add = parser.add_argument
    add("--trace", type=Path, default=report.HERE / "traces" / "mooncake-conversation.csv.gz", metavar="FILE")
    add("--seconds", type=float, default=600.0, help="of the trace (default: %(default)s)")
    add("--loads", default="0.7,1,1.3", metavar="X,Y", help="of the capacity (default: %(default)s)")
    add("--prefill", type=int, default=4, metavar="N", help="prefill engines (default: %(default)s)")
    add("--decode", type=int, default=2, metavar="N", help="decode engines (default: %(default)s)")
    add("--repeats", type=int, default=1, metavar="N", help="runs of each (default: %(default)s)")
    add("--results", type=Path, metavar="FILE", help="write the numbers there, as JSON")
    options = parser.parse_args(arguments)
    settings = next(iter(PROFILES.values())).apply(SimSettings(enable_prefix_caching=True, shutdown_seconds=0.0))
    layout = Layout(options.prefill, options.decode)
    experiment = Experiment(options.trace, options.seconds, layout, settings)
    runner = Runner(Plan(EngineModel.from_settings(settings), SLO, 1), CHECKOUT / ".cache" / "goodput", 1, print)
    unit = capacity(runner, str(options.trace), layout)
    rates = {load: unit * load for load in map(float, options.loads.split(","))}
    results = asyncio.run(compare(experiment, rates, options.repeats))
    day = datetime.now(UTC).date().isoformat()
    sys.stdout.write(f"{day}, {layout}, load 1 is {unit:g} req/s\n\n{table(results)}\n")
    if options.results:
        options.results.write_text(json.dumps({"date": day, "capacity": unit, "runs": results}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
