"""Observes what runs on this machine: a `pdx up`, or a gateway whose admin port the user names."""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from pdx_api.names import Mode, Role
from pdx_api.verification import PAIRS_PATH
from pdx_cli.inputs.target import Local
from pdx_cli.runs import reaper
from pdx_cli.runs.logs import tail
from pdx_cli.runs.run_record import Process, Run
from pdx_cli.sources.answers import ENGINE_PATHS, engine_fields, parsed
from pdx_cli.sources.client import AnswerError, Client, is_down, unreadable_gateway
from pdx_cli.sources.observation import Body, EndedProcess, Engine, Gateway, Observation, Starting

LOG_LINES: Final = 400
RECENT: Final = timedelta(minutes=10)
"""Older log lines are ignored; vLLM's lines carry their time."""
_STAMP: Final = re.compile(r"\b(?:INFO|WARNING|ERROR|DEBUG) (\d\d-\d\d \d\d:\d\d:\d\d)\b")
_QUERY_SECONDS: Final = 3.0


async def observe(local: Local, client: Client, now: Callable[[], datetime]) -> Observation:
    """Read everything; raises CommandError with code 2 if `local` names no run, and something else than a gateway."""
    state, problem = None, ""
    try:
        state = await client.state(local.admin, seconds=_QUERY_SECONDS)
    except AnswerError as error:
        if local.run is None and not is_down(error):
            raise unreadable_gateway(local.admin, error) from error
        problem = str(error)
    processes = {process.url.rstrip("/"): process for process in local.run.processes} if local.run else {}
    endpoints = {_url(e): e for e in (state or {}).get("endpoints") or ()}
    urls = {**{url: None for url, p in processes.items() if p.name != "gateway"}, **endpoints}
    engines = await asyncio.gather(*(_engine(client, url, e, processes.get(url), now()) for url, e in urls.items()))
    verification = await _verification(local, client)
    ended = [process for process in processes.values() if not reaper.has_members(process.pid)]
    dead = {process.name for process in ended}
    gateway = await _gateway(local, client, _with_process_names(state, processes), problem, verification)
    found = tuple(engine for engine in engines if engine is not None and engine.name not in dead)
    mode = (state or {}).get("mode") or (local.run.mode if local.run else None)
    return Observation(
        name=local.name,
        now=now(),
        mode=Mode(mode) if mode else None,
        gateways=(gateway,) if "gateway" not in dead else (),
        engines=found,
        dead=tuple(EndedProcess(p.name, _log(p, now()), p.log) for p in ended),
        starting=_starting(local.run, found, now()),
    )


def _starting(run: Run | None, engines: Sequence[Engine], now: datetime) -> Starting | None:
    if run is None or run.serving:
        return None
    healthy = sum(not engine.problem for engine in engines)
    return Starting(max(0, int(now.timestamp() - run.started)), healthy, max(run.engines, len(engines)))


async def _gateway(
    local: Local, client: Client, state: Body | None, problem: str, verification: Body | None
) -> Gateway:
    process = next((p for p in local.run.processes if p.name == "gateway"), None) if local.run else None
    metrics = (await _text(client, f"{local.admin}/metrics")).decode(errors="replace")
    log = "\n".join(tail(Path(process.log), LOG_LINES)) if process else ""
    return Gateway("gateway", state, problem, verification, log, process.log if process else "", metrics)


async def _verification(local: Local, client: Client) -> Body | None:
    """Return the gateway's /pdx/verification with the names of processes instead of addresses."""
    page = await _text(client, f"{local.admin}{PAIRS_PATH}")
    for address, name in local.names.items():
        page = page.replace(address.encode(), name.encode())
    return parsed(page) or None


async def _engine(
    client: Client, url: str, endpoint: Body | None, process: Process | None, now: datetime
) -> Engine | None:
    role = _role(endpoint, process)
    if role is None:
        return None
    name = process.name if process else str((endpoint or {}).get("name") or url)
    args = _vllm_args(process.pid) if process else ()
    log, source = (_log(process, now), process.log) if process else ("", "")
    revision = str((endpoint or {}).get("revision") or "")
    engine = Engine(name, role, revision, args, log=log, log_source=source)
    try:
        await client.text(f"{url}/health", seconds=_QUERY_SECONDS)
    except AnswerError as error:
        return replace(engine, problem=str(error))
    pages = await asyncio.gather(*(_text(client, f"{url}{path}") for path in ENGINE_PATHS))
    return replace(engine, **engine_fields(*pages))


def _log(process: Process, now: datetime) -> str:
    return _recent(tail(Path(process.log), LOG_LINES), now)


async def _text(client: Client, url: str) -> bytes:
    try:
        return (await client.text(url, seconds=_QUERY_SECONDS)).encode()
    except AnswerError:
        return b""


def _role(endpoint: Body | None, process: Process | None) -> Role | None:
    if endpoint is not None:
        return Role(endpoint["role"])
    name = process.name.rpartition("-")[0] if process else ""
    return Role(name) if name in list(Role) else None


def _vllm_args(pid: int) -> tuple[str, ...]:
    """Return what follows `vllm` on a process's command line; empty for a simulated engine."""
    try:
        argv = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    except OSError:
        return ()
    index = next((i for i, arg in enumerate(argv[:3]) if Path(arg).name == "vllm"), None)
    return tuple(argv[index + 1 :]) if index is not None else ()


def _recent(lines: Sequence[str], now: datetime) -> str:
    """Return the lines from the first one that is recent; all lines if none carries a time."""
    earliest = (now - RECENT).astimezone()
    for number, line in enumerate(lines):
        found = _STAMP.search(line)
        if found is None:
            continue
        logged = datetime.strptime(f"{earliest.year}-{found[1]}", "%Y-%m-%d %H:%M:%S").astimezone()
        if logged >= earliest:
            return "\n".join(lines[number:])
    stamped = any(_STAMP.search(line) for line in lines)
    return "" if stamped else "\n".join(lines)


def _with_process_names(state: Body | None, processes: Mapping[str, Process]) -> Body | None:
    """Return the state with each endpoint named after its process, as in `pdx status`."""
    if state is None:
        return None
    names = {url: process.name for url, process in processes.items()}
    endpoints = [{**e, "pod": names.get(_url(e), e.get("pod"))} for e in state.get("endpoints") or ()]
    return {**state, "endpoints": endpoints}


def _url(endpoint: Body) -> str:
    return str(endpoint["url"]).rstrip("/")
