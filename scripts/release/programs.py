"""Runs the programs that build and check a release."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from scripts.release.artifacts import ReleaseError

ROOT: Final = Path(__file__).parents[2]


def run(command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> str:
    """Run a program in the checkout and return what it prints; raises ReleaseError."""
    variables = {**os.environ, **(environment or {})}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        shown = " ".join(map(str, command))
        raise ReleaseError(f"{shown}\nended with {done.returncode}:\n{done.stdout}{done.stderr}".rstrip())
    return done.stdout


def commit_epoch() -> int:
    """Return the time of the commit in seconds since 1970, which every file of the release has."""
    return int(os.environ.get("SOURCE_DATE_EPOCH") or run(["git", "log", "-1", "--format=%ct"]))
