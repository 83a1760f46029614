"""The package for PyPI, its SBOM and the licences of what it needs."""

import os
import sys
import zipfile
from pathlib import Path
from typing import Final

from scripts.release.artifacts import ReleaseError
from scripts.release.programs import ROOT, run

PACKAGES: Final = ("pdx_api", "pdx_cli", "pdx_operator", "pdx_proxy", "pdx_sim")
EXAMPLE: Final = "pdx_cli/local/example.yaml"
_LICENCES: Final = """\
# Licences of the dependencies of PDX {version}
The Python packages of `pdx-serving[cli]`. The images have some of them, and no others. The Debian packages of their
base have their licences in `/usr/share/doc` of the image. `make release-dry-run` writes this list with pip-licenses.

"""


def build(out: Path, epoch: int) -> Path:
    """Write sdist and wheel, check both, and return the wheel; raises ReleaseError."""
    run([sys.executable, "-m", "hatchling", "build", "-d", out], {"SOURCE_DATE_EPOCH": str(epoch)})
    (wheel,) = out.glob("*.whl")
    (sdist,) = out.glob("*.tar.gz")
    programs = Path(sys.executable).parent
    run([programs / "twine", "check", "--strict", wheel, sdist])
    run([programs / "check-wheel-contents", wheel])
    with zipfile.ZipFile(wheel) as archive:
        missing = {*(f"{name}/py.typed" for name in PACKAGES), EXAMPLE} - set(archive.namelist())
    if missing:
        raise ReleaseError(f"{wheel.name} lacks {', '.join(sorted(missing))}")
    return wheel


def install(wheel: Path, folder: Path) -> Path:
    """Make an environment with the wheel and its dependencies of the extra `cli`, as locked; return its Python."""
    uv = os.environ.get("UV", "uv")
    variables = {"VIRTUAL_ENV": str(folder)}
    run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, folder])
    lock = ROOT / "requirements" / "cli.lock"
    run([uv, "pip", "install", "--quiet", "--require-hashes", "--no-deps", "--requirements", lock], variables)
    run([uv, "pip", "install", "--quiet", "--no-deps", wheel], variables)
    for record in folder.glob("lib/python3*/site-packages/pdx_serving-*/direct_url.json"):
        record.unlink()  # where the wheel was on this machine, which the SBOM would repeat
    return folder / "bin" / "python"


def licences(python: Path, version: str) -> str:
    """The list of the licences of all packages in an environment."""
    lister = Path(sys.executable).parent / "pip-licenses"
    table = run([lister, "--python", python, "--format", "markdown", "--with-urls", "--ignore-packages", "pdx-serving"])
    return _LICENCES.format(version=version) + table
