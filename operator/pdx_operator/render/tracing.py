"""The environment with which pods name themselves in traces. Pure."""

from pdx_api.spec.types import Spec
from pdx_operator.render.objects import POD_IP, Manifest


def trace_variables(spec: Spec, deployment: str) -> list[Manifest]:
    """Variables behind `address_variable`, so that spans name their pod; none without traces: those pods stay the same.

    The address is what a collector's k8sattributes processor finds the pod by.
    """
    if spec.observability.tracing is None:
        return []
    attributes = f"k8s.pod.ip=$({POD_IP}),pdx.deployment={deployment}"
    return [{"name": "OTEL_RESOURCE_ATTRIBUTES", "value": attributes}]
