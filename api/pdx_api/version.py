"""The version of PDX, read from its package."""

from typing import Final

DISTRIBUTION: Final = "pdx-serving"


def pdx_version() -> str:
    """The version; `(not installed)` if the programs run without their package."""
    from importlib.metadata import PackageNotFoundError, version  # 20 ms, and few commands print it

    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "(not installed)"
