"""Behaviours that the gateway does not withstand yet. `make soak` runs them all the same."""

from collections.abc import Mapping
from typing import Final

ENGINES: Final[Mapping[str, str]] = {}
"""Name of a behaviour of engines -> what happens, in one line. Remove an entry when it is repaired."""
CLIENTS: Final[Mapping[str, str]] = {}
"""Name of a behaviour of clients -> what happens, in one line."""
