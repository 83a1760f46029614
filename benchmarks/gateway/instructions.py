"""Instructions per request, counted by callgrind: a number that a busy machine does not change.

The gateway runs with one worker under valgrind's callgrind. A client sends sequential requests over one connection:
1,000, then 3,000 (100 and 300 of the large ones). The count of the 3,000 minus the count of the 1,000, divided by
2,000, is what one request costs, without start-up and without the counter's own overhead. Instructions of the kernel
are not counted.
"""

import json
import os
import re
import shutil
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.gateway import cache, processes
from benchmarks.gateway.gateways import CHECKOUT, PDX, PDX_LEAST, PDX_PURE, PDX_TLS, Engines, Gateway

_WARM: Final = 20
"""Requests before the first count: they open connections and fill caches."""
_RUNS: Final = 3
_START_SECONDS: Final = 600.0
_TIMEOUT: Final = 600.0
"""Seconds; callgrind makes everything about fifty times slower, and the machine may be busy."""
SPREAD: Final = 0.02
"""The largest difference between two runs, as a share of their median."""
_PATIENT: Final = [
    part for name in ("connect", "prefill", "handoff", "first-event") for part in (f"--{name}-seconds", f"{_TIMEOUT:g}")
]
_COUNTED: Final = (PDX, PDX_LEAST, PDX_PURE, PDX_TLS)
_BRACKETS: Final = 300
_CHAT_BYTES: Final = 110_000


class CountError(Exception):
    """The count failed; the text has the reason."""


@dataclass(frozen=True, slots=True)
class Case:
    """A request."""

    name: str
    title: str
    path: str
    body: bytes
    few: int = 1000
    many: int = 3000
    """Requests of the two counts."""


@dataclass(frozen=True, slots=True)
class Count:
    """Instructions per request: one gateway, one case, each run."""

    gateway: str
    case: str
    runs: tuple[float, ...]

    @property
    def median(self) -> float:
        """Of the runs."""
        return statistics.median(self.runs)

    @property
    def spread(self) -> float:
        """Largest minus smallest, as a share of the median."""
        return (max(self.runs) - min(self.runs)) / self.median


def _completion(size: int) -> bytes:
    prompt = f"{size}:0:1:".ljust(size, "x")
    return json.dumps({"model": "bench", "prompt": prompt, "max_tokens": 16, "stream": False}).encode()


