"""The version of PDX, read from its package."""

from importlib.metadata import PackageNotFoundError, version
from typing import Final

DISTRIBUTION: Final = "pdx-serving"


def pdx_version() -> str:
    """The version; `(not installed)` if the programs run without their package."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "(not installed)"
