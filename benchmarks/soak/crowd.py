"""A thousand slow peers of each kind, alone and all together, and what they cost all other clients.

Kinds: connections that declare 64 MiB and send 16 KiB a second; request heads without a body; connections that read
nothing of a long answer. Engines have room for all of them. A connection that the gateway closes is replaced.

`python -m benchmarks.soak.crowd ADDRESS NUMBER TOKENS KIND...` is the process of these peers.
"""

import asyncio
import itertools
import os
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import quantiles
from typing import Any, Final

from benchmarks.soak import frame
from benchmarks.soak.clients import ClientRequest, Saw, connect, drop
from benchmarks.soak.engines import BASE, Engines
from benchmarks.soak.frame import come_to_idle, conclude, each_role, eventually, setup
from benchmarks.soak.program import ROOT, GatewayProcess
from benchmarks.soak.traffic import Traffic, within
from pdx_api.names import Order
from pdx_proxy.config.settings import Address, Limits, Settings

_HEAD: Final = (
    "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {size}\r\n\r\n"
)
_SERVED: Final = b"HTTP/1.1 200"
_PIECE: Final = b" " * (16 << 10)
_BUFFER: Final = 4096
_SEGMENT: Final = 1400
"""Bytes of a TCP segment, as on a network."""
_LONG: Final = 1200
"""Tokens of an answer that nobody reads: 264 kB, of which the gateway and both kernels buffer less than 220 kB."""
_TOKENS: Final = 20
"""Of the answers for all others."""
_BETWEEN: Final = 0.002
"""Seconds between two connects."""
_ESTABLISHED: Final = 1
_SIM: Final = replace(
    BASE,
    jitter=0.0,
    prefill_base_seconds=0.005,
    prefill_token_seconds=0.0,
    prefill_slots=4096,
    max_running=4096,
    decode_token_seconds=0.001,
    max_model_len=8192,
    num_blocks=1 << 20,
    lease_seconds=30.0,
    decoder_ttl_seconds=480.0,
    side_channel_timeout=5.0,
)
_ENGINES: Final = 2
_SETTINGS: Final = Settings(
    limits=Limits(max_in_flight_per_decode=4096, max_in_flight_per_prefill=4096), send_seconds=600.0
)
"""Room for all, and clients that read nothing stay."""
_MAY_GROW: Final = 1.5


@dataclass(frozen=True, slots=True)
class Plan:
    """One run. All times are in seconds."""

    peers: int = 1000
    phase: float = 40.0
    rate: float = 20.0
    """Requests per second of the other clients."""
    may_add: float = 0.005
    """The p99 of all others stays within `_MAY_GROW` times, or this more."""
    tokens: int = _LONG
    """Of each answer that nobody reads."""
    settles: float = 300.0
    """Until engines have generated all answers that nobody reads."""
    order: Order = Order.PREFILL_FIRST


SHORT: Final = Plan(peers=20, phase=1.5, may_add=1.0, tokens=4000, settles=60.0)
"""The p99 is the slowest of 30 requests. Peers that held what they declare would have the others refused. With few
connections, the kernel may buffer more of each answer.
"""


@dataclass
class Report(frame.Report[Plan]):
    """What the run showed."""

    late: dict[str, float] = field(default_factory=dict)
    """Kind of the slow peers -> p99 of the durations of all other requests, in seconds."""

    def line(self) -> dict[str, Any]:
        """For the results."""
        return {"peers": self.plan.peers, "seconds": self.plan.phase, "late": self.late}


Peer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def send_slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Declares 64 MiB and sends 16 KiB a second."""
    writer.write(_HEAD.format(size=64 << 20).encode())
    while not reader.at_eof():
        writer.write(_PIECE)
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await reader.read(-1)


async def send_head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Sends a head and nothing else."""
    writer.write(_HEAD.format(size=1000).encode())
    await reader.read(-1)


async def read_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, tokens: int = _LONG) -> None:
    """Requests a long stream and reads nothing of it. Ends if it is refused, or if the gateway closes it."""
    reader._transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(ClientRequest(0, chat=False, stream=True, prompt="request", tokens=tokens).wire())
    with socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno())) as sock:
        while sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _ESTABLISHED:
            await asyncio.sleep(1.0)
            with suppress(BlockingIOError):
                if not _SERVED.startswith(sock.recv(len(_SERVED), socket.MSG_PEEK | socket.MSG_DONTWAIT)):
                    return


