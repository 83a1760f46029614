"""What checkouts with the same locks share in `~/.cache/pdx`: the packages' bytecode, and what mypy has found in them.

`python -m scripts.shared_caches bytecode`    in a new environment: take the bytecode, or compile the packages
`python -m scripts.shared_caches take-types`  before mypy: take its cache, if this checkout has none
`python -m scripts.shared_caches keep-types`  after mypy: keep its cache for other checkouts, if there is none

Each checkout works on its own copy. A cache that cannot be read or written only costs time.
"""

import compileall
import hashlib
import os
import re
import struct
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib.util import cache_from_source
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
SHARED: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pdx"
TYPES: Final = ROOT / ".mypy_cache"
RARELY_IMPORTED: Final = re.compile(r"/(transformers/models|kubernetes|numba|pygments|setuptools|testing|tests?)/")
"""Large packages of which little or nothing is imported. Python compiles the rest when it is imported."""
SAMPLES: Final = ("torch", "vllm")


def archive(name: str, root: Path = ROOT, shared: Path = SHARED) -> Path:
    """Where the cache of this name is kept for the locks and the Python of a checkout."""
    found = hashlib.sha256(b"".join(path.read_bytes() for path in sorted((root / "requirements").glob("*.lock"))))
    return shared / name / f"{sys.implementation.cache_tag}-{found.hexdigest()[:16]}.tar"


def take(source: Path, folder: Path) -> bool:
    """Unpack an archive into a folder; False if there is none, or if it cannot be read."""
    try:
        with tarfile.open(source) as packed:
            packed.extractall(folder, filter="data")
    except (OSError, tarfile.TarError):
        return False
    return True


def keep(target: Path, folder: Path, files: Iterable[Path]) -> None:
    """Pack files of a folder into an archive, as a whole or not at all, and remove those for other locks."""
    with suppress(OSError):
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent)
        part = Path(name)
        try:
            with os.fdopen(handle, "wb") as out, tarfile.open(fileobj=out, mode="w") as packed:
                for path in files:
                    packed.add(path, path.relative_to(folder), recursive=False)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
        for other in set(target.parent.glob("*.tar")) - {target}:
            other.unlink(missing_ok=True)


def is_valid(source: Path) -> bool:
    """Whether the bytecode of a source file belongs to it: Python compares the time and the size of the file."""
    try:
        head, status = Path(cache_from_source(str(source))).read_bytes()[:16], source.stat()
    except OSError:
        return False
    return head[4:] == struct.pack("<III", 0, int(status.st_mtime) & 0xFFFFFFFF, status.st_size & 0xFFFFFFFF)


def compile_packages(folder: Path) -> None:
    """Compile in as many processes as there are cores. Some packages contain files that are no valid Python."""
    compileall.compile_dir(str(folder), maxlevels=30, rx=RARELY_IMPORTED, quiet=2, workers=0)


def prepare_bytecode(source: Path, folder: Path, compile_: Callable[[Path], None] = compile_packages) -> None:
    """Take the bytecode from an archive, or compile and keep it. Files that uv has copied have other times."""
    samples = [folder / name / "__init__.py" for name in SAMPLES]
    taken = take(source, folder)
    if not taken or not all(map(is_valid, samples)):
        compile_(folder)
        keep(source, folder, folder.rglob("*.pyc"))


def main(arguments: list[str]) -> int:
    """Run one of the three commands."""
    match arguments:
        case ["bytecode"]:
            prepare_bytecode(archive("bytecode"), Path(sysconfig.get_path("purelib")))
        case ["take-types"]:
            if not TYPES.exists():
                take(archive("types"), TYPES)
        case ["keep-types"]:
            if not archive("types").exists():
                keep(archive("types"), TYPES, (path for path in TYPES.rglob("*") if path.is_file()))
        case _:
            sys.stderr.write("write bytecode, take-types or keep-types\n")
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
