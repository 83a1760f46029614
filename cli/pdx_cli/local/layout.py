"""The processes of one `pdx up`, as values: what is started, where it listens, what it is called."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from pdx_api.connectors.base import SideService, Site
from pdx_api.connectors.families import AtBootstrap, Push
from pdx_api.connectors.nixl import LEASE, SIDE_CHANNEL
from pdx_api.names import Mode, Role
from pdx_api.render.engines import (
    connector_config,
    engine_command,
    pairing_revision,
    pool_bytes,
    service_command,
    side_services,
)
from pdx_api.render.gateway_flags import gateway_flags
from pdx_api.spec.types import PDDeployment, Spec
from pdx_cli.errors import CommandError
from pdx_cli.local.ports import HOST

PDX: Final = (sys.executable, "-P", "-m", "pdx_cli")
"""The start of every child that is a `pdx` command; -P keeps the working directory out of its imports."""


class EngineKind(StrEnum):
    """What stands behind an engine's address."""

    VLLM = "vllm"
    SIM = "sim"


@dataclass(frozen=True, slots=True)
class Program:
    """One process to start."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    """What it gets beside the environment of `pdx up`."""
    port: int
    """Where its HTTP API listens, on the loopback address."""
    health: str = "/health"
    """Path that answers 200 when it serves."""

    @property
    def address(self) -> str:
        """HOST:PORT of its HTTP API."""
        return f"{HOST}:{self.port}"

    @property
    def url(self) -> str:
        """Base URL of its HTTP API."""
        return f"http://{self.address}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProgram(Program):
    """One engine to start."""

    role: Role
    side_ports: Mapping[str, int]
    """Where its connector listens, by the connector's names."""
    files: Mapping[str, str] = field(default_factory=dict)
    """What it reads: path -> content."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Everything that one run starts."""

    engines: tuple[EngineProgram, ...]
    gateway: Program
    admin: Program
    """The gateway's admin address; the same process."""
    services: tuple[Program, ...] = ()
    """What engines need beside them, started before them."""

    def of(self, role: Role) -> tuple[EngineProgram, ...]:
        """The engines of a role."""
        return tuple(engine for engine in self.engines if engine.role is role)

    def name_of(self, address: str | None) -> str | None:
        """The engine that listens at HOST:PORT."""
        return next((engine.name for engine in self.engines if engine.address == address), None)


def lay_out(
    deployment: PDDeployment,
    kind: EngineKind,
    *,
    port: int,
    admin: int,
    storage: str,
    allocate: Callable[[int], list[int]],
) -> Layout:
    """Programs of the engines and of the gateway.

    `storage` is a directory of the run alone, for KV that engines share by files and for files that each of them reads;
    `allocate(count)` gives ports that are free.
    """
    spec = deployment.spec
    port_names = tuple(spec.connector.port_names) if spec.mode is Mode.DISAGGREGATED else ()
    if kind is EngineKind.SIM and not port_names:  # a simulated engine takes one, whatever its connector does
        port_names = (SIDE_CHANNEL,)
    names = [(role, f"{role}-{i}") for role, pool in spec.pools().items() for i in range(pool.replicas)]
    for role, pool in spec.pools().items():
        if pool.replicas == 0:
            raise CommandError(f"spec.{role}.replicas is 0; `pdx up` needs at least one engine of each role.")
    shared, beside = _services(spec, [name for _, name in names])
    ports = len(names) * (1 + len(port_names)) + sum(len(each.service.ports) for each in (*shared, *beside))
    free = iter(allocate(ports))
    common = {each.service.name: _site(each.service, free, {}) for each in shared}
    own = {each.name: _site(each.service, free, common) for each in beside}
    code = _code(spec)

    def site(engine: str) -> Site:
        services = {**common, **{each.service.name: own[each.name] for each in beside if each.engine == engine}}
        at = {name: next(free) for name in port_names}
        files = f"{storage}/{engine}"
        return Site(HOST, at, storage, code, services, files, pool_bytes(spec), pairing_revision(spec))

    engines = tuple(_engine(spec, role, name, kind, next(free), site(name)) for role, name in names)
    gateway = _gateway(spec, engines, port, admin)
    sites = {**common, **own}
    services = [_service(spec, each, sites[each.name]) for each in (*shared, *beside)]
    programs = tuple(services) if kind is EngineKind.VLLM else ()
    return Layout(engines, gateway, Program("gateway", gateway.argv, {}, admin), programs)


@dataclass(frozen=True, slots=True)
class _Placed:
    """A side service, and the engine that it is beside, where it is beside one."""

    service: SideService
    engine: str = ""

    @property
    def name(self) -> str:
        return f"{self.service.name}-{self.engine}" if self.engine else self.service.name


def _services(spec: Spec, engines: Sequence[str]) -> tuple[list[_Placed], list[_Placed]]:
    """Those that all engines share, and those of each."""
    needed = side_services(spec)
    shared = [_Placed(service) for service in needed if not service.is_sidecar]
    return shared, [_Placed(service, engine) for service in needed if service.is_sidecar for engine in engines]


def _site(service: SideService, free: Iterator[int], others: Mapping[str, Site]) -> Site:
    return Site(HOST, {name: next(free) for name in service.ports}, services=others)


