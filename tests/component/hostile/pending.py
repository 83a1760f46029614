"""Behaviours that the gateway does not withstand yet. `make soak` runs them all the same."""

from collections.abc import Mapping
from typing import Final

ENGINES: Final[Mapping[str, str]] = {}
"""Name of a behaviour of engines -> what happens, in one line. Remove an entry when it is repaired."""
CLIENTS: Final[Mapping[str, str]] = {
    "chunks_of_one_byte": "aiohttp parses a read in 53 to 86 ms of CPU, and others wait for seconds",
    "grammar_invalid_in_a_message": "its error event for a client's error counts against engines: 7 ejections in 3 s",
    "gzip_bomb": "a decompressed piece takes 78 to 135 ms of CPU, and others wait for seconds",
    "gzip_bomb_without_a_key": "the body is decompressed after the 401: 75 to 80 ms of CPU in one step",
    "gzip_broken": "the part before the fault is decompressed: 50 to 84 ms of CPU in one step",
}
"""Name of a behaviour of clients -> what happens, in one line."""
