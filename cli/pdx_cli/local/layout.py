"""The processes of one `pdx up`, as values: their names, command lines, ports and files."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pdx_api.connectors.base import SideService, Site
from pdx_api.connectors.families import AtBootstrap, Push
from pdx_api.connectors.nixl import LEASE, SIDE_CHANNEL
from pdx_api.names import Mode, Role
from pdx_api.render.engines import (
    connector_config,
    engine_command,
    max_sequences,
    pairing_revision,
    pool_bytes,
    service_command,
    side_services,
)
from pdx_api.render.gateway_flags import gateway_flags
from pdx_api.spec.types import PDDeployment, Spec
from pdx_api.vllm.versions import abilities, stated
from pdx_cli.errors import InputError
from pdx_cli.local.engines import EngineKind
from pdx_cli.local.ports import HOST

PDX: Final = (sys.executable, "-P", "-m", "pdx_cli")
"""Command-line prefix of a child that is a `pdx` command. -P keeps the working directory out of its imports."""


@dataclass(frozen=True, slots=True)
class Program:
    """One process to start."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    """Added to the environment of `pdx up`."""
    port: int
    """Port of its HTTP API on the loopback address."""
    health: str = "/health"
    """Path that returns 200 when it serves."""

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
    """The connector's name of a port -> the port."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Files that it reads: path -> content."""


@dataclass(frozen=True, slots=True)
class Layout:
    """All processes of one run."""

    engines: tuple[EngineProgram, ...]
    gateway: Program
    admin: Program
    """The gateway's admin address, in the same process."""
    services: tuple[Program, ...] = ()
    """Side services; they start before the engines."""

    def of(self, role: Role) -> tuple[EngineProgram, ...]:
        """Return the engines of a role."""
        return tuple(engine for engine in self.engines if engine.role is role)

    def name_of(self, address: str | None) -> str | None:
        """Return the name of the engine at HOST:PORT."""
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
    """Lay out the programs of a deployment.

    `storage` is a directory of this run, for KV that engines share as files and for the files of each engine.
    `allocate(count)` returns free ports.
    """
    spec = deployment.spec
    port_names = tuple(spec.connector.port_names) if spec.mode is Mode.DISAGGREGATED else ()
    if kind is EngineKind.SIM and not port_names:  # a simulated engine always has one
        port_names = (SIDE_CHANNEL,)
    names = _engine_names(spec)
    shared, own = _services(spec, [name for _, name in names])
    ports = len(names) * (1 + len(port_names)) + sum(len(each.service.ports) for each in (*shared, *own))
    free = iter(allocate(ports))
    common = {each.service.name: _site(each.service, free, {}) for each in shared}
    own_sites = {each.name: _site(each.service, free, common) for each in own}

    def site(engine: str) -> Site:
        services = {**common, **{each.service.name: own_sites[each.name] for each in own if each.engine == engine}}
        return _engine_site(spec, {name: next(free) for name in port_names}, services, storage, f"{storage}/{engine}")

    engines = tuple(_engine(spec, role, name, kind, next(free), site(name)) for role, name in names)
    gateway = _gateway(spec, engines, port, admin, kind)
    sites = {**common, **own_sites}
    services = [_service(spec, each, sites[each.name]) for each in (*shared, *own)]
    programs = tuple(services) if kind is EngineKind.VLLM else ()
    return Layout(engines, gateway, Program("gateway", gateway.argv, {}, admin), programs)


def _engine_names(spec: Spec) -> list[tuple[Role, str]]:
    """Return role and name of every engine; raises InputError for a role without engines."""
    for role, pool in spec.pools().items():
        if pool.replicas == 0:
            raise InputError(f"spec.{role}.replicas is 0; `pdx up` needs at least one engine of each role.")
    return [(role, f"{role}-{i}") for role, pool in spec.pools().items() for i in range(pool.initial_replicas)]


