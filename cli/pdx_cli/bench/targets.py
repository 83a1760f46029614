"""What `pdx bench` sends its load to: a `pdx up` of this machine, a PDDeployment of a cluster, or any URL."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from pdx_api.kube.client import ApiError
from pdx_api.kube.kinds import CHILD_KINDS, POD
from pdx_api.names import ENGINE_CONTAINER, GATEWAY_SERVICE_PORT, LABEL_DEPLOYMENT, Mode, Role, gateway_name
from pdx_api.spec.parse import InvalidDeploymentError, parse
from pdx_api.spec.types import PDDeployment, Spec
from pdx_cli.bench.analysis.arms import Arm
from pdx_cli.bench.load.connection import Server
from pdx_cli.bench.meters import ClusterMeters, LocalMeters, Meters, NoMeters
from pdx_cli.errors import CommandError
from pdx_cli.inputs.target import InCluster, Local
from pdx_cli.sources.access import ObjectAccess, access_to
from pdx_cli.sources.answers import STATE_PATH
from pdx_cli.sources.client import AnswerError, Client

_SERVICE: Final = next(kind for kind in CHILD_KINDS if kind.name == "Service")
_CONNECT_SECONDS: Final = 3.0


@dataclass(frozen=True, slots=True)
class Target:
    """A server that is ready."""

    name: str
    server: Server
    meters: Meters
    arm: Arm
    model: str = ""
    """Empty: the first that it serves."""
    spec: Mapping[str, Any] = field(default_factory=dict)
    """The object's spec, as far as there is one."""
    shares_cores: str = ""
    has_phases: bool = True
    images: tuple[str, ...] = ()
    """Images of its engines, where there are any."""


@asynccontextmanager
async def by_url(url: str, admin: str | None) -> AsyncIterator[Target]:
    """A server at a URL. With the URL of its gateway's admin port, phases are measured too."""
    server = Server.of(url)
    name = server.url if "@" in url else url  # a password would be part of every title and file name
    if admin is None:
        yield Target(name, server, NoMeters(), Arm("the server", yours=True), has_phases=False)
        return
    async with Client() as client:
        arm = await _arm(client, admin)
        yield Target(name, server, LocalMeters(admin.rstrip("/"), client), arm)


@asynccontextmanager
async def on_this_machine(local: Local, *, sends: bool) -> AsyncIterator[Target]:
    """A run of `pdx up`, or a gateway of which only the admin port is known: it can be observed, without requests."""
    endpoint = local.run.endpoint if local.run else local.admin
    if local.run is None and sends:
        raise CommandError("--admin alone names no server for the requests; add --url.", code=2)
    async with Client() as client:
        arm = await _arm(client, local.admin)
        shared = shares_cores(local.run.engine if local.run else "")
        model = local.run.model if local.run else ""
        meters = LocalMeters(local.admin, client, local.names)
        yield Target(local.name, Server.of(endpoint), meters, arm, model, shares_cores=shared)


@asynccontextmanager
async def in_cluster(chosen: InCluster, url: str | None) -> AsyncIterator[Target]:
    """A PDDeployment. Requests go to its gateway's Service, or to `url`."""
    async with access_to(chosen) as access:
        yield await of_object(access, await access.object(), url)


async def of_object(access: ObjectAccess, body: Mapping[str, Any], url: str | None) -> Target:
    """The target of an object; raises CommandError if it is invalid, or its gateway cannot be reached from here."""
    spec = deployment_of(body).spec
    server = Server.of(url) if url else await service_of(access)
    images = await images_of(access)
    model = spec.model.served_name or spec.model.name
    return Target(access.name, server, ClusterMeters(access), arm_of(spec), model, body["spec"], images=images)


def deployment_of(body: Mapping[str, Any]) -> PDDeployment:
    """Parse an object of a cluster; raises CommandError with code 2."""
    try:
        return parse(body, tolerant=True)
    except InvalidDeploymentError as error:
        raise CommandError(f"The object is invalid, so no gateway serves it: {error}", code=2) from error


async def images_of(access: ObjectAccess) -> tuple[str, ...]:
    """The images that the engines run, by digest where the node reports it; empty if pods cannot be listed."""
    try:
        pods = (await access.kube.list(POD, access.namespace, labelSelector=f"{LABEL_DEPLOYMENT}={access.name}"))[
            "items"
        ]
    except ApiError:
        return ()
    statuses = [each for pod in pods for each in (pod.get("status") or {}).get("containerStatuses") or ()]
    found = {str(each.get("imageID") or each.get("image")) for each in statuses if each.get("name") == ENGINE_CONTAINER}
    return tuple(sorted(found))


async def service_of(access: ObjectAccess) -> Server:
    """The address of the gateway's Service that accepts a connection from here; raises CommandError."""
    name = gateway_name(access.name)
    try:
        body = await access.kube.get(_SERVICE, access.namespace, name)
    except ApiError as error:
        raise CommandError(f"The Service {name} cannot be read: {str(error).rstrip('.')}.", code=2) from error
    spec, status = body.get("spec") or {}, body.get("status") or {}
    port = next((each["port"] for each in spec.get("ports") or ()), GATEWAY_SERVICE_PORT)
    balancers = (status.get("loadBalancer") or {}).get("ingress") or ()
    hosts = [spec.get("clusterIP"), *(each.get("ip") or each.get("hostname") for each in balancers)]
    for host in (each for each in hosts if each and each != "None"):
        if await _accepts(host, port):
            return Server(host, port, False, "")
    raise CommandError(
        f"The gateway of {access.name} cannot be reached from here at {' or '.join(map(str, hosts))}: run `pdx bench` "
        "in the cluster, or name an address of the gateway with --url. A port-forward would limit what is measured."
    )


async def _accepts(host: str, port: int) -> bool:
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(_CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(host, port)
        writer.close()
        return True
    return False


def arm_of(spec: Spec) -> Arm:
    """The arm that an object is."""
    counts = {role: pool.initial_replicas for role, pool in spec.pools().items()}
    if spec.mode is Mode.AGGREGATED:
        count = counts[Role.AGGREGATED]
        return Arm(f"aggregated {count}", aggregated=count, yours=True)
    prefill, decode = counts[Role.PREFILL], counts[Role.DECODE]
    above = spec.routing.disaggregate_above_tokens
    return Arm(f"P:D {prefill}:{decode}", split=True, prefill=prefill, decode=decode, above=above, yours=True)


async def _arm(client: Client, admin: str) -> Arm:
    """The arm that a gateway serves, by its endpoints."""
    try:
        state = await client.json(f"{admin.rstrip('/')}{STATE_PATH}")
        roles = [str(each["role"]) for each in state["endpoints"]]
    except (AnswerError, KeyError, TypeError) as error:
        text = str(error) if isinstance(error, AnswerError) else f"{admin} is not the admin port of a gateway"
        raise CommandError(f"{text}; write the URL of a gateway's admin port with --admin.", code=2) from error
    prefill, decode, aggregated = (roles.count(role) for role in ("prefill", "decode", "aggregated"))
    if prefill:
        return Arm(f"P:D {prefill}:{decode}", split=True, prefill=prefill, decode=decode, yours=True)
    return Arm(f"aggregated {aggregated or decode}", aggregated=aggregated or decode, yours=True)


def shares_cores(engine: str) -> str:
    """Why a run on this machine says nothing about splitting; empty if it may."""
    return "the engines share the cores of this machine" if engine == "vllm" else ""
