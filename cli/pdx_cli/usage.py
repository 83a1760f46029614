"""The errors of a command line, each as one sentence with the correction."""

import argparse
import difflib
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from pdx_cli.errors import ExitCode

_TYPES: Final = {"int": "a whole number", "float": "a number", "whole_number": "a whole number"}
"""Python's name of a flag's type -> what to write."""


class Parser(argparse.ArgumentParser):
    """Reports a usage error in one sentence, without the list of all flags."""

    def error(self, message: str) -> NoReturn:
        """Print the error on stderr and exit with 2."""
        self.exit(ExitCode.INVALID, f"{self.prog}: {sentence(message)}\n")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Write the help; unlike argparse, let a full disk or a closed pipe be an error."""
        if message:
            (file or sys.stderr).write(message)


def sentence(message: str) -> str:
    """Return argparse's message as a sentence without Python's words."""
    flag, colon, rest = message.partition(": ")
    if colon and flag.startswith("argument "):
        name = flag.removeprefix("argument ").split("/")[-1]
        return _about(name, rest)
    if missing := message.partition("the following arguments are required: ")[2]:
        verb = "are" if "," in missing else "is"
        return f"{missing} {verb} missing; --help shows the usage."
    return ended(message)


def _about(name: str, text: str) -> str:
    if found := re.fullmatch(r"invalid (\w+) value: '(.*)'", text):
        return f"{name} is {found[2]!r}; write {_TYPES.get(found[1], 'another value')}."
    if found := re.fullmatch(r"invalid choice: '?(.*?)'? \(choose from (.*)\)", text):
        choices = [choice.strip().strip("'") for choice in found[2].split(",")]
        what = "the command" if name == "COMMAND" else name
        options = f"write one of: {', '.join(choices)}."
        return f"{what} is {found[1]!r}; {suggestion(found[1], choices) or options}"
    if text.startswith("expected"):
        return f"{name} needs a value."
    return ended(f"{name}: {text}")


def ended(text: str) -> str:
    """Return the text with a full stop, unless it ends with one or with a question mark."""
    return text if text.endswith((".", "?")) else f"{text}."


def suggestion(given: str, choices: Iterable[str]) -> str:
    """Return `did you mean X?` for the choice that is nearest; empty if none is near."""
    by_lower = {choice.lower(): choice for choice in choices}
    near = difflib.get_close_matches(given.lower(), by_lower, n=1)
    return f"did you mean {by_lower[near[0]]}?" if near else ""


def check_extra(parser: argparse.ArgumentParser, command: str, extra: Sequence[str]) -> None:
    """Refuse arguments that the command does not have."""
    if not extra:
        return
    chosen = subparsers(parser)[command]
    flag = next((arg for arg in extra if arg.startswith("-") and arg != "-"), None)
    if flag is None:
        chosen.error(f"{extra[0]!r} is one argument too many; --help shows the usage")
    flags = [option for action in chosen._actions for option in action.option_strings]
    hint = suggestion(flag.partition("=")[0], flags) or "--help lists the flags."
    chosen.error(f"{flag.partition('=')[0]} does not exist; {hint}")


def subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of the commands, by name."""
    action = next(each for each in parser._actions if isinstance(each, argparse._SubParsersAction))
    return dict(action.choices)


def duration(seconds: int) -> str:
    """Format whole seconds in words: `2 min 5 s`."""
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def port(text: str) -> int:
    """Parse a flag that names a port."""
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"{text} is not a port; write a number from 1 to 65535")
    return int(text)


def directory(text: str) -> Path:
    """Parse a flag that names a directory. An empty text mostly is a variable without a value."""
    if not text.strip():
        raise argparse.ArgumentTypeError("the value is empty; name a directory")
    return Path(text)


def seconds(shortest: float, longest: float) -> Callable[[str], float]:
    """Return the parser of a flag in seconds."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not shortest <= value <= longest:
            raise argparse.ArgumentTypeError(f"{text} is not a time; write seconds from {shortest:g} to {longest:g}")
        return value

    return parse
