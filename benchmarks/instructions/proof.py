"""`python -m benchmarks.instructions.proof`: does the gate notice a slower gateway, and name the function?

It makes copies of the checkout, each with one change that wastes work, and counts each copy as `make instructions`
does. The gate has to fail, and its output has to name the function. Each copy takes about two minutes to compile.
"""

import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.campaigns import recorded
from benchmarks.gateway.commits import CHECKOUT, PACKAGES


@dataclass(frozen=True, slots=True)
class Waste:
    """A change that makes the gateway slower."""

    what: str
    file: str
    old: str
    new: str
    function: str
    """The name that the output has to have."""


WASTES: Final = (
    Waste(
        "each body is decoded twice",
        "proxy/pdx_proxy/payload/body.py",
        "        members = _MEMBERS.decode(raw)\n",
        "        _MEMBERS.decode(raw)\n        members = _MEMBERS.decode(raw)\n",
        "body.read_body",
    ),
    Waste(
        "the end of each leg serves the queue twice",
        "proxy/pdx_proxy/balancing/load.py",
        "            self.on_release()\n",
        "            self.on_release()\n        if self.on_release is not None:\n            self.on_release()\n",
        "admission.Admission._serve_one",
    ),
)


def copy_with(waste: Waste, target: Path) -> None:
    """Copy the checkout's packages and change the one line. Raises ValueError if the line is not there."""
    for name in PACKAGES:
        shutil.copytree(CHECKOUT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
    path = target / waste.file
    text = path.read_text()
    if text.count(waste.old) != 1:
        raise ValueError(f"{waste.file} does not have this line once: {waste.old.strip()}")
    path.write_text(text.replace(waste.old, waste.new))


def main() -> int:
    """Count every copy; 1 if the gate passes one, or does not name its function."""
    unnoticed = []
    for waste in WASTES:
        sys.stdout.write(f"\n{waste.what} ({waste.file})\n")
        sys.stdout.flush()
        with tempfile.TemporaryDirectory(prefix="pdx-proof-") as folder:
            copy_with(waste, Path(folder))
            command = [sys.executable, "-m", "benchmarks.instructions", "--checkout", folder]
            done = subprocess.run(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True, check=False)
        sys.stdout.write(done.stdout)
        if done.returncode == 0 or f"\n    {waste.function}: " not in done.stdout:
            unnoticed.append(waste.what)
    for what in unnoticed:
        sys.stderr.write(f"The gate did not notice that {what}, or did not name the function.\n")
    sys.stdout.write(f"proof: {len(WASTES) - len(unnoticed)} of {len(WASTES)} noticed\n")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(recorded("make instructions-proof", main))
