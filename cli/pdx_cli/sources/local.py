"""Looking at what runs on this machine: a `pdx up`, or any gateway whose admin port is named."""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from pdx_api.names import Mode, Role
from pdx_cli.errors import CommandError
from pdx_cli.local import reaper
from pdx_cli.local.logs import tail
from pdx_cli.local.run_record import Process, Run, directories
from pdx_cli.sources.answers import CANARY_PATH, model_of, parsed, tokens_of, version_of
from pdx_cli.sources.client import AnswerError, Client
from pdx_cli.sources.picture import Body, Engine, Gateway, Picture

LOG_LINES: Final = 400
LATE: Final = timedelta(minutes=10)
"""How far back logs are believed: lines of vLLM carry their time."""
_STAMP: Final = re.compile(r"\b(?:INFO|WARNING|ERROR|DEBUG) (\d\d-\d\d \d\d:\d\d:\d\d)\b")
_STATE_SECONDS: Final = 3.0


@dataclass(frozen=True, slots=True)
class Local:
    """A gateway on this machine, with the run that it is of, if one is known."""

    name: str
    admin: str
    """Base URL of its admin port."""
    run: Run | None = None

    async def state(self, client: Client) -> Body:
        """Its /pdx/state; raises AnswerError."""
        found: Body = await client.json(f"{self.admin}/pdx/state", seconds=_STATE_SECONDS)
        return found

    @property
    def names(self) -> Mapping[str, str]:
        """HOST:PORT of an engine -> what its process is called."""
        return {p.url.rstrip("/").rpartition("/")[2]: p.name for p in self.run.processes} if self.run else {}

    async def picture(self, client: Client, now: Callable[[], datetime]) -> Picture:
        """Everything; a gateway without a run that does not answer is a CommandError with code 2."""
        state, trouble = None, ""
        try:
            state = await self.state(client)
        except AnswerError as error:
            if self.run is None:
                raise CommandError(f"The gateway cannot be asked: {error}.", code=2) from error
            trouble = str(error)
        processes = {process.url.rstrip("/"): process for process in self.run.processes} if self.run else {}
        known = {_url(e): e for e in (state or {}).get("endpoints") or ()}
        urls = {**{url: None for url, p in processes.items() if p.name != "gateway"}, **known}
        engines = await asyncio.gather(*(_engine(client, url, e, processes.get(url), now()) for url, e in urls.items()))
        page = await _text(client, f"{self.admin}{CANARY_PATH}")
        for address, name in self.names.items():
            page = page.replace(address.encode(), name.encode())
        canary = parsed(page) or None
        dead = tuple(p.name for p in processes.values() if not reaper.has_members(p.pid))
        mode = (state or {}).get("mode") or (self.run.mode if self.run else None)
        return Picture(
            name=self.name,
            now=now(),
            mode=Mode(mode) if mode else None,
            gateways=(Gateway("gateway", _named(state, processes), trouble, canary),) if "gateway" not in dead else (),
            engines=tuple(engine for engine in engines if engine is not None and engine.name not in dead),
            dead=dead,
        )


def living(root: Path) -> list[Run]:
    """The runs of this user on this machine."""
    return [run for directory in directories(root) if (run := directory.living()) is not None]


def local_of(runs: Sequence[Run], name: str | None) -> Local | None:
    """The run of that name, or the only one; None when there is none."""
    found = [run for run in runs if name in (None, run.name)]
    if not found:
        return None
    if len(found) > 1:
        raise CommandError(f"Several run here: name one of {', '.join(run.name for run in found)}.", code=2)
    return Local(found[0].name, found[0].admin, found[0])


async def _engine(
    client: Client, url: str, endpoint: Body | None, process: Process | None, now: datetime
) -> Engine | None:
    role = _role(endpoint, process)
    if role is None:
        return None
    name = process.name if process else str((endpoint or {}).get("name") or url)
    args = _vllm_args(process.pid) if process else ()
    log = _late(tail(Path(process.log), LOG_LINES), now) if process else ""
    engine = Engine(name, role, str((endpoint or {}).get("revision") or ""), args, log=log)
    try:
        await client.text(f"{url}/health", seconds=_STATE_SECONDS)
    except AnswerError as error:
        return replace(engine, trouble=str(error))
    version, models, metrics = await asyncio.gather(
        *(_text(client, f"{url}{path}") for path in ("/version", "/v1/models", "/metrics"))
    )
    return replace(engine, version=version_of(version), model=model_of(models), tokens=tokens_of(metrics))


async def _text(client: Client, url: str) -> bytes:
    try:
        return (await client.text(url, seconds=_STATE_SECONDS)).encode()
    except AnswerError:
        return b""


def _role(endpoint: Body | None, process: Process | None) -> Role | None:
    if endpoint is not None:
        return Role(endpoint["role"])
    word = process.name.rpartition("-")[0] if process else ""
    return Role(word) if word in list(Role) else None


def _vllm_args(pid: int) -> tuple[str, ...]:
    """What follows `vllm` on a process's command line; nothing for a simulated engine."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    except OSError:
        return ()
    place = next((i for i, word in enumerate(words[:3]) if Path(word).name == "vllm"), None)
    return tuple(words[place + 1 :]) if place is not None else ()


def _late(lines: Sequence[str], now: datetime) -> str:
    """Lines from the first that was logged not long ago; without times, all."""
    earliest = (now - LATE).astimezone()
    for number, line in enumerate(lines):
        found = _STAMP.search(line)
        if found is None:
            continue
        said = datetime.strptime(f"{earliest.year}-{found[1]}", "%Y-%m-%d %H:%M:%S").astimezone()
        if said >= earliest:
            return "\n".join(lines[number:])
    stamped = any(_STAMP.search(line) for line in lines)
    return "" if stamped else "\n".join(lines)


def _named(state: Body | None, processes: Mapping[str, Process]) -> Body | None:
    """The state with endpoints called as their processes are, which is what `pdx status` shows."""
    if state is None:
        return None
    names = {url: process.name for url, process in processes.items()}
    endpoints = [{**e, "pod": names.get(_url(e), e.get("pod"))} for e in state.get("endpoints") or ()]
    return {**state, "endpoints": endpoints}


def _url(endpoint: Body) -> str:
    return str(endpoint["url"]).rstrip("/")
