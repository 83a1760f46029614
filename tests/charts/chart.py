"""The chart as helm renders it, and what is written from it: `python -m tests.charts.chart` rewrites

* `tests/charts/golden/*.yaml`, the renders of the value sets beside them;
* the table of values in `docs/install.md`, from the comments in `values.yaml`.
"""

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
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
GUIDE: Final = ROOT / "docs" / "install.md"
SETS: Final = tuple(sorted(path.name.removesuffix(".values.yaml") for path in GOLDEN.glob("*.values.yaml")))
POD_MONITORS: Final = "monitoring.coreos.com/v1/PodMonitor"
SERVICE_MONITORS: Final = "monitoring.coreos.com/v1/ServiceMonitor"
RULES: Final = "monitoring.coreos.com/v1/PrometheusRule"
NAMESPACE: Final = "pdx-system"
CRD: Final = "customresourcedefinition/pddeployments.pdx.dev"

_TABLE: Final = re.compile(r"(?<=<!-- values -->\n).*?(?=<!-- /values -->)", re.DOTALL)
_KEY: Final = re.compile(r"( *)([A-Za-z]+):(?: (.*))?")


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


def documented_values(text: str) -> Iterator[tuple[str, str, str]]:
    """Path, default and comment of every value in values.yaml that has a comment."""
    path: list[str] = []
    comment: list[str] = []
    for line in text.splitlines():
        if line.lstrip().startswith("# "):
            comment.append(line.lstrip()[2:])
        elif (match := _KEY.fullmatch(line)) is not None:
            path[len(match[1]) // 2 :] = [match[2]]
            if comment:
                yield ".".join(path), _default(text, path), " ".join(comment)
            comment = []
        else:
            comment = []


def values_table(text: str) -> str:
    """The documented values as a table."""
    rows = [f"| `{path}` | {default} | {comment} |\n" for path, default, comment in documented_values(text)]
    return "| value | default | meaning |\n|---|---|---|\n" + "".join(rows)


def guide(current: str, values: str) -> str:
    """The guide with the table of these values."""
    return _TABLE.sub(lambda _: values_table(values), current)


def written(chart: Chart) -> Mapping[Path, str]:
    """Every file that is written from the chart."""
    values = (CHART / "values.yaml").read_text(encoding="utf-8")
    renders = {GOLDEN / f"{name}.yaml": chart.golden(name) for name in SETS}
    return {**renders, GUIDE: guide(GUIDE.read_text(encoding="utf-8"), values)}


def _default(text: str, path: list[str]) -> str:
    value: Any = yaml.safe_load(text)
    for key in path:
        value = value[key]
    if isinstance(value, dict) and value:
        shown = yaml.safe_dump(value, default_flow_style=True, width=10**6, sort_keys=False).strip()
        return f"`{shown}`"
    return f'`"{value}"`' if isinstance(value, str) else f"`{yaml.safe_dump(value).split(chr(10))[0]}`"


def main() -> int:
    """Rewrite what differs."""
    for path, text in written(Chart(cluster_programs([HELM])["helm"])).items():
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            sys.stdout.write(f"{path.relative_to(ROOT)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
