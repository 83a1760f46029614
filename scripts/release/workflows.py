"""Checks the workflows for GitHub, which cannot run here, with actionlint and zizmor."""

import sys
from pathlib import Path
from typing import Final

from scripts.release.programs import ROOT, run

FOLDER: Final = ROOT / ".github" / "workflows"


def check(actionlint: Path) -> int:
    """Run both linters over all workflows; return how many there are. Raises ReleaseError."""
    files = sorted(FOLDER.glob("*.yml"))
    run([actionlint, "-shellcheck=", "-pyflakes=", *files])
    run([Path(sys.executable).parent / "zizmor", "--offline", "--quiet", *files])
    return len(files)
