"""Reads vLLM's command line: flags and their values. Pure."""

import json
from typing import Any, Final

KV_FLAG: Final = "--kv-transfer-config"


def flags_of(args: tuple[str, ...]) -> dict[str, Any]:
    """Return the flags with their values. The last value of a flag wins; an argument without a flag is `the model`."""
    flags: dict[str, Any] = {}
    name = ""
    for arg in args[1:] if args[:1] == ("serve",) else args:
        if arg.startswith("--"):
            name, equals, value = arg.partition("=")
            flags[name] = _parsed(value) if equals else True
        else:
            flags[name or "the model"] = _parsed(arg)
            name = ""
    return flags


def flag(args: tuple[str, ...], name: str) -> str | None:
    """Return one flag's value as text; None if it is not set."""
    value = flags_of(args).get(name)
    return None if value is None else value if isinstance(value, str) else json.dumps(value)


def model_argument(args: tuple[str, ...]) -> str | None:
    """Return the model that `vllm serve` loads; None if the arguments do not name it."""
    if args[:1] == ("serve",) and len(args) > 1 and not args[1].startswith("-"):
        # In vLLM, --model overrides the positional argument.
        return flag(args, "--model") or args[1]
    return None


def _parsed(value: str) -> Any:
    """Parse a JSON object, so that the order of its members does not count."""
    try:
        found = json.loads(value)
    except ValueError:
        return value
    return found if isinstance(found, dict) else value
