"""Which version of PDX runs, as its package says."""

from importlib.metadata import PackageNotFoundError, version
from typing import Final

DISTRIBUTION: Final = "pdx-serving"


def pdx_version() -> str:
    """The version; `(not installed)` where the programs run without their package."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "(not installed)"
