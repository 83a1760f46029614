"""The ports of simulated engines."""

import asyncio
import sys
from typing import Final

import pytest

from pdx_sim.transfer.ports import listen_steadily

OTHER: Final = """
import asyncio
from pdx_sim.transfer.ports import listen_steadily

async def pretend(port):
    return port

async def main():
    return {await listen_steadily(pretend, 0) for _ in range(10_000)}

print(*asyncio.run(main()))
"""
"""A process that starts engines one after the other, as many as there are ports."""


def _listen(port: int) -> "asyncio.Future[asyncio.Server]":
    return asyncio.ensure_future(asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", port))


def _lowest_of_connections() -> int:
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        return int(file.read().split()[0])


async def test_a_fixed_port_is_below_those_of_connections() -> None:
    one, other = await listen_steadily(_listen, 0), await listen_steadily(_listen, 0)
    ports = [server.sockets[0].getsockname()[1] for server in (one, other)]
    assert ports[0] != ports[1]
    assert max(ports) < max(30_000, _lowest_of_connections())
    one.close()
    again = await listen_steadily(_listen, ports[0])
    assert again.sockets[0].getsockname()[1] == ports[0]
    with pytest.raises(OSError, match="in use"):
        await listen_steadily(_listen, ports[1])
    again.close()
    other.close()


async def test_no_other_process_takes_the_port_of_an_engine_that_is_down() -> None:
    server = await listen_steadily(_listen, 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    other = await asyncio.create_subprocess_exec(sys.executable, "-c", OTHER, stdout=asyncio.subprocess.PIPE)
    out, _ = await other.communicate()
    assert other.returncode == 0
    ports = set(map(int, out.split()))
    assert ports
    assert port not in ports
