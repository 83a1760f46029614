"""A gateway in a network with few local ports: `unshare --net python -m tests.component.health.few_ports ORDER`."""

import asyncio
import socket
import struct
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from pdx_api.names import Order, Role
from pdx_sim import SimEngine
from tests.component.harness import FAST, Shape, World, eventually, request_of

_PORTS = 60
_ABORTS = 4 * _PORTS
_TIME_WAIT = "06"
_RESET = struct.pack("ii", 1, 0)


def _take_ports() -> None:
    Path("/proc/sys/net/ipv4/tcp_tw_reuse").write_text("0")
    Path("/proc/sys/net/ipv4/ip_local_port_range").write_text(f"40000 {40000 + _PORTS - 1}")


async def main(order: Order) -> None:
    """Start everything, take the ports away, then abort requests."""
    prefill, decode = replace(FAST, role=Role.PREFILL, order=order), replace(FAST, role=Role.DECODE, order=order)
    world = await World(order).start_engines([prefill], [decode])
    await world.start_gateway()
    _take_ports()
    reply = await world.complete()
    assert reply.status == 200, reply
    for _ in range(_ABORTS):
        await _abort(world)
    await eventually(lambda: world.settled)
    assert sum(map(_waiting, world.engines)) <= _PORTS // 2, "some idle connections were closed"
    assert (await world.complete()).text == Shape().expected()
    await _check(world, set())
    for engine in world.engines:
        await _take_all(world, engine)
    await _check(world, {"exhausted"})
    await world.close()


async def _abort(world: World) -> None:
    """Send a request, and leave before its answer."""
    host, port = world.gateway.listen.host, world.gateway.listen.port
    with socket.create_connection((host, port)) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)  # its own port is free at once, too
        client.sendall(request_of(Shape().body(tokens=500)))
        await asyncio.sleep(0.012)


def _waiting(engine: SimEngine) -> int:
    """Ports in TIME_WAIT of connections to the engine."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(line[2].endswith(f":{engine.port:04X}") and line[3] == _TIME_WAIT for line in lines)


async def _take_all(world: World, engine: SimEngine) -> None:
    """Use every port to the engine. A request then gets 503, and one that has a port again an answer."""
    world.pool.close()
    await asyncio.sleep(0.05)
    taken: list[socket.socket] = []
    with suppress(OSError):
        while True:
            taken.append(socket.create_connection((engine.settings.host, engine.port)))
    for _ in range(6):
        reply = await world.complete()
        assert (reply.status, reply.headers["retry-after"]) == (503, "1"), reply
    for each in taken:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        each.close()
    assert (await world.complete()).text == Shape().expected()


async def _check(world: World, outcomes: set[str]) -> None:
    """No engine was ejected, and no request had an unexpected outcome."""
    registry = world.gateway.registry
    assert {e.state.value for e in registry.snapshot.everything} == {"Warm"}
    assert not any(registry.ejections.values()), registry.ejections
    found = {name for name, count in world.report["outcomes"].items() if count}
    assert found == {"split", "client_left"} | outcomes, world.report["outcomes"]


if __name__ == "__main__":
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    asyncio.run(main(Order(sys.argv[1])))
