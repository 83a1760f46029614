"""The programs that the benchmark builds and installs, in a cache outside the checkout."""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.gateway.compiled import cache_root

_HERE: Final = Path(__file__).parent
_ROOT: Final = Path(__file__).parents[2]
_COMPILE: Final = """
import sys
from pathlib import Path
from benchmarks.gateway.compiled import compiled_copy
print(compiled_copy(Path(sys.argv[1]), Path(sys.argv[2])))
"""
_FLAGS: Final = ("-std=gnu17", "-O2", "-Wall", "-Wextra")
_SHARED: Final = ("wire.c",)
_PROGRAMS: Final = {
    "engine": ("engine.c", "ledger.c", "json.c", "answers.c", "metrics.c", "wheel.c"),
    "generator": ("generator.c", "histogram.c", "reader.c", "wheel.c"),
}


class SetupError(Exception):
    """A part of the benchmark is not available; the text has the reason."""


@dataclass(frozen=True, slots=True)
class Tools:
    """The programs that were built."""

    engine: Path
    generator: Path


def cache_dir() -> Path:
    """Where everything is kept that is made and not committed."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "pdx" / "bench"


def build() -> Tools:
    """Compile the fake engines and the load generator, unless these sources were compiled before."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise SetupError("no C compiler: install gcc")
    folder = cache_dir() / f"load-{_digest(sorted((_HERE / 'load').iterdir()))}"
    folder.mkdir(parents=True, exist_ok=True)
    for name, sources in _PROGRAMS.items():
        target = folder / name
        if not target.exists():
            paths = [str(_HERE / "load" / source) for source in (*sources, *_SHARED)]
            _run([compiler, *_FLAGS, "-o", f"{target}.new", *paths])
            Path(f"{target}.new").rename(target)
    return Tools(folder / "engine", folder / "generator")


def install_peers() -> Path:
    """The bin folder of an environment with the routers of peers.lock, installed if it is not there yet."""
    lock = _HERE / "peers.lock"
    folder = cache_dir() / f"peers-{_digest([lock])}"
    bin_folder = folder / "bin"
    if not (folder / ".installed").exists():
        _run([sys.executable, "-m", "venv", "--clear", str(folder)])
        pip = [str(bin_folder / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        _run([*pip, "--require-hashes", "--no-deps", "-r", str(lock)])
        (folder / ".installed").touch()
    return bin_folder


def toolchain() -> Mapping[str, str]:
    """What compiled modules depend on beside the sources and the locked packages."""
    compiler = shutil.which(str(sysconfig.get_config_var("CC") or "cc").split()[0])
    if compiler is None:
        raise SetupError("no C compiler: install gcc")
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    library = Path(sysconfig.get_config_var("LIBDIR")) / str(sysconfig.get_config_var("INSTSONAME"))
    return {
        "python": platform.python_version(),
        "python build": _digest([library if library.is_file() else Path(sys.executable).resolve()]),
        "compiler": version.partition("\n")[0],
    }


def toolchain_key() -> str:
    """A short name of the toolchain."""
    return hashlib.sha256(repr(toolchain()).encode()).hexdigest()[:8]


def compile_gateway(checkout: Path) -> Path:
    """A folder with the checkout's `pdx_proxy`, compiled as its image holds it, unless these sources were before."""
    root = cache_root(os.environ) / toolchain_key()
    output = root.parent / "last-compilation.log"
    root.mkdir(parents=True, exist_ok=True)
    sys.stderr.write("The gateway is compiled, unless these sources were before: about two minutes.\n")
    command = [sys.executable, "-c", _COMPILE, str(checkout), str(root)]
    with output.open("wb") as log:
        done = subprocess.run(command, cwd=_ROOT, stdout=log, stderr=subprocess.STDOUT, check=False)
    lines = output.read_text(errors="replace").splitlines()
    if done.returncode:
        raise SetupError(f"The gateway cannot be compiled; {output} has the compiler's output: {lines[-1:]}")
    return Path(lines[-1])


def install_nginx() -> str:
    """nginx's path; root on a Debian gets it installed."""
    found = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        _run(["apt-get", "install", "-y", "-qq", "nginx-light"])
        found = shutil.which("nginx", path="/usr/sbin")
    if found is None:
        raise SetupError("nginx is not installed (apt-get install nginx-light)")
    return found


def _digest(paths: list[Path]) -> str:
    whole = hashlib.sha256()
    for path in paths:
        whole.update(path.read_bytes())
    return whole.hexdigest()[:16]


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        detail = error.stderr if isinstance(error, subprocess.CalledProcessError) else str(error)
        raise SetupError(f"{' '.join(command[:4])} failed: {str(detail).strip()[-400:]}") from error
