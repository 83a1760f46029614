"""Real vLLM engines and the gateway as processes, for tests that kill them and start them again."""

import asyncio
import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from pdx_api.connectors.base import SideService, Site
from pdx_api.connectors.families import AtBootstrap, Push
from pdx_api.names import Mode, Order, Role
from pdx_api.render.engines import engine_command, pairing_revision, pool_bytes, service_command
from pdx_api.spec.parse import parse
from pdx_api.spec.types import Spec
from tests.engines.support import preloaded
from tests.ports import free_port

ROOT = Path(__file__).parents[3]
START_SECONDS = 360.0
GIVES_WAY_TO_ENGINES = ("nice", "-n", "15")
SLEEPING_NIXL = Path(__file__).parent / "sleeping_nixl"
"""Without this folder in PYTHONPATH, an idle `lmcache server` of LMCacheP2P uses most of a core."""
MODEL = "tiny"


def tiny_spec(model: Path, **transfer: Any) -> Spec:
    """The spec of examples/tiny-cpu.yaml with another model directory and kvTransfer, and with tool calls."""
    body = yaml.safe_load((ROOT / "examples/tiny-cpu.yaml").read_text())
    body["spec"]["model"]["source"]["path"] = str(model)
    body["spec"]["engine"]["args"] += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    body["spec"]["kvTransfer"] = transfer
    return parse(body).spec


@dataclass
class Engine:
    """One vLLM process in a process group of its own."""

    spec: Spec
    role: Role
    logs: Path
    port: int = field(default_factory=free_port)
    side_port: int = field(default_factory=partial(free_port, 4))
    """That of the first rank; each rank uses the port behind that of the rank before it."""
    storage: str = ""
    """Directory for KV that engines share by files."""
    services: "tuple[SideProcess, ...]" = ()
    process: ForkServerProcess | None = None
    env: dict[str, str] = field(default_factory=dict)
    sockets: tempfile.TemporaryDirectory[str] | None = None
    """Where its sockets are: an engine that is killed removes none. Their paths may have 107 characters only."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.logs / f"{self.role}-{self.port}.log"

    def start(self) -> None:
        custom = self.spec.kv_transfer.custom
        code = custom.code.directory if custom is not None and custom.code is not None else None
        services = {each.service.name: each.site for each in self.services}
        ports = dict.fromkeys(self.spec.connector.port_names, self.side_port)
        files = self.logs / f"{self.role}-{self.port}"
        revision = pairing_revision(self.spec)
        site = Site("127.0.0.1", ports, self.storage, code, services, str(files), pool_bytes(self.spec), revision)
        command = engine_command(self.spec, self.role, site=site, listen="127.0.0.1", port=self.port)
        for name, content in command.files:
            files.mkdir(exist_ok=True)
            (files / name).write_text(content)
        if self.sockets is not None:  # of a process that has ended by itself
            self.sockets.cleanup()
        self.sockets = tempfile.TemporaryDirectory(prefix="pdx-")
        environment = {**os.environ, "VLLM_RPC_BASE_PATH": self.sockets.name, **self.env, **dict(command.env)}
        environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
        self.process = preloaded.start(command.args, environment, self.log)

    def wait_until_healthy(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            assert self.process is not None
            assert self.process.is_alive(), self.log_tail()
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/health", timeout=5):
                return
            time.sleep(0.5)
        raise AssertionError(f"not healthy after {START_SECONDS} s:\n{self.log_tail()}")

    def kill(self) -> None:
        """SIGKILL to the whole group, as the kernel's memory killer would, only more thorough."""
        if self.process is not None and self.process.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.kill()  # it may not have made its group yet
            self.process.join()
        if self.sockets is not None:
            self.sockets.cleanup()

    def log_tail(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]

    def metrics(self) -> dict[str, float]:
        """vLLM's series, each summed over its labels; prompt tokens by source under their source's name."""
        found: dict[str, float] = {}
        for name, labels, value in re.findall(r"^vllm:(\w+)\{(.*?)\} (\S+)$", self._page(), re.MULTILINE):
            source = re.search(r'source="(\w+)"', labels)
            key = source.group(1) if name == "prompt_tokens_by_source_total" and source else name
            found[key] = found.get(key, 0.0) + float(value)
        return found

    def prompt_tokens(self) -> dict[int, float]:
        """Prompt tokens of each data-parallel rank: the label `engine` (vLLM's v1/metrics/loggers.py) is its number."""
        found: dict[int, float] = {}
        for labels, value in re.findall(r"^vllm:prompt_tokens_total\{(.*?)\} (\S+)$", self._page(), re.MULTILINE):
            [rank] = re.findall(r'engine="(\d+)"', labels)
            found[int(rank)] = found.get(int(rank), 0.0) + float(value)
        return found

    def _page(self) -> str:
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as answer:
            return str(answer.read().decode())

    @property
    def external_tokens(self) -> float:
        """Prompt tokens that came through the connector."""
        return self.metrics()["external_kv_transfer"]

    @property
    def kv_usage(self) -> float:
        return self.metrics()["kv_cache_usage_perc"]