def _chat(messages: int) -> bytes:
    """A chat of about 110 kB in so many messages."""
    content = "x" * (_CHAT_BYTES // messages - 40)
    listed = [{"role": "user", "content": content} for _ in range(messages)]
    return json.dumps({"model": "bench", "messages": listed, "max_tokens": 16, "stream": False}).encode()


CASES: Final = (
    Case("completion", "completion, prompt of 4 kB", "/v1/completions", _completion(4096)),
    Case("chat-text", "chat of 110 kB, one message", "/v1/chat/completions", _chat(1), 100, 300),
    Case(
        "chat-brackets", f"chat of 110 kB, {_BRACKETS} brackets", "/v1/chat/completions", _chat(_BRACKETS - 2), 100, 300
    ),
)
"""The last one's brackets: one for each message, one for their list, one for the body."""


def count_all(names: Sequence[str], runs: int = _RUNS) -> list[Count]:
    """Count the gateways with these names (none: all). Raises CountError or SetupError."""
    _require_valgrind()
    chosen = [gateway for gateway in _COUNTED if not names or gateway.name in names]
    found: dict[tuple[str, str], list[float]] = {}
    for number in range(runs):
        for gateway in chosen:
            for case, instructions in _run(gateway).items():
                found.setdefault((gateway.name, case), []).append(instructions)
                sys.stdout.write(f"run {number + 1}/{runs} {gateway.name:9} {case:14} {instructions:12,.0f}\n")
                sys.stdout.flush()
    return [Count(*key, tuple(values)) for key, values in found.items()]


def table(counts: Sequence[Count]) -> str:
    """The counts in Markdown."""
    gateways = [gateway for gateway in _COUNTED if any(count.gateway == gateway.name for count in counts)]
    lines = ["| instructions per request | " + " | ".join(gateway.title for gateway in gateways) + " |"]
    lines.append("|---|" + "---|" * len(gateways))
    by_key = {(count.gateway, count.case): count for count in counts}
    for case in CASES:
        cells = [by_key[gateway.name, case.name] for gateway in gateways if (gateway.name, case.name) in by_key]
        lines.append(
            f"| {case.title} | " + " | ".join(f"{c.median:,.0f} ± {50 * c.spread:.1f} %" for c in cells) + " |"
        )
    return "\n".join(lines)


def is_steady(counts: Sequence[Count]) -> bool:
    """Whether the runs agree within 2 %. Keys and nonces of TLS differ from run to run."""
    return all(count.spread <= SPREAD for count in counts if count.gateway != PDX_TLS.name)


def as_json(counts: Sequence[Count]) -> list[dict[str, Any]]:
    """For the results' file."""
    return [{"gateway": each.gateway, "case": each.case, "runs": [round(run) for run in each.runs]} for each in counts]


def _require_valgrind() -> None:
    """valgrind is installed by `python -m scripts.system_packages bench`."""
    command = [sys.executable, "-m", "scripts.system_packages", "bench"]
    path = os.pathsep.join(filter(None, (str(CHECKOUT / "cluster"), os.environ.get("PYTHONPATH"))))
    subprocess.run(command, cwd=CHECKOUT, env={**os.environ, "PYTHONPATH": path}, check=False)
    if shutil.which("callgrind_control") is None:
        raise CountError("valgrind is not installed (Debian package valgrind)")


def _run(gateway: Gateway) -> dict[str, float]:
    """Instructions per request of each case, in one start of a gateway."""
    engines = Engines()
    with tempfile.TemporaryDirectory(prefix="pdx-count-") as name, ExitStack() as stack:
        folder = Path(name)
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        engine = processes.start([str(cache.build().engine), *engines.arguments], cores, folder / "engine.log")
        stack.callback(processes.end, engine)
        process = _start(gateway, engines, cores, folder)
        stack.callback(processes.end, process, _TIMEOUT)
        tls = ssl.create_default_context(cafile=str(folder / "tls.crt")) if gateway is PDX_TLS else None
        failure = processes.await_serving(process, gateway.port, _START_SECONDS, tls)
        if failure is not None:
            log = (folder / "gateway.log").read_text(errors="replace")
            raise CountError(f"{gateway.name} {failure}: {log.strip()[-300:]}")
        _control(process.pid, "-i", "on")
        return {case.name: _count(case, gateway.port, process.pid, folder, tls) for case in CASES}


def _start(gateway: Gateway, engines: Engines, cores: str, folder: Path) -> "subprocess.Popen[bytes]":
    assert gateway.command is not None
    command = gateway.command(engines, gateway.port, folder)
    valgrind = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder}/callgrind.out"]
    env = {**command.env, "PYTHONHASHSEED": "0"}
    return processes.start([*valgrind, *command.line, *_PATIENT], cores, folder / "gateway.log", env, CHECKOUT)


def _count(case: Case, port: int, pid: int, folder: Path, tls: ssl.SSLContext | None) -> float:
    head = f"POST {case.path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
    request = f"{head}Content-Length: {len(case.body)}\r\n\r\n".encode() + case.body
    with _connected(port, tls) as client:
        _send(client, request, _WARM)
        _dump(pid, folder)
        _send(client, request, case.few)
        few = _dump(pid, folder)
        _send(client, request, case.many)
        many = _dump(pid, folder)
    return (many - few) / (case.many - case.few)


def _connected(port: int, tls: ssl.SSLContext | None) -> socket.socket:
    plain = socket.create_connection(("127.0.0.1", port), _TIMEOUT)
    return plain if tls is None else tls.wrap_socket(plain, server_hostname="127.0.0.1")


def _send(client: socket.socket, request: bytes, times: int) -> None:
    """Send a request so many times, each after the answer to the one before."""
    for _ in range(times):
        client.sendall(request)
        answer = client.recv(1 << 16)
        while b"\r\n\r\n" not in answer:
            answer += client.recv(1 << 16) or _fail("the gateway closed the connection")
        head, _, rest = answer.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        if not head.startswith(b"HTTP/1.1 200 ") or length is None:
            _fail(f"the gateway answered {head[:200]!r} {rest[:200]!r}")
            return
        missing = int(length[1]) - len(rest)
        while missing > 0:
            missing -= len(client.recv(missing) or _fail("the gateway closed the connection"))


def _fail(reason: str) -> bytes:
    raise CountError(reason)


def _dump(pid: int, folder: Path) -> int:
    """The instructions since the last dump."""
    before = set(folder.glob("callgrind.out.*"))
    _control(pid, "-d")
    (new,) = set(folder.glob("callgrind.out.*")) - before
    total = re.search(r"^totals: (\d+)", new.read_text(errors="replace"), re.MULTILINE)
    if total is None:
        raise CountError(f"{new} has no totals")
    return int(total[1])


def _control(pid: int, *arguments: str) -> None:
    """Send callgrind a command."""
    command = ["callgrind_control", *arguments, str(pid)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT)
    if done.returncode:
        raise CountError(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()[-300:]}")