KINDS: Final[Mapping[str, tuple[Peer, ...]]] = {
    "none": (),
    "declare 64 MiB, send 16 KiB/s": (send_slowly,),
    "head without a body": (send_head,),
    "read nothing": (read_nothing,),
    "all together": (send_slowly, send_head, read_nothing),
    "none, afterwards": (),
}


async def run(plan: Plan, log: Path) -> Report:
    """Run every kind."""
    report = Report(plan)
    engines = Engines(plan.order)
    async with setup(engines, each_role(_SIM, _ENGINES), _SETTINGS, log) as [gateway]:
        for kind, peers in KINDS.items():
            report.late[kind] = await _phase(report, gateway, engines, peers)
        await conclude(report, [gateway])
    _check(report)
    return report


async def _phase(report: Report, gateway: GatewayProcess, engines: Engines, peers: tuple[Peer, ...]) -> float:
    """The p99 of other clients beside slow peers of some kinds."""
    plan, others = report.plan, Traffic([gateway.listen], _TOKENS)
    unread = plan.peers * peers.count(read_nothing)

    async def is_settled() -> bool:
        held = (await gateway.state())["inFlight"]["decode"]
        return held >= unread and not any(engine.counts.running_now for engine in engines.all)

    async with _crowd(gateway.listen, peers, plan):
        settled = await eventually(is_settled, within=plan.settles)
        held, running = (await gateway.state())["inFlight"]["decode"], [e.counts.running_now for e in engines.all]
        report.expect(settled, f"of {unread} answers that nobody reads, D's hold {held}; engines run {running}")
        before = await _ejections(gateway)
        await others.open_loop(plan.rate, within(plan.phase))
        await others.finish()
        ejected = await _ejections(gateway) - before
        report.expect(not ejected, f"{ejected} healthy engines ejected")
    strange = [each for each in others.attempts if each.saw is not Saw.TEXT]
    report.expect(not strange, f"not answered: {len(strange)} of {len(others.attempts)}: {strange[:3]}")
    await come_to_idle(report, gateway)
    return quantiles([each.ended - each.began for each in others.attempts], n=100, method="inclusive")[98]


async def _ejections(gateway: GatewayProcess) -> int:
    """So far. While a thousand answers are generated, the simulation keeps its processor busy, and `/health` waits."""
    return sum((await gateway.state())["ejections"].values())


@asynccontextmanager
async def _crowd(where: Address, peers: tuple[Peer, ...], plan: Plan) -> AsyncIterator[None]:
    """The plan's connections of each kind while the context lasts. Their own process delays no other client."""
    if not peers:
        yield
        return
    numbers, names = (str(plan.peers), str(plan.tokens)), (each.__name__ for each in peers)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.soak.crowd", str(where), *numbers, *names),
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    assert process.stdout is not None, "it is a pipe"
    try:
        assert await process.stdout.readline(), "the slow peers have connected"
        yield
    finally:
        process.kill()
        await process.wait()


async def crowd(where: Address, peers: Sequence[Peer], number: int) -> None:
    """Keep so many connections of each kind, until cancelled. Print a line when all have begun."""
    tasks: list[asyncio.Task[None]] = []
    for peer in itertools.chain.from_iterable([peers] * number):
        tasks.append(asyncio.create_task(_stay(where, peer)))
        await asyncio.sleep(_BETWEEN)
    print("connected", flush=True)
    await asyncio.gather(*tasks)


async def _stay(where: Address, peer: Peer) -> None:
    """One connection of a kind, and another when the gateway closes it."""
    while True:
        with suppress(ConnectionError):
            reader, writer = await connect(where, _BUFFER, _SEGMENT)
            try:
                await peer(reader, writer)
            finally:
                drop(writer, reset=True)
        await asyncio.sleep(1.0)


def _check(report: Report) -> None:
    alone = report.late["none"]
    for kind, late in report.late.items():
        allowed = max(_MAY_GROW * alone, alone + report.plan.may_add)
        report.expect(late <= allowed, f"{kind}: p99 {late * 1000:.1f} ms, without {alone * 1000:.1f} ms")


if __name__ == "__main__":
    host, _, port = sys.argv[1].rpartition(":")
    unread = partial(read_nothing, tokens=int(sys.argv[3]))
    by_name: dict[str, Peer] = {"send_slowly": send_slowly, "send_head": send_head, "read_nothing": unread}
    asyncio.run(crowd(Address(host, int(port)), [by_name[name] for name in sys.argv[4:]], int(sys.argv[2])))
