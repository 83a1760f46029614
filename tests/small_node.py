"""A node of two cores, and what the rest of its pods request beside a PDDeployment's."""

from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import yaml

CORES: Final = 2
SYSTEM_CORES: Final = Fraction("0.95")
"""What the pods of a one-node cluster of kind request: API server 250m, controller manager 200m, and 100m each for the
scheduler, etcd, the network and two CoreDNS (kubeadm's and kind's manifests)."""
_CHART: Final = Path(__file__).parent / "charts" / "golden" / "default.yaml"


def operator_deployment() -> dict[str, Any]:
    """The operator's Deployment, as helm renders the chart with its defaults."""
    bodies = [body for body in yaml.safe_load_all(_CHART.read_text()) if body]
    (found,) = [body for body in bodies if body["kind"] == "Deployment"]
    assert isinstance(found, dict)
    return found
