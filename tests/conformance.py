"""Every connector in every order through the gateway, with simulated engines: `make conformance` prints the table.

A cell is a request of one shape and one event. It passes if the client gets the right result and nothing remains: no
violation of an engine's protocol, no pinned blocks, nothing in flight (`World.check`).
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from benchmarks.campaigns import recorded
from pdx_api.connectors import CONNECTORS
from pdx_api.connectors.custom import Custom, FamilyName
from pdx_api.connectors.families import Push
from pdx_api.names import Order, Role
from pdx_sim import FaultKind, SimSettings
from tests.component.harness import AGENT_SHAPES, FAST, SHAPES, Shape, World, eventually

TOKENS: Final = 12
ALL_SHAPES: Final = (*SHAPES, *AGENT_SHAPES)
SLOWNESS: Final = 30.0
"""Factor that makes an engine slow, but keeps it within every deadline."""
PROTOCOLS: Final[dict[str, dict[str, str]]] = {
    "Custom": {f"Custom ({family})": Custom(family_name=family).protocol for family in FamilyName}
}
"""Connectors with several protocols: label -> protocol."""


@dataclass(frozen=True)
class Wiring:
    """A connector in an order."""

    label: str
    connector: str
    order: Order
    protocol: str = ""

    @property
    def impossible(self) -> str:
        """Why the wiring does not exist; empty if it does."""
        orders = CONNECTORS[self.connector].orders
        if self.order not in orders:
            return f"not possible: {self.connector} has the order {', '.join(orders)} only"
        try:
            self.simulated("a directory")
        except ValueError as error:
            return f"not possible: {error}"
        return ""

    def simulated(self, storage: str) -> SimSettings:
        """Settings of its simulated engines; raises ValueError if the simulator does not implement it."""
        return replace(
            FAST,
            order=self.order,
            connector=self.connector,
            protocol=self.protocol,
            storage=storage,
            lease_seconds=1.0,
        )


def wirings() -> Iterator[Wiring]:
    """Every connector with every order, also orders that it does not have."""
    for name in CONNECTORS:
        for label, protocol in PROTOCOLS.get(name, {name: ""}).items():
            for order in Order:
                yield Wiring(label, name, order, protocol)


@asynccontextmanager
async def world_of(wiring: Wiring, storage: str) -> AsyncIterator[World]:
    """Two P, two D and a warm gateway; checked at the end."""
    world = World(wiring.order, wiring.connector)
    base = wiring.simulated(storage)
    push = isinstance(CONNECTORS[wiring.connector].family(wiring.order), Push)
    # After a lost hand-off the lease frees P's blocks; in a push, D keeps its blocks (docs/settling.md).
    world.allowed.expired, world.allowed.stranded = True, push
    try:
        engines = [[replace(base, role=role, seed=i) for i in range(2)] for role in (Role.PREFILL, Role.DECODE)]
        await world.start_engines(*engines)
        await world.start_gateway()
        yield world
        await world.check()
    finally:
        await world.close()


async def _is_right(world: World, shape: Shape) -> None:
    reply = await world.complete(shape, tokens=TOKENS)
    assert (reply.status, reply.text) == (200, shape.expected(tokens=TOKENS)), f"{reply.status}: {reply.raw[:200]!r}"
    assert reply.done or not shape.stream, "the stream has no end"


def _strike(world: World, role: Role, kind: FaultKind, **fields: Any) -> None:
    """Inject a fault into the next leg to the engines of a role."""
    engines = world.prefill if role is Role.PREFILL else world.decode
    for engine in engines[1:]:
        engine.faults = engines[0].faults
    world.fault(engines[0], kind, **fields)


async def prefill_fails(world: World, shape: Shape) -> None:
    """P answers with an error: another attempt serves the client."""
    _strike(world, Role.PREFILL, FaultKind.STATUS, status=500)
    await _is_right(world, shape)
    assert world.p.counts.faults.total() + world.prefill[1].counts.faults.total() == 1


async def decode_fails(world: World, shape: Shape) -> None:
    """D closes the connection instead of answering: another attempt serves the client."""
    _strike(world, Role.DECODE, FaultKind.DIE_BEFORE_HEAD)
    await _is_right(world, shape)
    assert world.d.counts.faults.total() + world.decode[1].counts.faults.total() == 1
    await world.warm()


async def client_leaves(world: World, shape: Shape) -> None:
    """The client leaves while P computes."""
    _strike(world, Role.PREFILL, FaultKind.SLOW, factor=SLOWNESS)
    task = asyncio.create_task(world.complete(shape, tokens=TOKENS))
    await eventually(lambda: any(engine.counts.running_now for engine in world.prefill), what="P computes")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await eventually(lambda: world.report["outcomes"]["client_left"] == 1, what="the client has left")


async def prefill_is_slow(world: World, shape: Shape) -> None:
    """P is slow: the client waits and gets its answer."""
    _strike(world, Role.PREFILL, FaultKind.SLOW, factor=SLOWNESS)
    await _is_right(world, shape)
    assert await world.outcomes() == {"split": 1}


async def decode_is_slow(world: World, shape: Shape) -> None:
    """D is slow: the client waits and gets its answer."""
    _strike(world, Role.DECODE, FaultKind.SLOW, factor=SLOWNESS)
    await _is_right(world, shape)
    assert await world.outcomes() == {"split": 1}


Case = Callable[[World, Shape], Coroutine[Any, Any, None]]
CASES: Final[dict[str, Case]] = {
    "P fails": prefill_fails,
    "D fails": decode_fails,
    "client leaves": client_leaves,
    "P slow": prefill_is_slow,
    "D slow": decode_is_slow,
}


async def cell(wiring: Wiring, shape: Shape, case: str) -> str:
    """Return `pass`, or the failure."""
    with tempfile.TemporaryDirectory(prefix="pdx-conformance-") as storage:
        try:
            async with world_of(wiring, storage) as world:
                await CASES[case](world, shape)
        except (AssertionError, ValueError, TimeoutError) as error:
            return f"FAILED: {error}"
    return "pass"


def shape_name(shape: Shape) -> str:
    """The name of a shape in the table."""
    return f"{shape.agent or ('chat' if shape.chat else 'completions')}{', streamed' if shape.stream else ''}"


async def rows(only: str = "") -> AsyncIterator[tuple[str, ...]]:
    """Yield the rows of the table; `only` selects one connector."""
    for wiring in wirings():
        if only not in ("", wiring.connector):
            continue
        if wiring.impossible:
            yield (wiring.label, wiring.order, "any", wiring.impossible)
            continue
        for shape in ALL_SHAPES:
            cells = [await cell(wiring, shape, case) for case in CASES]
            yield (wiring.label, wiring.order, shape_name(shape), *cells)


async def _print(only: str) -> int:
    widths = (16, 12, 21, *(max(6, len(case)) for case in CASES))
    failed = 0

    def line(row: tuple[str, ...]) -> str:
        return "| " + " | ".join(text.ljust(width) for text, width in zip(row, widths, strict=False)) + " |\n"

    sys.stdout.write(line(("connector", "order", "request", *CASES)))
    sys.stdout.write("|" + "|".join("-" * (width + 2) for width in widths) + "|\n")
    async for row in rows(only):
        failed += sum(text.startswith("FAILED") for text in row)
        sys.stdout.write(line(row))
        sys.stdout.flush()
    sys.stdout.write(f"{failed} failed.\n" if failed else "All pass.\n")
    return 1 if failed else 0


def main() -> int:
    """Print the table; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("--connector", default="", choices=list(CONNECTORS), help="test only this connector")
    return asyncio.run(_print(parser.parse_args().connector))


if __name__ == "__main__":
    sys.exit(recorded("make conformance", main, whole=not sys.argv[1:]))
