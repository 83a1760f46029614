"""The gateways that are compared: how each is started. Every one runs on one core, one worker, and logs no requests."""

import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.gateway import cache
from benchmarks.gateway.commits import CHECKOUT, code_of_checkout, code_of_commit

_CONNECTIONS: Final = "16384"

_NGINX: Final = """
worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/nginx-error.log;
worker_rlimit_nofile 65536;
events {{ worker_connections 32768; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    client_max_body_size 0;
    client_body_buffer_size 2m;
    keepalive_requests 1000000000;
    upstream decode {{ {servers} keepalive 4096; keepalive_requests 1000000000; }}
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        location / {{
            proxy_pass http://decode;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
            proxy_read_timeout 300;
        }}
    }}
}}
"""


@dataclass(frozen=True, slots=True)
class Engines:
    """Ports of the fake engines."""

    prefill: tuple[int, ...] = (18101, 18102)
    decode: tuple[int, ...] = (18201, 18202)

    @property
    def arguments(self) -> list[str]:
        """The arguments of the engine program."""
        return [f"p:{port}" for port in self.prefill] + [f"d:{port}" for port in self.decode]


@dataclass(frozen=True, slots=True)
class Command:
    """How a gateway is started."""

    line: list[str]
    version: str
    env: Mapping[str, str] = field(default_factory=dict)


REPORTING: Final = Engines((18111, 18112), (18211, 18212))
"""Engines whose metrics pages have their true load, as vLLM's do. Those of the others are 404."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """One of those that are compared."""

    name: str
    title: str
    port: int
    """Where it serves; 0 for the load on the engines themselves."""
    rust: bool = False
    splits: bool = True
    """Whether it runs prefill and decode on different engines."""
    command: Callable[[Engines, int, Path], Command] | None = None
    """From the engines, its port and a folder for its files; raises SetupError."""


COMMIT: Final = "2109863"
"""Of 22 November 2026: the fastest gateway of the past."""
_NO_PROBES: Final = ["--verification-period-seconds", "0"]
"""Transfer probes are off, because engines count what the load sends."""
_FORMER_NO_PROBES: Final = ["--canary-seconds", "0"]
"""The same at COMMIT."""


def _urls(ports: tuple[int, ...]) -> list[str]:
    return [f"http://127.0.0.1:{port}" for port in ports]


def _pdx(
    workers: int, *, compiled: bool = True, commit: str | None = None, reporting: bool = False
) -> Callable[[Engines, int, Path], Command]:
    """How PDX is started. `reporting`: with engines that report their load, and with the default limits."""

    def command(engines: Engines, port: int, folder: Path) -> Command:
        line = [sys.executable, "-m", "pdx_cli", "gateway", "--listen", f"127.0.0.1:{port}"]
        line += ["--admin", f"127.0.0.1:{admin_port(port)}", "--workers", str(workers)]
        own = REPORTING if reporting else engines
        line += ["--prefill", *_urls(own.prefill), "--decode", *_urls(own.decode)]
        if not reporting:
            line += ["--max-in-flight-per-decode", "8192"]  # the peers have no limit, and 5000 streams are one load
        if not compiled:
            return Command([*line, *_NO_PROBES], checkout_version(), {"PDX_COMPILED": "0"})
        code = code_of_checkout() if commit is None else code_of_commit(commit)
        line += _FORMER_NO_PROBES if commit == COMMIT else _NO_PROBES
        version = checkout_version() if commit is None else code.name
        return Command(line, version, {"PYTHONPATH": code.python_path()})

    return command


def admin_port(port: int) -> int:
    """Return PDX's admin port, from the port for clients."""
    return port + 50


def checkout_version() -> str:
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=CHECKOUT, capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or "no commit"


def _rust(
    package: str, module: str, mode: str, bootstrap: tuple[str, ...] = (), policy: str = "round_robin"
) -> Callable[[Engines, int, Path], Command]:
    def command(engines: Engines, port: int, _: Path) -> Command:
        folder = cache.install_peers()
        version = next((folder.parent / "lib").glob(f"python3.*/site-packages/{package}-*.dist-info"))
        line = [str(folder / "python"), "-m", module, mode, "--policy", policy]
        for url in _urls(engines.prefill):
            line += ["--prefill", url, *bootstrap]
        for url in _urls(engines.decode):
            line += ["--decode", url]
        line += ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(admin_port(port))]
        line += ["--max-concurrent-requests", _CONNECTIONS, "--log-level", "error"]
        offline = {"HF_HUB_OFFLINE": "1", "HF_ENDPOINT": "http://127.0.0.1:9"}  # it would request a tokenizer there
        return Command(line, version.name.removesuffix(".dist-info").split("-")[1], offline)

    return command


def vllm_router(policy: str) -> Callable[[Engines, int, Path], Command]:
    """How vllm-router is started with this policy for P's and D's."""
    return _rust("vllm_router", "vllm_router.launch_router", "--vllm-pd-disaggregation", policy=policy)


def _nginx(engines: Engines, port: int, folder: Path) -> Command:
    program = cache.install_nginx()
    servers = " ".join(f"server 127.0.0.1:{port};" for port in engines.decode)
    config = folder / "nginx.conf"
    config.write_text(_NGINX.format(folder=folder, servers=servers, port=port))
    output = subprocess.run([program, "-v"], capture_output=True, text=True, check=False).stderr
    return Command([program, "-c", str(config)], output.strip().rpartition("/")[2])


DIRECT: Final = Gateway("direct", "no gateway: the ceiling", 0, splits=False)
PDX: Final = Gateway("pdx", "pdx", 18301, command=_pdx(1))
PDX_TWO: Final = Gateway("pdx-2", "pdx, two workers", 18302, command=_pdx(2))
PDX_PURE: Final = Gateway("pdx-pure", "pdx, not compiled", 18306, command=_pdx(1, compiled=False))
PDX_DEFAULTS: Final = Gateway("pdx-defaults", "pdx, default limits", 18307, command=_pdx(1, reporting=True))
PDX_COMMIT: Final = Gateway(
    "pdx-2109863", f"pdx of {COMMIT}, default limits", 18308, command=_pdx(1, commit=COMMIT, reporting=True)
)


def pdx_of(commit: str) -> tuple[Gateway, Gateway]:
    """Return PDX at a commit: with engines that report nothing, and with those that report their load.

    The commit is COMMIT, or 657efa9 and later: those between have other flags.
    """
    return (
        Gateway(f"pdx-{commit}", f"pdx of {commit}", 18309, command=_pdx(1, commit=commit)),
        Gateway(
            f"pdx-{commit}-defaults",
            f"pdx of {commit}, default limits",
            18310,
            command=_pdx(1, commit=commit, reporting=True),
        ),
    )


GATEWAYS: Final = (
    DIRECT,
    PDX,
    PDX_DEFAULTS,
    PDX_TWO,
    PDX_PURE,
    PDX_COMMIT,
    Gateway(
        "vllm-router",
        "vllm-router (Rust)",
        18303,
        rust=True,
        command=vllm_router("round_robin"),
    ),
    Gateway(
        "sglang-router",
        "sglang-router (Rust; SGLang's protocol)",
        18304,
        rust=True,
        command=_rust("sglang_router", "sglang_router.launch_router", "--pd-disaggregation", ("8998",)),
    ),
    Gateway("nginx", "nginx (one hop, no P/D: a floor)", 18305, splits=False, command=_nginx),
)
