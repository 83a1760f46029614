"""A pod as an endpoint: pure, from the JSON the API server sends."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pdx_api.connectors import choose
from pdx_api.names import (
    ANNOTATION_CONNECTOR,
    ANNOTATION_ORDER,
    ANNOTATION_PROTOCOL,
    ENGINE_CONTAINER,
    ENGINE_PORT,
    LABEL_REVISION,
    LABEL_ROLE,
    PORT_HTTP,
    Order,
    Role,
)
from pdx_proxy.config.settings import Address, EndpointSpec

Pod = Mapping[str, Any]

_ENDED: Final = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class NoEndpoint:
    """Why a pod is no endpoint."""

    reason: str
    passing: bool = False
    """Whether every pod is like this for a while, so that nobody needs to be told."""


class _UnfitError(Exception):
    pass


def read_pod(pod: Pod) -> EndpointSpec | NoEndpoint:
    """The endpoint that a pod is. An evicted pod keeps its IP, so its phase decides before its address does."""
    metadata, status = _mapping(pod, "metadata"), _mapping(pod, "status")
    phase, ip = status.get("phase"), status.get("podIP")
    if phase in _ENDED:
        return NoEndpoint(f"has ended ({phase})", passing=True)
    if not isinstance(ip, str) or not ip:
        return NoEndpoint("has no IP yet", passing=True)
    try:
        role = _role(_mapping(metadata, "labels"))
        revision = _text(_mapping(metadata, "labels"), LABEL_REVISION, "label")
        connector, order, protocol = _wiring(_mapping(metadata, "annotations"), role)
    except _UnfitError as error:
        return NoEndpoint(str(error))
    return EndpointSpec(
        address=Address(ip, _port(pod)),
        role=role,
        revision=revision,
        connector=connector,
        order=order,
        protocol=protocol,
        pod=str(metadata.get("name", "")),
        instance=_instance(metadata, status),
        ready=_is_ready(status),
        leaving="deletionTimestamp" in metadata,
    )


class Pods:
    """The engine pods, as the API server told of them last. `say` is told once of a pod that can not be used."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._found: dict[str, EndpointSpec | NoEndpoint] = {}

    @property
    def endpoints(self) -> list[EndpointSpec]:
        """Those that are endpoints."""
        return [found for found in self._found.values() if isinstance(found, EndpointSpec)]

    def replace(self, pods: Iterable[Pod]) -> None:
        """These are all the pods there are."""
        before, self._found = self._found, {}
        for pod in pods:
            self._put(pod, before.get(_name(pod)))

    def put(self, pod: Pod) -> None:
        """A pod is there, new or changed."""
        self._put(pod, self._found.get(_name(pod)))

    def remove(self, pod: Pod) -> None:
        """A pod is gone."""
        self._found.pop(_name(pod), None)

    def _put(self, pod: Pod, before: EndpointSpec | NoEndpoint | None) -> None:
        found = self._found[_name(pod)] = read_pod(pod)
        if isinstance(found, NoEndpoint) and not found.passing and found != before:
            self._say(f"pod {_name(pod)} {found.reason}; it is not used")


def _name(pod: Pod) -> str:
    return str(_mapping(pod, "metadata").get("name", ""))


def _role(labels: Mapping[str, Any]) -> Role:
    text = _text(labels, LABEL_ROLE, "label")
    if text not in list(Role):
        raise _UnfitError(f"has the role {text!r}, which this gateway does not know")
    return Role(text)


def _wiring(annotations: Mapping[str, Any], role: Role) -> tuple[str, Order, str]:
    if role is Role.AGGREGATED:
        return "", Order.PREFILL_FIRST, ""
    connector = _text(annotations, ANNOTATION_CONNECTOR, "annotation")
    order = _text(annotations, ANNOTATION_ORDER, "annotation")
    if order not in list(Order):
        raise _UnfitError(f"has the order {order!r}, which this gateway does not know")
    protocol = str(annotations.get(ANNOTATION_PROTOCOL, ""))
    try:
        choose(connector, Order(order), protocol)
    except ValueError as error:
        raise _UnfitError(f"is wired in a way that this gateway does not speak: {error}") from error
    return connector, Order(order), protocol


def _text(fields: Mapping[str, Any], name: str, kind: str) -> str:
    text = fields.get(name)
    if not isinstance(text, str) or not text:
        raise _UnfitError(f"has no {kind} {name}")
    return text


def _port(pod: Pod) -> int:
    containers = _mappings(_mapping(pod, "spec"), "containers")
    ports = [port for c in containers if c.get("name") == ENGINE_CONTAINER for port in _mappings(c, "ports")]
    number = next((port.get("containerPort") for port in ports if port.get("name") == PORT_HTTP), None)
    return number if isinstance(number, int) else ENGINE_PORT


def _instance(metadata: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    """Names one start of the engine's container: another pod, container or count of restarts is another start."""
    containers = _mappings(status, "containerStatuses")
    engine = next((c for c in containers if c.get("name") == ENGINE_CONTAINER), {})
    return f"{metadata.get('uid')}/{engine.get('containerID', '')}/{engine.get('restartCount', 0)}"


def _is_ready(status: Mapping[str, Any]) -> bool:
    """Also while only what runs beside the engine, as an init container that goes on, is started anew.

    A node that is lost is another matter: it leaves the condition's reason as it was.
    """
    ready = next((c for c in _mappings(status, "conditions") if c.get("type") == "Ready"), {})
    if ready.get("status") == "True":
        return True
    containers = _mappings(status, "containerStatuses")
    started = bool(containers) and all(c.get("ready") is True for c in containers)
    return ready.get("reason") == "ContainersNotReady" and started


def _mapping(fields: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = fields.get(name)
    return found if isinstance(found, Mapping) else {}


def _mappings(fields: Mapping[str, Any], name: str) -> Sequence[Mapping[str, Any]]:
    found = fields.get(name)
    return [each for each in found if isinstance(each, Mapping)] if isinstance(found, list) else []