def _service(spec: Spec, placed: _Placed, site: Site) -> Program:
    service = placed.service
    argv = service_command(spec, service, site)
    env = {variable.name: variable.value for variable in spec.engine.env}
    return Program(placed.name, argv, env, site.ports[service.probe_port], service.probe_path)


def _engine(spec: Spec, role: Role, name: str, kind: EngineKind, port: int, site: Site) -> EngineProgram:
    command = engine_command(spec, role, site=site, listen=HOST, port=port)
    if kind is EngineKind.SIM:
        argv, env = _sim(spec, role, port, site), {}
    else:
        argv, env = ("vllm", *command.args), dict(command.env)
    files = {f"{site.files}/{file}": content for file, content in command.files}
    return EngineProgram(name, argv, env, port, role=role, side_ports=site.ports, files=files)


def _code(spec: Spec) -> str | None:
    custom = spec.kv_transfer.custom
    directory = custom.code.directory if custom is not None and custom.code is not None else None
    return str(Path(directory).absolute()) if directory is not None else None


def _sim(spec: Spec, role: Role, port: int, site: Site) -> tuple[str, ...]:
    argv = [*PDX, "sim", "--listen", f"{HOST}:{port}", "--role", role]
    argv += ["--model", spec.model.served_name or spec.model.name]
    if spec.engine.max_model_len is not None:
        argv += ["--max-model-len", str(spec.engine.max_model_len)]
    if spec.engine.block_size is not None:
        argv += ["--block-size", str(spec.engine.block_size)]
    if role is not Role.AGGREGATED:
        argv += ["--connector", spec.connector.name, "--order", spec.order]
        argv += ["--protocol", spec.protocol] if spec.protocol else []
        for side_port in site.ports.values():
            argv += ["--side-channel", f"{HOST}:{side_port}"]
        argv += ["--storage", site.storage]
        argv += ["--on-load-failure", spec.kv_transfer.on_load_failure]
        if (lease := connector_config(spec).get(LEASE)) is not None:
            argv += ["--lease-seconds", str(lease)]
    return tuple(argv)


def _gateway(spec: Spec, engines: tuple[EngineProgram, ...], port: int, admin: int) -> Program:
    argv = [*PDX, "gateway", "--listen", f"{HOST}:{port}", "--admin", f"{HOST}:{admin}"]
    for role in spec.pools():
        argv += [f"--{role}", *(engine.url for engine in engines if engine.role is role)]
    if spec.mode is Mode.DISAGGREGATED:
        argv += ["--connector", spec.connector.name, "--order", spec.order]
        argv += ["--protocol", spec.protocol] if spec.protocol else []
        argv += _identity_ports(spec, [engine for engine in engines if engine.role is Role.PREFILL])
    argv += ["--workers", str(spec.gateway.workers), "--debug-headers", *gateway_flags(spec)]
    return Program("gateway", tuple(argv), {}, port)


def _identity_ports(spec: Spec, prefill: Sequence[EngineProgram]) -> list[str]:
    family = spec.connector.family(spec.order)
    if not isinstance(family, Push) or not isinstance(family.identity, AtBootstrap):
        return []
    return ["--identity-ports", *(str(engine.side_ports[family.identity.port]) for engine in prefill)]


def environment(base: Mapping[str, str], extra: Mapping[str, str]) -> dict[str, str]:
    """A child's environment: no PYTHON* of the caller's, programs of this installation found first, then `extra`."""
    inherited = {name: value for name, value in base.items() if not name.startswith("PYTHON")}
    bin_directory = str(Path(sys.executable).parent)
    path = os.pathsep.join([bin_directory, inherited.get("PATH", os.defpath)])
    return {**inherited, "PATH": path, **extra}


def check_vllm(spec: Spec) -> None:
    """Refuse a run with real engines on a machine that has no vLLM, not the model, or not the connector's code."""
    if shutil.which("vllm", path=environment(os.environ, {})["PATH"]) is None:
        raise CommandError("vLLM is not installed; run `make install`, or use simulated engines with --engine sim.")
    _check_code(spec)
    _check_programs(spec)
    source = spec.model.source
    if source is None:
        return
    if source.path is None:
        raise CommandError(
            "spec.model.source.persistentVolumeClaim is a volume of a cluster; here, name a directory: "
            "--set spec.model.source='{path: /models/qwen}'."
        )
    if not (Path(source.path) / "config.json").is_file():
        raise CommandError(f"There is no model at {source.path}; make a tiny one with `pdx tiny-model {source.path}`.")


def _check_code(spec: Spec) -> None:
    custom = spec.kv_transfer.custom if spec.mode is Mode.DISAGGREGATED else None
    if custom is None or custom.code is None:
        return
    where = "spec.kvTransfer.custom.code"
    if custom.code.directory is None:
        raise CommandError(
            f"{where}.configMap is of a cluster; here, name a directory: --set {where}.directory=my-connector."
        )
    if not Path(custom.code.directory).is_dir():
        raise CommandError(f"{where}.directory: there is no directory {custom.code.directory}.")


def _check_programs(spec: Spec) -> None:
    for program in dict.fromkeys(service.program for service in side_services(spec)):
        if shutil.which(program, path=environment(os.environ, {})["PATH"]) is None:
            raise CommandError(
                f"Connector {spec.connector.name} needs the program {program}, which is not installed; run "
                f"`make install-{program.partition('_')[0]}`, or use simulated engines with --engine sim."
            )
