"""Pods without their own image: an empty image, with folders of the machine mounted read-only."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pdx_cluster.node.images import Image

SYSTEM: Final = tuple(Path(name) for name in ("/bin", "/etc/ssl", "/lib", "/lib64", "/usr"))
"""With these folders, a container can run every program that is installed on the machine."""


@dataclass(frozen=True, slots=True)
class HostFolders:
    """The parts of a pod's spec that mount folders of the machine at the same paths."""

    volumes: list[dict[str, Any]] = field(default_factory=list)
    mounts: list[dict[str, Any]] = field(default_factory=list)
    """`volumeMounts` of the container."""


def host_folders(folders: Iterable[Path] = SYSTEM) -> HostFolders:
    """Mount these folders, by default SYSTEM; skip those that do not exist."""
    found = [folder for folder in folders if folder.is_dir()]
    # A path may be longer than the name of a volume may be.
    names = [f"host-{hashlib.sha256(bytes(folder)).hexdigest()[:12]}" for folder in found]
    pairs = list(zip(names, map(str, found), strict=True))
    return HostFolders(
        [{"name": name, "hostPath": {"path": path}} for name, path in pairs],
        [{"name": name, "mountPath": path, "readOnly": True} for name, path in pairs],
    )


def empty_image(reference: str = "pdx.local/empty:1") -> Image:
    """Return an image that contains only `/tmp`; its container needs a command."""
    return Image(reference, {}, folders={"tmp": 0o1777})
