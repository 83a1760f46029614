"""The flag --protocol, which describes the protocol of connector Custom. Pure."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pdx_api.connectors import CONNECTORS
from pdx_api.connectors.custom import CONNECTOR, DEFAULT_PREFILL_PARAMS, MAX_SAVED_AFTER_MILLISECONDS, FamilyName
from pdx_api.words import did_you_mean, shown
from pdx_cli import usage
from pdx_cli.errors import InputError

KEYS: Final = ("family", "prefillParams", "savedAfterSeconds")
_EXAMPLE: Final = '{"family": "Pull"}'
_MAX_SECONDS: Final = MAX_SAVED_AFTER_MILLISECONDS // 1000
text: Final = usage.text(f"write for example {_EXAMPLE}")
"""Type of the flag."""


class _ValueError(Exception):
    """JSON that Python reads and PDX refuses. The text is a sentence without its period."""


def check(connector: str, given: str) -> None:
    """Refuse a protocol that has an error, and one for a connector with its own protocol; raises InputError.

    Connectors that do not exist are left to `pdx_api.connectors.choose`.
    """
    if connector == CONNECTOR.name and not given:
        raise InputError(f"--connector {connector} needs a protocol; add --protocol '{_EXAMPLE}'.")
    if not given or connector not in CONNECTORS:
        return
    if connector != CONNECTOR.name:
        instead = f"leave out --protocol, or write --connector {CONNECTOR.name}"
        raise InputError(f"--protocol: connector {connector} has its own protocol; {instead}.")
    values = _parsed(given)
    if not isinstance(values, dict):
        raise InputError(f"--protocol: {shown(values)} is not an object of JSON; write for example {_EXAMPLE}.")
    problems = [f"--protocol: {problem}" for problem in _problems(values)]
    if problems:
        several = (f"--protocol has {len(problems)} errors:", tuple(problems))
        raise InputError(*(problems if len(problems) == 1 else several))


def _parsed(given: str) -> Any:
    """Return the value of JSON; raises InputError."""
    try:
        return json.loads(
            given, object_pairs_hook=_without_duplicates, parse_constant=_no_constant, parse_float=_finite
        )
    except _ValueError as error:
        raise InputError(f"--protocol: {error}.") from error
    except (ValueError, RecursionError) as error:
        where = _position(given, error) if isinstance(error, json.JSONDecodeError) else ""
        raise InputError(f"--protocol: {given!r:.200} is not JSON{where}; write for example {_EXAMPLE}.") from error


def _position(given: str, error: json.JSONDecodeError) -> str:
    """Return where a text is not JSON, and why."""
    at = error.pos
    if found := re.match(r",\s*(?=[\]}])", given[at:]):  # Python 3.13 reports the comma, and not what follows it
        at += found.end()
    reason = "the end is missing" if at >= len(given.rstrip()) else _reason(given[:at], given[at])
    return f" at character {at + 1}: {reason}"


def _reason(before: str, found: str) -> str:
    """Return why a character does not continue the JSON before it."""
    around = re.sub(r'"(?:[^"\\]|\\.)*"', "text", before).rstrip()  # each text in quotes as one word
    if '"' in around:
        return "a text must not contain this; write it as an escape of JSON"
    opened = ""
    for bracket in re.findall(r"[\[\]{}]", around):
        opened = opened + bracket if bracket in "[{" else opened[:-1]
    last = around[-1:]
    if last == "{" or (last == "," and opened.endswith("{")):
        missing = "a key in double quotes"
    elif last in ("", ":", "[", ","):
        missing = "a value"
    elif not opened:
        return "the JSON ends before it"
    else:
        return (
            "a colon is missing" if re.search(r"[{,]\s*text$", around) and opened[-1] == "{" else "a comma is missing"
        )
    return "the closing quote of this text is missing" if found == '"' else f"{missing} is missing"


def _without_duplicates(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of JSON; raises _ValueError."""
    names = [name for name, _ in pairs]
    if (twice := next((name for name in names if names.count(name) > 1), None)) is not None:
        raise _ValueError(f"the key {twice} appears twice; write it once")
    return dict(pairs)


def _no_constant(name: str) -> None:
    raise _ValueError(f"{name} is not JSON; write a number, or null")


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise _ValueError(f"{number} is too large; write a smaller number, or null")
    return value


def _problems(values: Mapping[str, Any]) -> Iterator[str]:
    for key in values:
        if key not in KEYS:
            yield f"{key} does not exist; {_instead(key, values[key])}"
    families = f"write one of: {', '.join(FamilyName)}"
    family = values.get("family")
    if "family" not in values:
        yield f"family is missing; {families}."
    elif not isinstance(family, str) or family not in list(FamilyName):
        hint = did_you_mean(family, list(FamilyName)) if isinstance(family, str) else ""
        yield f"family is {shown(family)}; {families}{f'; {hint}' if hint else '.'}"
    params = values.get("prefillParams", {})
    if not isinstance(params, dict):
        yield f'prefillParams is {shown(params)}; write an object, for example {{"do_remote_decode": true}}.'
    elif family == FamilyName.POOL and params and params != DEFAULT_PREFILL_PARAMS:  # `Custom.protocol` has the default
        yield f"in a pool, requests carry no parameters; leave out prefillParams, or write family {FamilyName.PULL}."
    yield from _problems_of_delay(family, values.get("savedAfterSeconds", 0))


def _problems_of_delay(family: object, seconds: object) -> Iterator[str]:
    if not isinstance(seconds, int | float) or isinstance(seconds, bool):
        yield f"savedAfterSeconds is {shown(seconds)}; write seconds, for example 0.5."
    elif not 0 <= seconds <= _MAX_SECONDS:
        yield f"savedAfterSeconds is {shown(seconds)}; write seconds from 0 to {_MAX_SECONDS}."
    elif seconds and family == FamilyName.PULL:
        instead = f"leave out savedAfterSeconds, or write family {FamilyName.POOL}"
        yield f"only a pool saves KV after the prefill engine's answer; {instead}."


def _instead(key: str, value: object) -> str:
    """Return what to write instead of a key that does not exist."""
    if key == "savedAfterMilliseconds":  # the object's field
        if (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and 0 <= value <= MAX_SAVED_AFTER_MILLISECONDS
        ):
            return f"write savedAfterSeconds, in seconds: {value / 1000:g}."
        return "write savedAfterSeconds, in seconds."
    return did_you_mean(key, KEYS) or f"write one of: {', '.join(KEYS)}."