@dataclass(frozen=True, slots=True)
class _Placed:
    """One process of a side service, and its engine if it is a sidecar."""

    service: SideService
    engine: str = ""

    @property
    def name(self) -> str:
        return f"{self.service.name}-{self.engine}" if self.engine else self.service.name


def _services(spec: Spec, engines: Sequence[str]) -> tuple[list[_Placed], list[_Placed]]:
    """Return the services that all engines share, and those of single engines."""
    needed = side_services(spec)
    shared = [_Placed(service) for service in needed if not service.is_sidecar]
    return shared, [_Placed(service, engine) for service in needed if service.is_sidecar for engine in engines]


def _site(service: SideService, free: Iterator[int], others: Mapping[str, Site]) -> Site:
    return Site(HOST, {name: next(free) for name in service.ports}, services=others)


def _engine_site(spec: Spec, ports: Mapping[str, int], services: Mapping[str, Site], storage: str, files: str) -> Site:
    return Site(HOST, ports, storage, _code(spec), services, files, pool_bytes(spec), pairing_revision(spec))


def _service(spec: Spec, placed: _Placed, site: Site) -> Program:
    service = placed.service
    argv = service_command(spec, service, site)
    env = {variable.name: variable.value for variable in spec.engine.env if variable.value is not None}
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
    if version := stated(spec.engine.version, spec.engine.image):
        argv += ["--vllm-version", f"{abilities(version).version}.0"]
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


def _gateway(spec: Spec, engines: tuple[EngineProgram, ...], port: int, admin: int, kind: EngineKind) -> Program:
    argv = [*PDX, "gateway", "--listen", f"{HOST}:{port}", "--admin", f"{HOST}:{admin}"]
    for role in spec.pools():
        argv += [f"--{role}", *(engine.url for engine in engines if engine.role is role)]
    if spec.mode is Mode.DISAGGREGATED:
        argv += ["--connector", spec.connector.name, "--order", spec.order]
        argv += ["--protocol", spec.protocol] if spec.protocol else []
        argv += _ranks(spec) if kind is EngineKind.VLLM else []  # a simulated engine has one
        argv += ["--any-patch-release"] if spec.connector.any_patch(spec.kv_transfer.config) else []
        argv += _identity_ports(spec, [engine for engine in engines if engine.role is Role.PREFILL])
    argv += _sequences(spec) if kind is EngineKind.VLLM else []
    argv += ["--workers", str(spec.gateway.workers), "--debug-headers", *gateway_flags(spec)]
    return Program("gateway", tuple(argv), {}, port)


def _ranks(spec: Spec) -> list[str]:
    ranks = (spec.prefill.parallelism.data if spec.prefill is not None else None) or 1
    return ["--prefill-ranks", str(ranks)] if ranks > 1 else []


def _sequences(spec: Spec) -> list[str]:
    flags = {
        role: "--prefill-max-num-seqs" if role is Role.PREFILL else "--decode-max-num-seqs" for role in spec.pools()
    }
    return [text for role, flag in flags.items() if (known := max_sequences(spec, role)) for text in (flag, str(known))]


def _identity_ports(spec: Spec, prefill: Sequence[EngineProgram]) -> list[str]:
    family = spec.connector.family(spec.order)
    if not isinstance(family, Push) or not isinstance(family.identity, AtBootstrap):
        return []
    return ["--identity-ports", *(str(engine.side_ports[family.identity.port]) for engine in prefill)]


def environment(base: Mapping[str, str], extra: Mapping[str, str]) -> dict[str, str]:
    """Return a child's environment: without PYTHON* variables, this installation first on PATH, then `extra`."""
    inherited = {name: value for name, value in base.items() if not name.startswith("PYTHON")}
    bin_directory = str(Path(sys.executable).parent)
    path = os.pathsep.join([bin_directory, inherited.get("PATH", os.defpath)])
    return {**inherited, "PATH": path, **extra}
