"""The packaged chart, and the manifests for `kubectl apply`."""

import tempfile
from pathlib import Path
from typing import Final

from scripts.release.artifacts import repacked
from scripts.release.programs import ROOT, run

NAMESPACE: Final = "pdx-system"
_INSTALL: Final = """\
# PDX {version} in namespace pdx-system: what `helm template` writes for the chart with its default values.
# kubectl apply --server-side -f install.yaml
apiVersion: v1
kind: Namespace
metadata:
  name: pdx-system
"""


def package_chart(helm: Path, out: Path, epoch: int) -> Path:
    """Write the chart's archive without the times at which helm packs it; return it."""
    with tempfile.TemporaryDirectory() as folder:
        run([helm, "package", ROOT / "charts" / "pdx", "--destination", folder])
        (packed,) = Path(folder).glob("*.tgz")
        archive = out / packed.name
        archive.write_bytes(repacked(packed.read_bytes(), epoch))
    run([helm, "lint", archive])
    return archive


def install_manifest(helm: Path, chart: Path, version: str) -> str:
    """The chart's objects as one file. The pod of `helm test` is not among them."""
    rendered = run([helm, "template", "pdx", chart, "--namespace", NAMESPACE, "--skip-tests"])
    return _INSTALL.format(version=version) + rendered


def crds(root: Path = ROOT) -> str:
    """The CRDs alone, for installations that manage them apart from the chart."""
    return "---\n".join(path.read_text(encoding="utf-8") for path in sorted((root / "crds").glob("*.yaml")))
