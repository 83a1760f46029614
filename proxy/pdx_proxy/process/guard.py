"""Isolation of steps whose input comes from engines: a step that fails ends nothing else."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import extract_tb
from typing import Final

_LOGGED_CHARACTERS: Final = 300
"""Of an error's text, which may repeat what an engine sent."""
_log: Final = logging.getLogger(__name__)


class Guard:
    """Runs steps. It logs the failure of a step in one line, and again only after the step has succeeded."""

    def __init__(self) -> None:
        self._failing: set[str] = set()

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Run the body of a `with` statement and end its exceptions. `name` is the subject of a sentence."""
        try:
            yield
        except Exception as error:
            if name not in self._failing:
                self._failing.add(name)
                place = extract_tb(error.__traceback__)[-1]
                text = repr(error)[:_LOGGED_CHARACTERS]
                _log.error("%s failed; the gateway goes on without it: %s (%s:%s)", name, text, *place[:2])
        else:
            self._failing.discard(name)
