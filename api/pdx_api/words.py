"""Words of sentences about a user's YAML: paths, values and suggestions. Pure."""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from pdx_api.user_info import without_user_info

MAX_QUOTE: Final = 80
"""Characters of a value that a sentence quotes."""


def written(path: Sequence[int | str]) -> str:
    """Return the path as users write it: `spec.engine.args[0]`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
    return text


def shown(value: object) -> str:
    """Return a value as it stands in YAML, in at most MAX_QUOTE characters, without passwords of URLs."""
    if isinstance(value, str):
        value = without_user_info(value)
        text = value if len(value) <= MAX_QUOTE else f"{value[: MAX_QUOTE - 1]}…"
        return f"'{text}'"
    text = ""
    for piece in _flow(value):
        text += piece
        if len(text) > MAX_QUOTE:  # a value may be far larger than what is quoted of it
            return f"{text[: MAX_QUOTE - 1]}…"
    return text


def _flow(value: object) -> Iterator[str]:
    """Yield the pieces of a value in YAML's flow style."""
    if isinstance(value, Mapping):
        yield "{"
        for number, (key, entry) in enumerate(value.items()):
            yield f"{', ' if number else ''}{key}: "
            yield from _flow(entry)
        yield "}"
    elif isinstance(value, set):
        yield "a set"
    elif isinstance(value, list | tuple):
        yield "["
        for number, entry in enumerate(value):
            yield ", " if number else ""
            yield from _flow(entry)
        yield "]"
    elif isinstance(value, str):
        yield f"'{without_user_info(value)}'"
    else:
        yield "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def did_you_mean(given: str, choices: Iterable[str]) -> str:
    """Return `did you mean X?` for the nearest choice, whatever the case of letters; empty if none is near."""
    by_lower = {choice.lower(): choice for choice in choices}
    near = difflib.get_close_matches(given.lower(), by_lower, n=1)
    return f"did you mean {by_lower[near[0]]}?" if near else ""


def key_is_no_text(parent: Sequence[int | str], key: object) -> str:
    """Return the sentence about a key that YAML reads as a number, true, false or null."""
    where = written(parent) or "The object"
    return f"{where} has the key {key_text(key)}, which is not a text; put it in quotes, or remove it."


def key_text(key: object) -> str:
    """Return a key as YAML writes it."""
    return key if isinstance(key, str) else shown(key)
