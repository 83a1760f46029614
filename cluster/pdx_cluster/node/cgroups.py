"""The control groups under which a node's pods run."""

import contextlib
from pathlib import Path
from typing import Final

from pdx_cluster.system.processes import wait_until

ROOT: Final = Path("/sys/fs/cgroup")


def create(name: str) -> None:
    """Make the group in every hierarchy (version 1) or the one (version 2)."""
    for parent in _hierarchies():
        # Version 2 gives a group the controllers that its parent hands down.
        for controller in _read(parent / "cgroup.controllers").split():
            with contextlib.suppress(OSError):
                (parent / "cgroup.subtree_control").write_text(f"+{controller}")
        group = parent / name
        group.mkdir(exist_ok=True)
        # A new cpuset of version 1 is empty and takes no process.
        for file in ("cpuset.cpus", "cpuset.mems"):
            with contextlib.suppress(OSError):
                (group / file).write_text((parent / file).read_text())


def remove(name: str, timeout_seconds: float = 10.0) -> bool:
    """Remove the group with all below it; whether it is gone. Its processes must have been ended."""
    return wait_until(lambda: all(_remove_tree(parent / name) for parent in _hierarchies()), timeout_seconds)


def _hierarchies() -> list[Path]:
    if (ROOT / "cgroup.controllers").is_file():
        return [ROOT]
    return sorted(path for path in ROOT.iterdir() if path.is_dir() and not path.is_symlink())


def _read(path: Path) -> str:
    return path.read_text() if path.is_file() else ""


def _remove_tree(group: Path) -> bool:
    """Files of a group cannot be unlinked: folders alone are removed, from the innermost."""
    if group.is_dir():
        for folder in sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True):
            with contextlib.suppress(OSError):
                folder.rmdir()
        with contextlib.suppress(OSError):
            group.rmdir()
    return not group.exists()
