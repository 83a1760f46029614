"""Pods without an image of their own: an empty image into which the machine's folders are mounted, read-only."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pdx_cluster.images import Image

SYSTEM: Final = tuple(Path(name) for name in ("/bin", "/etc/ssl", "/lib", "/lib64", "/usr"))
"""What programs of the machine need to start: with them a container runs whatever is installed."""


@dataclass(frozen=True, slots=True)
class HostFolders:
    """The parts of a pod's spec that mount folders of the machine at their own paths."""

    volumes: list[dict[str, Any]] = field(default_factory=list)
    mounts: list[dict[str, Any]] = field(default_factory=list)
    """`volumeMounts` of the container."""


def host_folders(folders: Iterable[Path] = SYSTEM) -> HostFolders:
    """Mount these folders, those of SYSTEM unless told; one that does not exist is left out."""
    found = [folder for folder in folders if folder.is_dir()]
    names = [f"host-{'-'.join(folder.parts[1:]).lower().replace('.', '').replace('_', '-')}" for folder in found]
    return HostFolders(
        [{"name": name, "hostPath": {"path": str(folder)}} for name, folder in zip(names, found, strict=True)],
        [{"name": name, "mountPath": str(folder), "readOnly": True} for name, folder in zip(names, found, strict=True)],
    )


def empty_image(reference: str = "pdx.local/empty:1") -> Image:
    """An image with nothing in it; its container's command must be given."""
    return Image(reference, {}, folders=("tmp",))
