"""Runs commands of the system."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from pdx_cluster.errors import ClusterError, MissingError


def run(
    command: Sequence[str | Path],
    stdin: str | None = None,
    timeout_seconds: float = 120.0,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Return the standard output of a command; raises ClusterError with its error, or if it takes too long."""
    shown = " ".join([Path(command[0]).name, *(str(argument) for argument in command[1:6])])
    try:
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=timeout_seconds, env=environment, check=False
        )
    except FileNotFoundError as error:
        raise MissingError(f"{command[0]} is missing: install it.") from error
    except subprocess.TimeoutExpired as error:
        raise ClusterError(f"`{shown}` took more than {timeout_seconds:.0f} s.") from error
    if done.returncode:
        raise ClusterError(f"`{shown}` ended with {done.returncode}: {(done.stderr or done.stdout).strip()}")
    return done.stdout
