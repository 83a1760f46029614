"""Creates container images: a tar that containerd imports, from the bytes of files."""

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True)
class Image:
    """An image with one layer."""

    reference: str
    """Full name and tag, for example `pdx.local/empty:1`."""
    files: Mapping[str, bytes]
    """Path without a leading slash -> content; all files are executable."""
    folders: Mapping[str, int] = field(default_factory=dict)
    """Path of an empty folder -> its mode, for example `{"tmp": 0o1777}`."""
    entrypoint: Sequence[str] = ()
    user: str = "65532:65532"


def write(image: Image, path: Path) -> Path:
    """Write the image in the format of `docker save`, and return the path."""
    layer = _layer(image)
    config = _config(image, layer)
    names = (f"{_digest(config)}.json", f"{_digest(layer)}/layer.tar")
    manifest = json.dumps([{"Config": names[0], "RepoTags": [image.reference], "Layers": [names[1]]}]).encode()
    with tarfile.open(path, "w") as archive:
        for name, content in ((names[0], config), (names[1], layer), ("manifest.json", manifest)):
            _add(archive, name, content, 0o644)
    return path


def _layer(image: Image) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for folder, mode in image.folders.items():
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            archive.addfile(entry)
        for name, content in image.files.items():
            _add(archive, name, content, 0o755)
    return stream.getvalue()


def _config(image: Image, layer: bytes) -> bytes:
    document = {
        "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {"Entrypoint": list(image.entrypoint), "User": image.user, "Env": ["PATH=/usr/bin:/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{_digest(layer)}"]},
        "history": [{"created_by": "pdx_cluster"}],
    }
    return json.dumps(document).encode()


def _add(archive: tarfile.TarFile, name: str, content: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
