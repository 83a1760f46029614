"""Reads an endpoint from the JSON of a pod. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pdx_api.connectors import choose
from pdx_api.names import (
    ANNOTATION_CONNECTOR,
    ANNOTATION_ORDER,
    ANNOTATION_PATCHES,
    ANNOTATION_PROTOCOL,
    ANNOTATION_RANKS,
    ANNOTATION_SEQUENCES,
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

MAX_RANKS: Final = 64
MAX_SEQUENCES: Final = 999_999
_ENDED: Final = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class UnusablePod:
    """Why a pod is not an endpoint."""

    reason: str
    expected: bool = False
    """Every pod is in this state at some time, so it is not logged."""


class _UnusablePodError(Exception):
    pass


def read_pod(pod: Pod) -> EndpointSpec | UnusablePod:
    """Return the endpoint of a pod. The phase comes before the IP, because an evicted pod keeps its IP."""
    metadata, status = _mapping(pod, "metadata"), _mapping(pod, "status")
    phase, ip = status.get("phase"), status.get("podIP")
    if phase in _ENDED:
        return UnusablePod(f"has ended ({phase})", expected=True)
    if not isinstance(ip, str) or not ip:
        return UnusablePod("has no IP yet", expected=True)
    try:
        role = _role(_mapping(metadata, "labels"))
        revision = _text(_mapping(metadata, "labels"), LABEL_REVISION, "label")
        connector, order, protocol = _wiring(_mapping(metadata, "annotations"), role)
        annotations = _mapping(metadata, "annotations")
        ranks = _number(annotations, ANNOTATION_RANKS, "data-parallel ranks", MAX_RANKS)
        sequences = _number(annotations, ANNOTATION_SEQUENCES, "sequences", MAX_SEQUENCES, absent=0)
    except _UnusablePodError as error:
        return UnusablePod(str(error))
    return EndpointSpec(
        address=Address(ip, _port(pod)),
        role=role,
        revision=revision,
        connector=connector,
        order=order,
        protocol=protocol,
        ranks=ranks,
        any_patch=annotations.get(ANNOTATION_PATCHES) == "any",
        sequences=sequences,
        pod=str(metadata.get("name", "")),
        instance=_instance(metadata, status),
        ready=_is_ready(status),
        leaving="deletionTimestamp" in metadata,
    )


class Pods:
    """The engine pods in the state that the API server reported last; a store of an informer.

    `log` receives each unusable pod once, `sink` all endpoints after each change.
    """

    def __init__(self, log: Callable[[str], None], sink: Callable[[Iterable[EndpointSpec]], None]) -> None:
        self._log = log
        self._sink = sink
        self._found: dict[str, EndpointSpec | UnusablePod] = {}
        self._listed: dict[str, EndpointSpec | UnusablePod] | None = None
        """The pods of a list that has begun."""

    def begin(self) -> None:
        """See `Store`."""
        self._listed = {}

    def put(self, pod: Pod) -> None:
        """See `Store`."""
        name, found = _name(pod), read_pod(pod)
        if self._listed is not None:
            self._listed[name] = found
        else:
            self._report(name, found)
            self._found[name] = found
            self._send()

    def end(self) -> None:
        """See `Store`."""
        listed, self._listed = self._listed or {}, None
        for name, found in listed.items():
            self._report(name, found)
        self._found = listed
        self._send()

    def delete(self, pod: Pod) -> None:
        """See `Store`."""
        self._found.pop(_name(pod), None)
        self._send()

    def _report(self, name: str, found: EndpointSpec | UnusablePod) -> None:
        if isinstance(found, UnusablePod) and not found.expected and found != self._found.get(name):
            self._log(f"pod {name} {found.reason}; it is not used")

    def _send(self) -> None:
        self._sink([found for found in self._found.values() if isinstance(found, EndpointSpec)])


def _name(pod: Pod) -> str:
    return str(_mapping(pod, "metadata").get("name", ""))


def _role(labels: Mapping[str, Any]) -> Role:
    text = _text(labels, LABEL_ROLE, "label")
    if text not in list(Role):
        raise _UnusablePodError(f"has the role {text!r}, which this gateway does not support")
    return Role(text)


def _wiring(annotations: Mapping[str, Any], role: Role) -> tuple[str, Order, str]:
    if role is Role.AGGREGATED:
        return "", Order.PREFILL_FIRST, ""
    connector = _text(annotations, ANNOTATION_CONNECTOR, "annotation")
    order = _text(annotations, ANNOTATION_ORDER, "annotation")
    if order not in list(Order):
        raise _UnusablePodError(f"has the order {order!r}, which this gateway does not support")
    protocol = str(annotations.get(ANNOTATION_PROTOCOL, ""))
    try:
        choose(connector, Order(order), protocol)
    except ValueError as error:
        raise _UnusablePodError(f"has a wiring that this gateway does not support: {error}") from error
    return connector, Order(order), protocol


def _number(annotations: Mapping[str, Any], name: str, what: str, most: int, absent: int = 1) -> int:
    text = annotations.get(name)
    if text is None:
        return absent
    if not isinstance(text, str) or not text.isascii() or not text.isdigit() or not 1 <= int(text[:12]) <= most:
        raise _UnusablePodError(f"has {text!r:.20} {what}, which is no number from 1 to {most}")
    return int(text)


def _text(fields: Mapping[str, Any], name: str, kind: str) -> str:
    text = fields.get(name)
    if not isinstance(text, str) or not text:
        raise _UnusablePodError(f"has no {kind} {name}")
    return text


def _port(pod: Pod) -> int:
    containers = _mappings(_mapping(pod, "spec"), "containers")
    ports = [port for c in containers if c.get("name") == ENGINE_CONTAINER for port in _mappings(c, "ports")]
    number = next((port.get("containerPort") for port in ports if port.get("name") == PORT_HTTP), None)
    return number if isinstance(number, int) else ENGINE_PORT


def _instance(metadata: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    """Identify one start of the engine's container by pod, container and restart count."""
    containers = _mappings(status, "containerStatuses")
    engine = next((c for c in containers if c.get("name") == ENGINE_CONTAINER), {})
    return f"{metadata.get('uid')}/{engine.get('containerID', '')}/{engine.get('restartCount', 0)}"


def _is_ready(status: Mapping[str, Any]) -> bool:
    """Whether the engine is ready. A sidecar (an init container that keeps running) may be restarting meanwhile.

    When a node is lost, the reason of the pod's Ready condition stays what it was, so the pod is not ready.
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
