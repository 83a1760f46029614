"""`podTemplate`: the user's overlay on a pod template. It is free form, except for what PDX sets."""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Final

from pydantic import ConfigDict, Field, StringConstraints

from pdx_api.connectors import CONNECTORS
from pdx_api.names import ENGINE_CONTAINER, GATEWAY_CONTAINER, GROUP, PORT_ADMIN, PORT_HTTP, SERVICE_CONTAINER
from pdx_api.rule import Rule
from pdx_api.spec.fields import Annotations, Labels, ListMap, Part

_KEYS_ARE_FREE: Final = Rule(
    f"self.all(key, !key.startsWith('{GROUP}/'))",
    f"keys that begin with {GROUP}/ are reserved for PDX; leave them out",
    lambda entries: not any(key.startswith(f"{GROUP}/") for key in entries),
)


class PodMetadata(Part):
    """Labels and annotations of the pods."""

    labels: Annotated[Labels, _KEYS_ARE_FREE] | None = Field(default=None, description="Further labels of the pods.")
    annotations: Annotated[Annotations, _KEYS_ARE_FREE] | None = Field(
        default=None, description="Further annotations of the pods."
    )


class ContainerPort(Part):
    """A port of a container, with any field of Kubernetes' ContainerPort."""

    model_config = ConfigDict(extra="allow")

    name: Annotated[str, StringConstraints(max_length=15)] | None = Field(default=None, description="Name of the port.")


class Container(Part):
    """A container of the pods, with any field of Kubernetes' Container."""

    model_config = ConfigDict(extra="allow")

    name: Annotated[str, StringConstraints(min_length=1, max_length=63)] = Field(description="Name of the container.")
    command: Annotated[list[Annotated[str, StringConstraints(max_length=8192)]], Field(max_length=64)] | None = Field(
        default=None, description="Command of a container that the overlay adds."
    )
    args: Annotated[list[Annotated[str, StringConstraints(max_length=8192)]], Field(max_length=64)] | None = Field(
        default=None, description="Arguments of a container that the overlay adds."
    )
    ports: Annotated[list[ContainerPort], Field(max_length=64)] | None = Field(
        default=None, description="Further ports."
    )


class PodSpec(Part):
    """The pods' spec, with any field of Kubernetes' PodSpec."""

    model_config = ConfigDict(extra="allow")

    containers: Annotated[list[Container], Field(max_length=16), ListMap("name")] | None = Field(
        default=None,
        description="Containers to change or to add. A container to change has the name of an existing one.",
    )


class PodTemplate(Part):
    """An overlay on a pod template."""

    metadata: PodMetadata | None = Field(default=None, description="Labels and annotations of the pods.")
    spec: PodSpec | None = Field(default=None, description="The pods' spec, as in Kubernetes.")

    def overlay(self) -> dict[str, Any]:
        """The user's overlay as a strategic merge patch of a pod template."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


def _rules(container: str, ports: Sequence[str]) -> tuple[Rule, ...]:
    """The rules of an overlay on pods in which PDX sets this container and these ports of it."""
    named = ", ".join(f"'{port}'" for port in ports)

    def each(condition: str) -> str:
        found = f"container.name != '{container}' || {condition}"
        return f"!has(self.spec) || !has(self.spec.containers) || self.spec.containers.all(container, {found})"

    return (
        Rule(
            each("!has(container.command) && !has(container.args)"),
            f"PDX sets command and args of the container {container}; leave them out",
            lambda template: all(c.command is None and c.args is None for c in _containers(template, container)),
        ),
        Rule(
            each(f"!has(container.ports) || !container.ports.exists(port, has(port.name) && port.name in [{named}])"),
            f"PDX sets these ports of the container {container}: {', '.join(ports)}; leave them out",
            lambda template: (
                not any(port.name in ports for c in _containers(template, container) for port in c.ports or ())
            ),
        ),
    )


def _containers(template: PodTemplate, name: str) -> list[Container]:
    containers = (template.spec.containers if template.spec else None) or []
    return [container for container in containers if container.name == name]


_CONNECTOR_PORTS: Final = sorted({name for connector in CONNECTORS.values() for name in connector.port_names})
_SERVICE_PORTS: Final = sorted({name for c in CONNECTORS.values() for each in c.services for name in each.ports})


class EnginePodTemplate(PodTemplate):
    """An overlay on the pod template of a role's engines."""

    rules: ClassVar[tuple[Rule, ...]] = _rules(ENGINE_CONTAINER, (PORT_HTTP, *_CONNECTOR_PORTS))


class GatewayPodTemplate(PodTemplate):
    """An overlay on the gateway's pod template."""

    rules: ClassVar[tuple[Rule, ...]] = _rules(GATEWAY_CONTAINER, (PORT_HTTP, PORT_ADMIN))


class ServicePodTemplate(PodTemplate):
    """An overlay on the pod template of a connector's side services."""

    rules: ClassVar[tuple[Rule, ...]] = _rules(SERVICE_CONTAINER, _SERVICE_PORTS)
