"""The gateways that are compared: how each is started. Every one runs on one core, one worker, and logs no requests."""

import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.gateway import cache

CHECKOUT: Final = Path(__file__).parents[2]
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


def _urls(ports: tuple[int, ...]) -> list[str]:
    return [f"http://127.0.0.1:{port}" for port in ports]


def _pdx(
    workers: int, *flags: str, compiled: bool = True, tls: bool = False
) -> Callable[[Engines, int, Path], Command]:
    def command(engines: Engines, port: int, folder: Path) -> Command:
        line = [sys.executable, "-m", "pdx_cli", "gateway", "--listen", f"127.0.0.1:{port}"]
        line += ["--admin", f"127.0.0.1:{port + 50}", "--workers", str(workers)]
        line += ["--prefill", *_urls(engines.prefill), "--decode", *_urls(engines.decode)]
        line += ["--verification-period-seconds", "0"]  # engines count what the load sends
        line += ["--max-in-flight-per-decode", "8192"]  # the peers have no limit, and 5000 streams are one load
        line += flags
        line += _certificate(folder) if tls else []
        env = {"PYTHONPATH": str(cache.compile_gateway(CHECKOUT))} if compiled else {}
        return Command(line, checkout_version(), env)

    return command


def _certificate(folder: Path) -> list[str]:
    """A certificate for 127.0.0.1 in the folder, as flags; raises SetupError."""
    certificate, key = folder / "tls.crt", folder / "tls.key"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-noenc",
        "-days",
        "2",
    ]
    command += ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    command += ["-keyout", str(key), "-out", str(certificate)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise cache.SetupError(f"openssl failed: {done.stderr.strip()[-300:]}")
    return ["--tls-certificate", str(certificate), "--tls-key", str(key)]


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
        line += ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(port + 50)]
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
PDX_LEAST: Final = Gateway(
    "pdx-least",
    "pdx, LeastRequests",
    18307,
    command=_pdx(1, "--prefill-policy", "LeastRequests", "--decode-policy", "LeastRequests"),
)
"""Only for the count of instructions: what the default policies cost."""
PDX_PURE: Final = Gateway("pdx-pure", "pdx, not compiled", 18306, command=_pdx(1, compiled=False))
PDX_TLS: Final = Gateway("pdx-tls", "pdx, TLS", 18308, command=_pdx(1, tls=True))
"""Only its instructions are counted: the load generator speaks plain HTTP."""
GATEWAYS: Final = (
    DIRECT,
    PDX,
    PDX_TWO,
    PDX_PURE,
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
