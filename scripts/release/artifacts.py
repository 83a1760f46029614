"""The files of a release: their digests, their table and their checksums."""

import gzip
import hashlib
import io
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CHECKSUMS: Final = "SHA256SUMS"


class ReleaseError(Exception):
    """A release cannot be built; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file of the release."""

    name: str
    size: int
    """Bytes."""
    digest: str
    """SHA-256, in hexadecimal."""


def artifacts(folder: Path) -> list[Artifact]:
    """Return all files of a release but the checksums, by their names."""
    files = sorted(path for path in folder.iterdir() if path.name != CHECKSUMS)
    return [Artifact(path.name, path.stat().st_size, sha256(path)) for path in files]


def sha256(path: Path) -> str:
    """Return the digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checksums(found: Iterable[Artifact]) -> str:
    """The digests as `sha256sum --check` reads them."""
    return "".join(f"{each.digest}  {each.name}\n" for each in found)


def table(found: Iterable[Artifact]) -> str:
    """Artifact, size and digest, one line each."""
    rows = [("artifact", "size", "sha256"), *((each.name, _shown(each.size), each.digest) for each in found)]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    return "".join(f"{name:<{widths[0]}}  {size:>{widths[1]}}  {digest}\n" for name, size, digest in rows)


def repacked(archive: bytes, epoch: int) -> bytes:
    """A tar.gz with the same files in the order of their names, and without owners and times of its own."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(archive)) as old, tarfile.open(fileobj=packed, mode="w") as new:
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            plain = tarfile.TarInfo(member.name)
            plain.size, plain.mode, plain.mtime = member.size, 0o644, epoch
            new.addfile(plain, old.extractfile(member))
    zipped = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=zipped, mtime=epoch, compresslevel=9) as file:
        file.write(packed.getvalue())
    return zipped.getvalue()


def _shown(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 1_000_000 else f"{size / 1e3:,.1f} kB"
