"""A thousand slow peers of each kind, alone and all together, and what they cost all other clients.

Kinds: connections that declare 64 MiB and send 16 KiB a second; request heads without a body; connections that read
nothing of a long answer. Engines have room for all of them.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import quantiles
from typing import Any, Final

from benchmarks.soak.campaign import check_log, come_to_idle, warm
from benchmarks.soak.clients import ClientRequest, Saw, connect, drop
from benchmarks.soak.engines import BASE, Engines
from benchmarks.soak.program import GatewayProcess
from benchmarks.soak.traffic import Traffic, within
from pdx_api.names import Order, Role
from pdx_proxy.config.settings import Address, Limits, Settings, Verification

_MIB: Final = 1 << 20
_HEAD: Final = (
    "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {size}\r\n\r\n"
)
_PIECE: Final = b" " * (16 << 10)
_SMALL: Final = 4096
_LONG: Final = 4000
"""Tokens of an answer that nobody reads: more than the buffers of both sides hold."""
_SIM: Final = replace(
    BASE,
    jitter=0.0,
    prefill_base_seconds=0.005,
    prefill_token_seconds=0.0,
    prefill_slots=4096,
    max_running=4096,
    decode_token_seconds=0.005,
    max_model_len=8192,
    num_blocks=1 << 20,
    lease_seconds=30.0,
    decoder_ttl_seconds=480.0,
    side_channel_timeout=5.0,
)
_ROOM: Final = Limits(in_flight_per_decode=4096, in_flight_per_prefill=4096)
_MAY_GROW: Final = 1.5


@dataclass(frozen=True, slots=True)
class Plan:
    """One run. All times are in seconds."""

    peers: int = 1000
    phase: float = 60.0
    rate: float = 20.0
    """Requests per second of the other clients."""
    may_add: float = 0.005
    """The p99 of all others stays within `_MAY_GROW` times, or this more."""
    order: Order = Order.PREFILL_FIRST
    seed: int = 1


@dataclass
class Report:
    """What the run showed."""

    plan: Plan
    late: dict[str, float] = field(default_factory=dict)
    """Kind of the slow peers -> p99 of the durations of all other requests, in seconds."""
    state: dict[str, Any] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def expect(self, holds: bool, text: str) -> None:
        """Keep a failure."""
        if not holds:
            self.failures.append(text)

    def line(self) -> dict[str, Any]:
        """For the results."""
        return {"peers": self.plan.peers, "seconds": self.plan.phase, "late": self.late}


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Peer = Callable[[Address, int], Awaitable[Connection]]


async def slow_sender(where: Address, number: int) -> Connection:
    """Declares 64 MiB. Its pieces are sent by `_send_on`."""
    reader, writer = await connect(where)
    writer.write(_HEAD.format(size=64 * _MIB).encode())
    return reader, writer


async def head_only(where: Address, number: int) -> Connection:
    """Sends a head and nothing else."""
    reader, writer = await connect(where)
    writer.write(_HEAD.format(size=1000).encode())
    return reader, writer


async def reads_nothing(where: Address, number: int) -> Connection:
    """Requests a long stream and reads nothing of it."""
    reader, writer = await connect(where, buffer=_SMALL)
    reader._transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(ClientRequest(number, chat=False, stream=True, prompt=f"request {number}", tokens=_LONG).wire())
    return reader, writer


KINDS: Final[Mapping[str, tuple[Peer, ...]]] = {
    "none": (),
    "declare 64 MiB, send 16 KiB/s": (slow_sender,),
    "head without a body": (head_only,),
    "read nothing": (reads_nothing,),
    "all together": (slow_sender, head_only, reads_nothing),
    "none, afterwards": (),
}


async def run(plan: Plan, log: Path) -> Report:
    """Run every kind; the report's `failures` list what did not hold."""
    report = Report(plan)
    engines = Engines(plan.order, random.Random(plan.seed), sim=_SIM)
    settings = Settings(limits=_ROOM, verification=Verification(period_seconds=0))
    try:
        async with GatewayProcess(settings, log) as gateway:
            engines.on_change = gateway.set_engines
            for role in (Role.PREFILL, Role.DECODE):
                for _ in range(2):
                    await engines.add(role)
            await warm(gateway, engines)
            for kind, peers in KINDS.items():
                report.late[kind] = await _phase(report, gateway, peers)
            await come_to_idle(report, gateway)
            report.state = await gateway.state()
            check_log(report, gateway.log)
    finally:
        await engines.close()
    _check(report)
    return report


async def _phase(report: Report, gateway: GatewayProcess, peers: tuple[Peer, ...]) -> float:
    """The p99 of other clients beside slow peers of some kinds."""
    plan = report.plan
    others = Traffic([gateway.listen], 10)
    async with _crowd(gateway.listen, peers, plan.peers):
        await others.open_loop(plan.rate, within(plan.phase))
        await others.finish()
    strange = [each.detail for each in others.attempts if each.saw is not Saw.TEXT]
    report.expect(not strange, f"not answered: {strange[:3]}")
    await come_to_idle(report, gateway)
    return quantiles([each.ended - each.began for each in others.attempts], n=100)[98]


@contextlib.asynccontextmanager
async def _crowd(where: Address, peers: tuple[Peer, ...], number: int) -> AsyncIterator[None]:
    """Open connections of each kind while the context lasts. One that the gateway closes is not replaced."""
    found: list[asyncio.StreamWriter] = []
    senders: list[asyncio.StreamWriter] = []
    sending = asyncio.create_task(_send_on(senders))
    try:
        for peer in peers:
            for each in range(number):
                found.append((await peer(where, (1 << 24) + each))[1])
                if peer is slow_sender:
                    senders.append(found[-1])
        yield
    finally:
        sending.cancel()
        for writer in found:
            drop(writer, reset=True)


async def _send_on(writers: list[asyncio.StreamWriter]) -> None:
    """Send a piece over each connection about once a second."""
    while True:
        for writer in writers:
            if not writer.is_closing():
                writer.write(_PIECE)
            await asyncio.sleep(1.0 / len(writers))
        await asyncio.sleep(0.01)


def _check(report: Report) -> None:
    alone = report.late["none"]
    for kind, late in report.late.items():
        allowed = max(_MAY_GROW * alone, alone + report.plan.may_add)
        report.expect(late <= allowed, f"{kind}: p99 {late * 1000:.1f} ms, without {alone * 1000:.1f} ms")
    report.expect(not sum(report.state["ejections"].values()), f"ejected: {report.state['ejections']}")
