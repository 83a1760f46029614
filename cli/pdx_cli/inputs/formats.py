"""The formats in which a command prints its result: `-o json`, `-o yaml`, `-o name`."""

import argparse
import json
from collections.abc import Callable
from typing import Any


def add_arguments(parser: argparse.ArgumentParser, *formats: str) -> argparse.Action:
    """Add `-o FORMAT` with kubectl's long form, with the first format as its default, and `--json`; return `-o`."""
    added = parser.add_argument(
        "-o",
        "--output",
        "--format",
        dest="format",
        choices=formats,
        default=formats[0],
        help=f"format of the result: {', '.join(formats)} (default: %(default)s)",
    )
    if "json" in formats:
        parser.add_argument("--json", dest="format", action="store_const", const="json", help="the same as -o json")
    return added


def printed(value: Any, form: str, encoding: str) -> str:
    """Return a value of JSON's types in the format, complete in the encoding."""
    if form != "yaml":
        return as_json(value, encoding, indent=2)
    import yaml

    plain = json.loads(json.dumps(value, default=str))

    def dumped(is_escaped: bool) -> str:
        return yaml.safe_dump(plain, sort_keys=False, width=120, allow_unicode=not is_escaped)

    return _complete(dumped, encoding)


def as_json(value: Any, encoding: str, *, indent: int | None = None) -> str:
    """Return a value of JSON's types as JSON, complete in the encoding; on one line without an indent."""

    def dumped(is_escaped: bool) -> str:
        return json.dumps(value, indent=indent, ensure_ascii=is_escaped, default=str) + "\n"

    return _complete(dumped, encoding)


def _complete(dumped: Callable[[bool], str], encoding: str) -> str:
    """Return the text with its characters as they are, or escaped if the encoding lacks one."""
    text = dumped(False)
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return dumped(True)
    return text
