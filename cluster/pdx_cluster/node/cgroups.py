"""The control groups under which a node's pods run."""

import contextlib
import os
from pathlib import Path
from typing import Final

from pdx_cluster.system.processes import wait_until

ROOT: Final = Path("/sys/fs/cgroup")
WEIGHTS: Final = {"cpu.shares": 1024, "cpu.weight": 100}
"""File of version 1 and of version 2 -> what one process weighs outside of groups."""
PROCESSES_PER_CORE: Final = 2
"""Processes that the pods together weigh as much as, per core. By default, all pods get the CPU time of one process, so
that a few busy processes of the machine keep an engine from starting in time."""


def create(name: str) -> None:
    """Create the group in every hierarchy (version 1), or in the only one (version 2)."""
    for parent in _hierarchies():
        # In version 2, a group has the controllers that its parent delegates.
        for controller in _read(parent / "cgroup.controllers").split():
            with contextlib.suppress(OSError):
                (parent / "cgroup.subtree_control").write_text(f"+{controller}")
        group = parent / name
        group.mkdir(exist_ok=True)
        # In version 1, a new cpuset is empty and accepts no process.
        for file in ("cpuset.cpus", "cpuset.mems"):
            with contextlib.suppress(OSError):
                (group / file).write_text((parent / file).read_text())
        for file, weight in WEIGHTS.items():
            if (group / file).is_file():
                (group / file).write_text(str(weight * PROCESSES_PER_CORE * (os.cpu_count() or 1)))


def remove(name: str, timeout_seconds: float = 10.0) -> bool:
    """Remove the group and all groups in it, and return whether they are gone. Its processes must have ended."""
    return wait_until(lambda: all(_remove_tree(parent / name) for parent in _hierarchies()), timeout_seconds)


def _hierarchies() -> list[Path]:
    if (ROOT / "cgroup.controllers").is_file():
        return [ROOT]
    return sorted(path for path in ROOT.iterdir() if path.is_dir() and not path.is_symlink())


def _read(path: Path) -> str:
    return path.read_text() if path.is_file() else ""


def _remove_tree(group: Path) -> bool:
    """Remove only folders, the innermost first: files of a group cannot be unlinked."""
    if group.is_dir():
        for folder in sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True):
            with contextlib.suppress(OSError):
                folder.rmdir()
        with contextlib.suppress(OSError):
            group.rmdir()
    return not group.exists()
