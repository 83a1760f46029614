"""What Mooncake's transfer engine needs of the system to run on the CPU."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[3]
PLUGIN: Final = ROOT / "examples/connectors/cpu"
"""Lets vLLM's MooncakeConnector start without an accelerator."""
PACKAGES: Final = ("libibverbs1", "librdmacm1", "libnl-3-200", "libnl-route-3-200")
"""Debian's, that the wheel is linked against and does not carry."""


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Where the packages are unpacked: outside the checkout, where every checkout finds them."""
    base = environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "pdx" / "mooncake"


def environment() -> dict[str, str]:
    """What engines get so that they find the transfer engine's libraries; ImportError names what is missing."""
    if not (failure := _failure({})):
        return {}
    if "No module named" not in failure:
        cache = cache_folder(os.environ)
        _unpack(cache)
        found = {"LD_LIBRARY_PATH": ":".join(str(folder) for folder in sorted(cache.glob("**/*-linux-gnu")))}
        if not (failure := _failure(found)):
            return found
    raise ImportError(f"Mooncake's transfer engine does not start: {failure}")


def libraries() -> dict[str, str]:
    """What programs get that import the transfer engine wherever it is installed, as LMCache does."""
    return environment() if importlib.util.find_spec("mooncake") is not None else {}


def _failure(env: dict[str, str]) -> str:
    command = [sys.executable, "-c", "import mooncake.engine"]
    done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, check=False)
    return done.stderr.strip().rpartition("\n")[2] if done.returncode else ""


def _unpack(cache: Path) -> None:
    """The packages' files in a folder of their own: the system stays as it is."""
    cache.mkdir(parents=True, exist_ok=True)
    download = ["apt-get", "download", *PACKAGES]
    try:
        for command in (download, ["apt-get", "update", "-q"], download):
            done = subprocess.run(command, cwd=cache, capture_output=True, check=False)
            if command is download and done.returncode == 0:
                break
        for package in cache.glob("*.deb"):
            subprocess.run(["dpkg", "-x", str(package), str(cache)], capture_output=True, check=True)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        raise ImportError(f"{error}; install {' '.join(PACKAGES)} (Debian's names)") from error
