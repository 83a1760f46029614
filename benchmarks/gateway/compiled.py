"""Copies of the gateway with compiled modules, in a cache outside the checkout."""

import hashlib
import importlib.metadata
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from proxy.compile import compile_modules

_KEPT: Final = 4
"""Compiled copies that stay in the cache, the last used ones."""
_MARKER: Final = ".compiled"


def cache_root(environ: Mapping[str, str]) -> Path:
    """Return the folder of compiled copies, outside the checkout."""
    home = environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "pdx" / "gateway"


def compiled_copy(checkout: Path, cache: Path) -> Path:
    """Return a folder with the checkout's `pdx_proxy`, compiled; raises CalledProcessError.

    It is compiled once for these sources, this mypy and this Python.
    """
    target = cache / _key(checkout)
    if not (target / _MARKER).exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix="new-") as folder:
            new = Path(folder) / "copy"
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(checkout / "proxy" / "pdx_proxy", new / "pdx_proxy", ignore=ignored)
            compile_modules(new, sys.executable, str(checkout / "api"))
            (new / _MARKER).touch()
            try:
                new.rename(target)
            except OSError:  # another process was faster
                if not (target / _MARKER).exists():
                    raise
    (target / _MARKER).touch()
    markers = sorted(cache.glob(f"*/{_MARKER}"), key=lambda path: path.stat().st_mtime, reverse=True)
    for marker in markers[_KEPT:]:
        shutil.rmtree(marker.parent, ignore_errors=True)
    return target


def _key(checkout: Path) -> str:
    digest = hashlib.sha256(f"{importlib.metadata.version('mypy')} {sys.implementation.cache_tag}".encode())
    for package in ("api", "proxy"):
        for path in sorted((checkout / package).rglob("*.py")):
            digest.update(f"\0{path.relative_to(checkout)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:20]
