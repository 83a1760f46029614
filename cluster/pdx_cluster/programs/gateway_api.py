"""The CRDs of the Gateway API: files of its Go module, which Go's module proxy serves and go.sum verifies."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Final

from pdx_cluster.errors import ClusterError, MissingError
from pdx_cluster.programs.kubernetes import TOOLS

MODULE: Final = "sigs.k8s.io/gateway-api"


def gateway_api_crds() -> tuple[Path, ...]:
    """Return the files of the standard channel's CRDs; raises ClusterError."""
    folder = _module() / "config" / "crd" / "standard"
    return tuple(sorted(folder.glob("gateway.networking.k8s.io_*.yaml")))


def _module() -> Path:
    """Return the module's folder in Go's cache."""
    go = shutil.which("go")
    if go is None:
        raise MissingError("The Gateway API's CRDs are in a Go module, and there is no Go: install Go 1.26.")
    command = [go, "mod", "download", "-json", MODULE]
    done = subprocess.run(command, cwd=TOOLS / "gateway-api", capture_output=True, text=True, check=False)
    found = json.loads(done.stdout) if done.stdout else {}
    if done.returncode or "Dir" not in found:
        raise ClusterError(f"`go mod download {MODULE}` failed: {found.get('Error') or done.stderr.strip()}")
    return Path(found["Dir"])