@dataclass(eq=False)
class SideProcess:
    """A connector's side service as a process."""

    spec: Spec
    service: SideService
    logs: Path
    services: "tuple[SideProcess, ...]" = ()
    """The side services whose addresses it receives."""
    process: subprocess.Popen[bytes] | None = None
    site: Site = field(init=False)

    def __post_init__(self) -> None:
        ports = {name: free_port() for name in self.service.ports}
        self.site = Site("127.0.0.1", ports, services={each.service.name: each.site for each in self.services})
        self.url = f"http://127.0.0.1:{ports[self.service.probe_port]}"
        self.log = self.logs / f"{self.service.name}-{ports[self.service.probe_port]}.log"

    def start(self) -> None:
        command = service_command(self.spec, self.service, self.site)
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*GIVES_WAY_TO_ENGINES, *command],
                env={**os.environ, "PATH": path, "PYTHONPATH": str(SLEEPING_NIXL)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
            )

    def wait_until_healthy(self) -> None:
        url = f"{self.url}{self.service.probe_path}"
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            assert self.process is not None
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):
                return
            time.sleep(0.2)
        raise AssertionError(f"{self.service.name} is not healthy after {START_SECONDS} s")

    def kill(self) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@dataclass(eq=False)
class Gateway:
    """`pdx gateway` as a process."""

    order: Order
    prefill: list[Engine]
    decode: list[Engine]
    mode: Mode
    logs: Path
    port: int = field(default_factory=free_port)
    admin_port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None
    verification_period_seconds: int = 0
    """0: tests count the requests to engines, so no probe may add to them."""
    flags: tuple[str, ...] = ()
    """Further flags."""
    ranks: int = 1
    """Data-parallel ranks of each prefill engine."""
    number: int = field(default_factory=itertools.count(1).__next__)
    """Counts the gateways of this process: prompts that contain it are new to the engines, and equal in every run."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.logs / f"gateway-{self.order}.log"

    @property
    def needs_identity_ports(self) -> bool:
        """Whether it reads the identity of a P from the bootstrap port."""
        family = self.prefill[0].spec.connector.family(self.order)
        return isinstance(family, Push) and isinstance(family.identity, AtBootstrap)

    def start(self) -> None:
        engines = (
            ["--aggregated", *(engine.url for engine in self.decode)]
            if self.mode is Mode.AGGREGATED
            else [
                *("--prefill", *(engine.url for engine in self.prefill)),
                *("--decode", *(engine.url for engine in self.decode)),
                *("--connector", self.prefill[0].spec.connector.name, "--order", self.order),
                *(("--protocol", protocol) if (protocol := self.prefill[0].spec.protocol) else ()),
                *("--prefill-ranks", str(self.ranks)),
                *(
                    ("--identity-ports", *(str(engine.side_port) for engine in self.prefill))
                    if self.needs_identity_ports
                    else ()
                ),
            ]
        )
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "pdx_cli", "gateway", "--debug-headers"),
                    *("--listen", f"127.0.0.1:{self.port}", "--admin", f"127.0.0.1:{self.admin_port}"),
                    *("--verification-period-seconds", str(self.verification_period_seconds)),
                    *engines,
                    *self.flags,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def state(self) -> dict[str, Any]:
        return self.admin("/pdx/state")

    def admin(self, path: str) -> dict[str, Any]:
        """Return what its admin port answers."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin_port}{path}", timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def wait_until_warm(self, seconds: float = 120.0, roles: Collection[Role] = tuple(Role)) -> None:
        """Wait until all engines of these roles are warm."""
        deadline = time.monotonic() + seconds
        state: dict[str, Any] = {}
        while time.monotonic() < deadline:
            assert self.process is not None
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            with contextlib.suppress(OSError):
                state = self.state()
                if all(each["state"] == "Warm" for each in state["endpoints"] if each["role"] in roles):
                    return
            time.sleep(0.2)
        raise AssertionError(f"not warm: {state}")

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            assert self.process.wait(timeout=40) == 0


