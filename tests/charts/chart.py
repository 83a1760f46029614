"""The chart as helm renders it.

`python -m tests.charts.chart` rewrites `tests/charts/golden/*.yaml`, the renders of the value sets beside them.
"""

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from pdx_cluster.app.cluster import Cluster
from pdx_cluster.programs.kubernetes import HELM, cluster_programs

ROOT: Final = Path(__file__).parents[2]
CHART: Final = ROOT / "charts" / "pdx"
GOLDEN: Final = Path(__file__).parent / "golden"
OLDER: Final = Path(__file__).parent / "fixtures" / "pdx-0.0.1"
SETS: Final = tuple(sorted(path.name.removesuffix(".values.yaml") for path in GOLDEN.glob("*.values.yaml")))
POD_MONITORS: Final = "monitoring.coreos.com/v1/PodMonitor"
SERVICE_MONITORS: Final = "monitoring.coreos.com/v1/ServiceMonitor"
RULES: Final = "monitoring.coreos.com/v1/PrometheusRule"
NAMESPACE: Final = "pdx-system"
CRD: Final = "customresourcedefinition/pddeployments.pdx.dev"


class HelmError(Exception):
    """What helm complained of."""


@dataclass(frozen=True)
class Chart:
    """The chart in the hands of one helm."""

    helm: Path

    def run(self, *arguments: str) -> str:
        """What helm prints; raises HelmError."""
        done = subprocess.run([self.helm, *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            raise HelmError(done.stderr)
        return done.stdout

    def render(self, *arguments: str) -> str:
        """All objects as YAML."""
        return self.run("template", "pdx", str(CHART), "--namespace", NAMESPACE, *arguments)

    def objects(self, *arguments: str) -> list[dict[str, Any]]:
        """All objects."""
        return [body for body in yaml.safe_load_all(self.render(*arguments)) if body]

    def golden(self, name: str) -> str:
        """The render of a value set. The CRD is left out: another test compares it with the checkout's."""
        values = [
            "--values",
            str(GOLDEN / f"{name}.values.yaml"),
            "--api-versions",
            f"{POD_MONITORS},{SERVICE_MONITORS}",
        ]
        return self.render(*values, "--set", "crds.install=false")


def install(cluster: Cluster, *arguments: str) -> str:
    """Install the chart as release `pdx`; what helm says."""
    return cluster.helm("install", "pdx", str(CHART), "--namespace", NAMESPACE, *arguments)


def written(chart: Chart) -> Mapping[Path, str]:
    """Every file that is written from the chart."""
    return {GOLDEN / f"{name}.yaml": chart.golden(name) for name in SETS}


def main() -> int:
    """Rewrite what differs."""
    for path, text in written(Chart(cluster_programs([HELM])["helm"])).items():
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            sys.stdout.write(f"{path.relative_to(ROOT)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
