"""The formats in which a command prints its result: `-o json`, `-o yaml`, `-o name`."""

import argparse
import json
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


def printed(value: Any, form: str) -> str:
    """Return a value of JSON's types in the format."""
    if form == "yaml":
        import yaml

        plain = json.loads(json.dumps(value, default=str))
        return yaml.safe_dump(plain, sort_keys=False, width=120, allow_unicode=True)
    return json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n"