@contextlib.contextmanager
def running(*parts: Engine | SideProcess) -> Iterator[None]:
    """Engines from start to healthy, all at once, and killed at the end."""
    try:
        for part in parts:
            part.start()
        for part in parts:
            part.wait_until_healthy()
        yield
    finally:
        for part in parts:
            part.kill()


@contextlib.contextmanager
def gateway(
    order: Order,
    prefill: list[Engine],
    decode: list[Engine],
    logs: Path,
    mode: Mode = Mode.DISAGGREGATED,
    verification_period_seconds: int = 0,
    flags: tuple[str, ...] = (),
    ranks: int = 1,
    roles: Collection[Role] = tuple(Role),
) -> Iterator[Gateway]:
    """A gateway in front of engines, of which those of these roles are warm."""
    front = Gateway(
        order, prefill, decode, mode, logs, verification_period_seconds=verification_period_seconds, flags=flags
    )
    front.ranks = ranks
    front.start()
    try:
        front.wait_until_warm(roles=roles)
        yield front
    finally:
        front.stop()


@dataclass(frozen=True)
class Answer:
    """What a client got."""

    status: int
    text: str
    usage: dict[str, Any]
    headers: dict[str, str]
    complete: bool = True


async def complete(
    session: aiohttp.ClientSession, url: str, body: dict[str, Any], headers: dict[str, str] | None = None
) -> Answer:
    """One request for a completion or a chat, streamed if the body has `stream`."""
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    async with session.post(url + path, json={"model": MODEL, "temperature": 0, **body}, headers=headers) as response:
        received = {name.lower(): value for name, value in response.headers.items()}
        if response.status != 200 or not body.get("stream"):
            document = await response.json()
            if response.status != 200:
                return Answer(response.status, json.dumps(document), {}, received)
            choice = document["choices"][0]
            text = choice["message"]["content"] if "messages" in body else choice["text"]
            return Answer(200, text, document["usage"], received)
        try:
            events = [line.removeprefix("data: ") async for line in _lines(response) if line.startswith("data: ")]
        except aiohttp.ClientPayloadError:
            return Answer(200, "", {}, received, complete=False)
    return _of_events(events, received)


async def _lines(response: aiohttp.ClientResponse) -> Any:
    async for line in response.content:
        yield line.decode().strip()


def _of_events(events: list[str], headers: dict[str, str]) -> Answer:
    text = ""
    usage: dict[str, Any] = {}
    for event in events:
        if event == "[DONE]":
            return Answer(200, text, usage, headers)
        document = json.loads(event)
        if "error" in document:
            return Answer(200, text, usage, headers, complete=False)
        usage = document.get("usage") or usage
        for choice in document["choices"]:
            text += choice["delta"].get("content") or "" if "delta" in choice else choice["text"]
    return Answer(200, text, usage, headers, complete=False)


async def eventually(holds: Any, seconds: float, what: str) -> None:
    """Wait until `holds()` is true."""
    deadline = time.monotonic() + seconds
    while not await asyncio.to_thread(holds):
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.1)


def make_prompt(seed: int, count: int) -> str:
    """Return a prompt that differs for every seed."""
    syllables = ("ba", "de", "fi", "go", "hu", "ka", "le", "mi", "no", "pu", "ra", "se", "ti", "vo", "zu")
    state = seed * 2654435761 % 2**32
    out = [f"prompt {seed}"]
    for _ in range(count):
        state = (state * 1103515245 + 12345) % 2**31
        out.append(syllables[state >> 8 & 7] + syllables[(state >> 16) % 15])
    return " ".join(out)
