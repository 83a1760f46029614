"""The hot modules that mypyc has compiled for these sources, in a cache next to the package: builds and imports them.

The cache has one folder, named after a hash of the sources. After a change of the sources, Python runs the files again.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import Any, Final

import pdx_api

VARIABLE: Final = "PDX_COMPILED"
"""If this environment variable is 0, Python runs the files."""
NOT_COMPILED: Final = "not compiled (about half as fast)"
_PACKAGE: Final = Path(__file__).parent
_API: Final = Path(str(pdx_api.__file__)).parent
CACHE: Final = _PACKAGE.parent / ".compiled"
_SCRIPT: Final = _PACKAGE.parent / "compile.py"
_LOCK: Final = ".lock"
_SERVES: Final = "pdx_proxy.serving.gateway"
"""A hot module."""


class CompileError(Exception):
    """The modules cannot be compiled; the text has the reason."""


class Finder:
    """Finds compiled modules; a meta path finder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find_spec(self, name: str, _path: Sequence[str] | None = None, _target: Any = None) -> ModuleSpec | None:
        """Return where the compiled module of this name is; None if there is none."""
        if not name.startswith("pdx_proxy.") and not name.endswith("__mypyc"):
            return None
        file = self._folder / (name.replace(".", "/") + EXTENSION_SUFFIXES[0])
        return spec_from_file_location(name, file) if file.is_file() else None


def key() -> str:
    """Return a hash of the sources and of what else compiled modules depend on."""
    digest = hashlib.sha256(EXTENSION_SUFFIXES[0].encode())
    for package in (_API, _PACKAGE):
        for path in sorted(path for path in package.rglob("*.py") if path.is_file()):
            digest.update(f"\0{path.relative_to(package)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:20]


def use(environ: "os._Environ[str]" = os.environ) -> None:
    """Import compiled modules from now on, if they are those of these sources and can be loaded."""
    try:
        if environ.get(VARIABLE) == "0" or not (folder := CACHE / key()).is_dir():
            return
    except OSError:  # a source is being replaced
        return
    finder = Finder(folder)
    sys.meta_path.insert(0, finder)
    if not _loads(folder):
        sys.meta_path.remove(finder)


def _loads(folder: Path) -> bool:
    """Whether the library that all compiled modules share can be loaded here."""
    names = [file.name.removesuffix(EXTENSION_SUFFIXES[0]) for file in folder.glob("*__mypyc.*")]
    try:
        return [import_module(name) for name in names] != []
    except ImportError:
        return False


def state() -> str:
    """Return whether this process runs compiled modules, in words."""
    module = sys.modules.get(_SERVES)
    return NOT_COMPILED if module is None or str(module.__file__).endswith(".py") else "compiled"


def build() -> Path:
    """Compile the hot modules unless that is done; return their folder. Raises CompileError."""
    try:
        CACHE.mkdir(exist_ok=True)
        with (CACHE / _LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return _build(CACHE / key())
    except OSError as error:
        raise CompileError(f"{CACHE} cannot be written: {error.strerror}") from error


def _build(folder: Path) -> Path:
    """The same, alone."""
    if folder.is_dir():
        if _loads_alone(folder):
            return folder
        shutil.rmtree(folder)
    if not _SCRIPT.is_file():
        raise CompileError(f"{_SCRIPT} does not exist; install PDX from a checkout, or use the gateway's image")
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="new-") as name:
        new = Path(name) / "modules"
        shutil.copytree(_PACKAGE, new / "pdx_proxy", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        command = [sys.executable, str(_SCRIPT), str(new), "--path", str(_API.parent)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        if done.returncode:
            last = (done.stderr or done.stdout).strip().rpartition("\n")[2]
            needs = "it needs mypy, setuptools, a C compiler and Python's headers"
            raise CompileError(f"mypyc has failed; {needs}: {last}")
        if CACHE / key() != folder:
            raise CompileError("the sources have changed meanwhile; run it again")
        if not _loads_alone(new):
            raise CompileError("the compiled modules cannot be loaded by this Python")
        for old in CACHE.iterdir():
            if old not in (new.parent, CACHE / _LOCK):
                shutil.rmtree(old, ignore_errors=True)
        new.rename(folder)
    return folder


def _loads_alone(folder: Path) -> bool:
    """Whether a new process can load the library that all compiled modules share."""
    program = "import sys; from pathlib import Path; from pdx_proxy import compiled as c; f = Path(sys.argv[1]);"
    program += "sys.meta_path.insert(0, c.Finder(f)); sys.exit(not c._loads(f))"
    command = [sys.executable, "-c", program, str(folder)]
    environ = {**os.environ, VARIABLE: "0"}
    return subprocess.run(command, env=environ, capture_output=True, check=False).returncode == 0  # noqa: S603
