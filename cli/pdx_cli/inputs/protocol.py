"""The flag --protocol, which describes the protocol of connector Custom. Pure."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pdx_api.connectors import CONNECTORS
from pdx_api.connectors.custom import CONNECTOR, FORMER_FAMILIES, FamilyName
from pdx_api.spec.messages import did_you_mean, shown
from pdx_cli import usage
from pdx_cli.errors import InputError

KEYS: Final = ("family", "prefillParams", "savedAfterSeconds")
_EXAMPLE: Final = '{"family": "Pull"}'

text: Final = usage.text(f"write for example {_EXAMPLE}")
"""Type of the flag."""


class _TwiceError(Exception):
    """An object of JSON has a key twice. The text is the key."""


def check(connector: str, given: str) -> None:
    """Refuse a protocol that has an error, and one for a connector with its own protocol; raises InputError.

    Connectors that do not exist are left to `pdx_api.connectors.choose`.
    """
    if not given or connector not in CONNECTORS:
        return
    if connector != CONNECTOR.name:
        instead = f"leave out --protocol, or write --connector {CONNECTOR.name}"
        raise InputError(f"--protocol: connector {connector} has its own protocol; {instead}.")
    try:
        values = json.loads(given, object_pairs_hook=_without_duplicates)
    except _TwiceError as error:
        raise InputError(f"--protocol: the key {error} appears twice; write it once.") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"--protocol: {given!r:.200} is not JSON; write for example {_EXAMPLE}.") from error
    if not isinstance(values, dict):
        raise InputError(f"--protocol: {shown(values)} is not an object of JSON; write for example {_EXAMPLE}.")
    problems = [f"--protocol: {problem}" for problem in _problems(values)]
    if problems:
        several = (f"--protocol has {len(problems)} errors:", tuple(problems))
        raise InputError(*(problems if len(problems) == 1 else several))


def _without_duplicates(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of JSON; raises _TwiceError."""
    names = [name for name, _ in pairs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise _TwiceError(twice)
    return dict(pairs)


def _problems(values: Mapping[str, Any]) -> Iterator[str]:
    for key in values:
        if key not in KEYS:
            keys = f"write one of: {', '.join(KEYS)}."
            yield f"{key} does not exist; {did_you_mean(key, KEYS) or keys}"
    families = f"write one of: {', '.join(FamilyName)}"
    family = values.get("family")
    if "family" not in values:
        yield f"family is missing; {families}."
    elif not isinstance(family, str) or family not in (*FamilyName, *FORMER_FAMILIES):
        hint = did_you_mean(family, list(FamilyName)) if isinstance(family, str) else ""
        yield f"family is {shown(family)}; {families}{f'; {hint}' if hint else '.'}"
    if not isinstance(params := values.get("prefillParams", {}), dict):
        yield f'prefillParams is {shown(params)}; write an object, for example {{"do_remote_decode": true}}.'
    seconds = values.get("savedAfterSeconds", 0)
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 <= seconds < float("inf"):
        yield f"savedAfterSeconds is {shown(seconds)}; write seconds, for example 0.5."
