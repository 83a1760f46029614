"""What changes a count although the gateway's code is the same.

The program sees only those features of the processor that are in valgrind's line `Arch and hwcaps`. Tunables of glibc
exclude the sizes of the caches, and `rep movsb` and `rep stosb`, of which callgrind counts each repetition.
"""

import os
import re
import subprocess
from collections.abc import Mapping
from typing import Final

from benchmarks.gateway.cache import toolchain

_HUGE: Final = "4000000000"
TUNABLES: Final = ":".join(
    f"glibc.cpu.{name}={_HUGE}"
    for name in ("x86_rep_movsb_threshold", "x86_rep_stosb_threshold", "x86_non_temporal_threshold")
)
"""`GLIBC_TUNABLES` of the counted process."""
_HWCAPS: Final = re.compile(r"Arch and hwcaps: (.*)")


def environment() -> Mapping[str, str]:
    """Return what the counts of this machine depend on. Raises SetupError without a C compiler."""
    return {
        **toolchain(),
        "glibc": os.confstr("CS_GNU_LIBC_VERSION") or "?",
        "valgrind": _output("valgrind", "--version").strip(),
        "processor under valgrind": _hwcaps(),
    }


def differences(recorded: Mapping[str, str], present: Mapping[str, str]) -> list[str]:
    """Return one line for each fact that differs."""
    names = dict.fromkeys([*recorded, *present])
    return [
        f"{name}: {recorded.get(name, '-')} was recorded, {present.get(name, '-')} is here"
        for name in names
        if recorded.get(name) != present.get(name)
    ]


def _hwcaps() -> str:
    found = _HWCAPS.search(_output("valgrind", "-v", "true"))
    return found[1] if found else "?"


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr
