"""What ends with a group of tests. A fixture of the session would last until its worker has run all its other tests.

An idle cluster uses a seventh of a core.
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

_ENDS: Final = ExitStack()


def at_group_end(end: Callable[[], object]) -> None:
    """Register `end`. It is called once, after the teardown of the last test of a group."""
    _ENDS.callback(end)


def end_group() -> None:
    """Call every registered `end` once, the last one first."""
    _ENDS.close()
