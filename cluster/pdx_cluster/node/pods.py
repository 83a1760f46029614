"""Pods without an image of their own: an empty image into which the machine's folders are mounted, read-only."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pdx_cluster.node.images import Image

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
    # A path may be longer than a volume's name.
    names = [f"host-{hashlib.sha256(bytes(folder)).hexdigest()[:12]}" for folder in found]
    pairs = list(zip(names, map(str, found), strict=True))
    return HostFolders(
        [{"name": name, "hostPath": {"path": path}} for name, path in pairs],
        [{"name": name, "mountPath": path, "readOnly": True} for name, path in pairs],
    )


def empty_image(reference: str = "pdx.local/empty:1") -> Image:
    """An image with nothing in it but a `/tmp`; its container's command must be given."""
    return Image(reference, {}, folders={"tmp": 0o1777})
