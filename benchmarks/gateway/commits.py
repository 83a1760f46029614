"""The gateway's code as it is here or was at a commit, compiled, in a cache outside the checkout."""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.gateway import cache

CHECKOUT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("api", "cli", "operator", "sim", "proxy")
_QUIET: Final = "-Wno-all"
"""Without analysis for warnings, gcc takes half of the time."""
_MARKER: Final = ".compiled"


@dataclass(frozen=True, slots=True)
class Code:
    """A gateway that can be started."""

    name: str
    checkout: Path
    compiled: Path
    """The folder with its compiled `pdx_proxy`."""

    def python_path(self, *more: Path) -> str:
        """Return a PYTHONPATH with this code's packages before those that are installed."""
        return os.pathsep.join(map(str, (self.compiled, *(self.checkout / name for name in PACKAGES), *more)))


def code_of_checkout(checkout: Path = CHECKOUT, name: str = "here") -> Code:
    """Return the code of a checkout, compiled unless these sources were before. Raises SetupError."""
    return Code(name, checkout, cache.compile_gateway(checkout))


def code_of_commit(commit: str) -> Code:
    """Return the code of a commit of this repository, compiled by its own `proxy/compile.py`. Raises SetupError."""
    full = _run(["git", "rev-parse", "--verify", f"{commit}^{{commit}}"], CHECKOUT).strip()
    key = f"{full[:12]}-{importlib.metadata.version('mypy')}-{cache.toolchain_key()}"
    target = cache.cache_dir() / "commits" / key
    if not (target / _MARKER).exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix="new-") as folder:
            new = Path(folder) / "commit"
            _unpack(full, new)
            shutil.copytree(new / "proxy" / "pdx_proxy", new / "compiled" / "pdx_proxy")
            options = ["proxy/compile.py", str(new / "compiled"), "--path", str(new / "api")]
            _run([sys.executable, *options], new, {"CFLAGS": _QUIET})
            (new / _MARKER).touch()
            new.rename(target)
    return Code(full[:7], target, target / "compiled")


def _unpack(commit: str, target: Path) -> None:
    target.mkdir()
    archive = target / "commit.tar"
    _run(["git", "archive", "--output", str(archive), commit], CHECKOUT)
    shutil.unpack_archive(archive, target, filter="data")
    archive.unlink()


def _run(command: list[str], folder: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **(env or {})}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise cache.SetupError(f"{' '.join(command[:4])} failed: {done.stderr.strip()[-400:]}")
    return done.stdout
