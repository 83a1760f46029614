"""Bodies of 60 MiB: how late `/health` is answered meanwhile, and how much memory the gateway takes.

`python -m benchmarks.soak.bodies [--mib 60] [--record]`. The client of `/health` is a process of its own (`--poll`),
so that neither the senders nor the simulated engines delay it.
"""

import argparse
import asyncio
import re
import select
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from benchmarks.campaigns import recorded
from benchmarks.soak.engines import BASE, Engines
from benchmarks.soak.frame import each_role, setup
from benchmarks.soak.program import ROOT, GatewayProcess
from benchmarks.soak.results import print_line, record
from pdx_api.names import Order
from pdx_proxy.config.settings import Address, Settings

_PERIOD: Final = 0.02
"""Seconds between two requests for `/health`."""
_HEALTH: Final = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
_MIB: Final = 1 << 20
LATE: Final = {1: 0.1, 4: 0.25}
"""Seconds: the latest answer allowed, by the number of bodies at once."""
MEMORY: Final = {False: 1.5, True: 3.0}
"""The most memory above idle, as a multiple of the bodies, by whether they are served."""


def _filled(head: bytes, unit: bytes, tail: bytes) -> Callable[[int], bytes]:
    return lambda size: head + unit * ((size - len(head) - len(tail)) // len(unit)) + tail


CASES: Final[dict[str, Callable[[int], bytes]]] = {
    "junk array, served": _filled(b'{"max_tokens":1,"prompt":"a","junk":[1', b",1", b"]}"),
    "junk strings, served": _filled(b'{"max_tokens":1,"prompt":"a","junk":[""', b',""', b"]}"),
    "one text, served": _filled(b'{"max_tokens":1,"prompt":"a","junk":"', b"some \\n words ", b'"}'),
    "objects": _filled(b'{"prompt":"a","junk":[{}', b",{}", b"]}"),
    "members": _filled(b'{"prompt":"a"', b',"k":1', b"}"),
    "brackets in n": _filled(b'{"prompt":"a","n":[[]', b",[]", b"]}"),
    "truncated": _filled(b'{"prompt":"a","junk":[1', b',"b"', b""),
    "deep": _filled(b'{"prompt":', b"[", b""),
    "one text, not closed": _filled(b'{"prompt":"', b"some words ", b""),
}


def poll(host: str, port: int) -> None:
    """Request `/health` 50 times a second until standard input ends; print the latest answer, in seconds."""
    latest, count = 0.0, 0
    with socket.create_connection((host, port)) as connection:
        begin = time.monotonic()
        while not select.select([sys.stdin], [], [], 0)[0]:
            due = begin + count * _PERIOD
            time.sleep(max(due - time.monotonic(), 0.0))
            connection.sendall(_HEALTH)
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")
            latest, count = max(latest, time.monotonic() - due), count + 1
            if count == 1:
                print("polling", flush=True)
    print(latest)


async def _send(address: Address, body: bytes) -> int:
    """The status of the answer."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode())
    writer.write(body)
    line = await reader.readline()
    writer.close()
    return int(line.split()[1])


def _resident(pid: int, field: str) -> int:
    found = re.search(rf"{field}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None, f"Linux reports {field}"
    return int(found[1]) * 1024


def _reset_peak(pid: int) -> int:
    """Let VmHWM begin again at the present memory, and return that."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return _resident(pid, "VmRSS")


async def _measure(gateway: GatewayProcess, name: str, at_once: int, size: int) -> dict[str, Any]:
    pid = gateway.pids()[0]
    body = CASES[name](size)
    idle = _reset_peak(pid)
    poller = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.soak.bodies", "--poll", str(gateway.listen)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    assert poller.stdout is not None, "it is a pipe"
    await poller.stdout.readline()
    statuses = await asyncio.gather(*(_send(gateway.listen, body) for _ in range(at_once)))
    printed, _ = await poller.communicate(b"end\n")
    served = 200 in statuses
    return {
        "case": name,
        "atOnce": at_once,
        "mib": size / _MIB,
        "statuses": statuses,
        "latestSeconds": round(float(printed), 4),
        "memoryOfBodies": round((_resident(pid, "VmHWM") - idle) / (at_once * size), 2),
        "met": float(printed) <= LATE[at_once]
        and _resident(pid, "VmHWM") - idle <= MEMORY[served] * at_once * size + 8 * _MIB,
    }


async def run(size: int, log: Path) -> list[dict[str, Any]]:
    """Every case with one body, then with four at once."""
    results = []
    async with setup(Engines(Order.PREFILL_FIRST), each_role(replace(BASE, record=0), 1), Settings(), log) as [gateway]:
        for at_once in LATE:
            for name in CASES:
                results.append(await _measure(gateway, name, at_once, size))
                print_line("bodies", results[-1])
    return results


def main() -> int:
    """Measure as the command line requests."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak.bodies", description=__doc__)
    parser.add_argument("--mib", type=int, default=60, help="the size of each body (%(default)s)")
    parser.add_argument("--record", action="store_true", help="add the results to bodies.jsonl and the README")
    parser.add_argument("--poll", metavar="ADDRESS", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.poll:
        host, _, port = given.poll.rpartition(":")
        poll(host, int(port))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        results = asyncio.run(run(given.mib * _MIB, Path(folder) / "gateway.log"))
    if given.record:
        for line in results:
            record("bodies", line)
    return not all(line["met"] for line in results)


if __name__ == "__main__":
    sys.exit(recorded("python3 -m benchmarks.soak.bodies --record", main, whole=sys.argv[1:] == ["--record"]))
