"""What ends with a group of tests. A fixture of the session would last until its worker has run all its other tests.

An idle cluster uses a seventh of a core.
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

_ENDS: Final = ExitStack()


def at_group_end(end: Callable[[], object]) -> None:
    """Call this when the worker's next test is in another group, at the latest at the end of its last test."""
    _ENDS.callback(end)


def end_group() -> None:
    """Call all of them, the last first, and forget them."""
    _ENDS.close()
