"""How many devices of a cluster are free, from its nodes and pods. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from pdx_api.quantities import quantity
from pdx_api.spec.types import Spec

Body = Mapping[str, Any]


def resource_of(spec: Spec) -> str | None:
    """The extended resource that the engines request, such as nvidia.com/gpu; None if they request none."""
    for pool in (spec.prefill, spec.decode, spec.aggregated):
        if pool is not None:
            for name in (*pool.resources.limits, *pool.resources.requests):
                if "/" in name:
                    return name
    return None


def free_devices(nodes: Sequence[Body], pods: Sequence[Body], resource: str) -> int:
    """Return how many devices of schedulable nodes no pod has."""
    free = 0
    for node in nodes:
        if not _is_usable(node):
            continue
        name = node["metadata"]["name"]
        total = _amount((node.get("status") or {}).get("allocatable") or {}, resource)
        used = sum(_requested(pod, resource) for pod in pods if _runs_on(pod, name))
        free += max(0, total - used)
    return free


def _is_usable(node: Body) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or ()
    ready = any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)
    return ready and not (node.get("spec") or {}).get("unschedulable")


def _runs_on(pod: Body, node: str) -> bool:
    phase = (pod.get("status") or {}).get("phase")
    return (pod.get("spec") or {}).get("nodeName") == node and phase not in ("Succeeded", "Failed")


def _requested(pod: Body, resource: str) -> int:
    """As the scheduler counts: the sum of containers, or the largest init container if that is more."""
    spec = pod.get("spec") or {}

    def of(containers: Sequence[Body]) -> list[int]:
        return [_amount(((each.get("resources") or {}).get("requests")) or {}, resource) for each in containers]

    return max(sum(of(spec.get("containers") or ())), *of(spec.get("initContainers") or ()), 0)


def _amount(amounts: Body, resource: str) -> int:
    value = quantity(amounts.get(resource, 0))
    return int(value) if value is not None else 0
