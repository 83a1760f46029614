"""The errors of a command line, each as one sentence with the correction."""

import argparse
import contextlib
import difflib
import re
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, Final, NoReturn

from pdx_api.user_info import without_user_info
from pdx_api.words import did_you_mean
from pdx_cli.errors import ExitCode, InputError

_TYPES: Final = {int: "a whole number", float: "a number"}
"""Type of a flag -> what to write."""

_ELSEWHERE: Final = {
    "apply": "run `kubectl apply -f FILE`, or `pdx up FILE` on this machine",
    "deploy": "run `kubectl apply -f FILE`, or `pdx up FILE` on this machine",
    "delete": "run `kubectl delete -f FILE`",
    "get": "run `kubectl get pdd`, or `pdx status` for this machine",
    "logs": "`pdx status` shows where the logs are; in a cluster, run `kubectl logs`",
    "down": "press Ctrl-C in the terminal of `pdx up`, or end the process that `pdx status` shows",
    "stop": "press Ctrl-C in the terminal of `pdx up`, or end the process that `pdx status` shows",
}
"""Command that other tools have -> what does the same here."""
_NEGATIVE: Final = re.compile(r"-\.?\d")
_REQUIRED: Final = "the following arguments are required: "


class Parser(argparse.ArgumentParser):
    """Reports a usage error in one sentence, without the list of all flags."""

    given: Sequence[str] = ()
    """The arguments, for errors."""

    def __init__(self, **options: Any) -> None:
        self.actions: list[argparse.Action] = []
        """Every argument, also those of groups."""
        self.commands: dict[str, Parser] = {}
        """The parsers of the commands, by name."""
        super().__init__(**options, exit_on_error=False)

    def add_argument(self, *names: Any, **options: Any) -> argparse.Action:
        """Add and record an argument."""
        return self._recorded(super().add_argument(*names, **options))

    def add_argument_group(self, *names: Any, **options: Any) -> Any:
        """Add a group, whose arguments are recorded too."""
        group = super().add_argument_group(*names, **options)
        add = group.add_argument
        group.add_argument = lambda *names, **options: self._recorded(add(*names, **options))  # type: ignore[method-assign]
        return group

    def _recorded(self, action: argparse.Action) -> argparse.Action:
        self.actions.append(action)
        if action.nargs != 0:
            action.type = _checked(action.type, action.choices)
        return action

    @property
    def flags(self) -> list[str]:
        """Every flag, with its short forms."""
        return [option for action in self.actions for option in action.option_strings]

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the arguments; an error ends the process."""
        try:
            return super().parse_known_args(args, namespace)
        except argparse.ArgumentError as error:
            self.error(self._described(error))

    def _described(self, error: argparse.ArgumentError) -> str:
        """Return what is wrong with the value of an argument, which has the form that was given."""
        if error.argument_name is None:  # a missing argument, with Python 3.12.8 and newer
            return error.message
        names, written = error.argument_name.split("/"), {arg.partition("=")[0] for arg in self.given}
        name = next((each for each in names if each in written), names[-1])
        if isinstance(error.__context__, argparse.ArgumentTypeError):
            text = str(error.__context__)
            return f"{name} {text}" if text.startswith("is ") else f"{name}: {text}"
        takes_none = any(action.nargs == 0 for action in self.actions if names[-1] in action.option_strings)
        return f"{name} {'takes no value' if takes_none else 'needs a value'}"

    def error(self, message: str) -> NoReturn:
        """Print the error on stderr and exit with 2. A flag that does not exist is reported before a missing one."""
        if missing := message.partition(_REQUIRED)[2]:
            verb = "are" if "," in missing else "is"
            flag = _missing_from(self.flags, self.given)
            message = _nonexistent(flag, self.flags) if flag else f"{missing} {verb} missing; --help shows the usage"
        with contextlib.suppress(OSError):  # stderr may be on a full disk
            sys.stderr.write(f"{self.prog}: {ended(without_user_info(message))}\n")
            sys.stderr.flush()
        self.exit(ExitCode.INVALID)

    def print_help(self, file: Any = None) -> None:
        """Write the help; unlike argparse, let a full disk or a closed pipe be an error."""
        (file or sys.stdout).write(self.format_help())


def _checked(kind: Any, choices: Iterable[Any] | None) -> Callable[[str], Any]:
    """Return the type of an argument with errors that say what to write."""

    def parse(text: str) -> Any:
        if choices is not None and text not in choices:
            instead = did_you_mean(text, choices) or f"write one of: {', '.join(choices)}"
            raise argparse.ArgumentTypeError(f"is {text!r}; {instead}")
        try:
            return text if kind is None else kind(text)
        except (TypeError, ValueError) as error:
            raise argparse.ArgumentTypeError(f"is {text!r}; write {_TYPES.get(kind, 'another value')}") from error

    return parse


def check_command(parser: Parser, command: str | None, args: Sequence[str]) -> None:
    """Refuse a command that does not exist."""
    if command is None or command in parser.commands or args[0] != command:
        return
    if command in _ELSEWHERE:
        parser.error(f"there is no command {command}; {_ELSEWHERE[command]}")
    instead = did_you_mean(command, parser.commands) or f"write one of: {', '.join(parser.commands)}"
    parser.error(f"the command is {command!r}; {instead}")


def ended(text: str) -> str:
    """Return the text with a full stop, unless it ends with one or with a question mark."""
    return text if text.endswith((".", "?")) else f"{text}."


def check_extra(parser: Parser, command: str, extra: Sequence[str], parser_of_pdx: Callable[[], Parser]) -> None:
    """Refuse arguments that the command does not have. `parser_of_pdx` returns that of `pdx`, not of the plugin."""
    if not extra:
        return
    chosen = parser.commands[command]
    own = chosen.flags  # behind `--`, they are arguments
    flag = _missing_from(own, extra)
    if flag is None:
        chosen.error(f"{extra[0]!r} is one argument too many; --help shows the usage")
    if flag in parser_of_pdx().commands[command].flags:
        chosen.error(f"the plugin always inspects a cluster; leave out {flag}, or run `pdx {command} {flag}`")
    chosen.error(_nonexistent(flag, own))


def check_first(first: str, args: Sequence[str], parser_of_all: Callable[[], Parser]) -> None:
    """Refuse a flag before the command. `parser_of_all` returns the parser with the flags of every command."""
    parser, flag = parser_of_all(), first.partition("=")[0]
    if flag in parser.flags:
        return
    commands = {name for name, each in parser.commands.items() if flag in each.flags}
    if not commands:
        hint = _flag_suggestion(flag, parser.flags) or "--help lists the commands."
        parser.error(f"{flag} does not exist; {hint}")
    example = next((arg for arg in args if arg in commands), min(commands))
    parser.error(f"{flag} is a flag of a command; write it after the command: `{parser.prog} {example} {flag}`")


def _missing_from(flags: Sequence[str], args: Iterable[str]) -> str | None:
    """Return the first flag before `--` that a parser does not have; None if there is none."""
    before = takewhile(lambda arg: arg != "--", args)
    given = (arg.partition("=")[0] for arg in before if arg.startswith("-") and " " not in arg)
    return next((each for each in given if each not in (*flags, "-")), None)


def _nonexistent(flag: str, flags: Sequence[str]) -> str:
    """Return the error about a flag that a command does not have."""
    return f"{flag} does not exist; {_flag_suggestion(flag, flags) or '--help lists the flags.'}"


def prepared(parser: Parser, command: str | None, args: Sequence[str]) -> Sequence[str]:
    """Return the arguments with `--flag -1s` as `--flag=-1s`: argparse takes all that begins with a dash for a flag."""
    chosen = parser.commands.get(command or "")
    if chosen is None:
        return args
    chosen.given = tuple(_with_negative_values(chosen, args))
    return chosen.given


def _with_negative_values(parser: Parser, args: Iterable[str]) -> Iterator[str]:
    takes_one = {option for action in parser.actions if action.nargs is None for option in action.option_strings}
    rest = deque(args)
    while rest and rest[0] != "--":
        arg = rest.popleft()
        if arg in takes_one and rest and _NEGATIVE.match(rest[0]):
            arg = f"{arg}={rest.popleft()}"
        yield arg
    yield from rest


def _flag_suggestion(given: str, flags: Sequence[str]) -> str:
    """Return `did you mean --X?`; empty if none is near. The dashes, which all flags share, make none similar."""
    by_name = {flag.lstrip("-"): flag for flag in flags if flag.startswith("--") or flag == given.lower()}
    near = difflib.get_close_matches(given.lstrip("-").lower(), by_name, n=1)
    return f"did you mean {by_name[near[0]]}?" if near else ""


def amount(number: int, noun: str, total: int | None = None) -> str:
    """Return for example `1 pair`, `2 pairs`, or with a total `1 of 9 pairs`."""
    plural = "" if (number if total is None else total) == 1 else "s"
    return f"{number} {noun}{plural}" if total is None else f"{number} of {total} {noun}{plural}"


def duration(seconds: int) -> str:
    """Format whole seconds in words: `2 min 5 s`."""
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def _refused(text: str, reason: str, instead: str) -> argparse.ArgumentTypeError:
    """Return the error about a flag's value, which may be empty: mostly a variable without a value."""
    return argparse.ArgumentTypeError(f"{f'{text} {reason}' if text.strip() else 'the value is empty'}; {instead}")


def text(instead: str) -> Callable[[str], str]:
    """Return the parser of a flag that is any text but an empty one; `instead` says what to write."""

    def parse(given: str) -> str:
        if not given.strip():  # mostly a variable without a value
            raise argparse.ArgumentTypeError(f"the value is empty; {instead}")
        return given

    return parse


def port(text: str) -> int:
    """Parse a flag that names a port."""
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= 65535):
        raise _refused(text, "is not a port", "write a number from 1 to 65535")
    return int(text)


def count(text: str) -> int:
    """Parse a flag that is a number of things, at least one."""
    if not (text.isascii() and text.isdecimal() and int(text) > 0):
        raise _refused(text, "is not valid", "write a whole number, 1 or more")
    return int(text)


def directory(text: str) -> Path:
    """Parse a flag that names a directory."""
    if text in ("json", "yaml", "text"):  # other commands' --output is a format
        raise argparse.ArgumentTypeError(f"{text} is a format; name a directory, for example ./{text}")
    return _path(text, "a directory")


def existing_run_directory(text: str) -> Path:
    """Parse a flag that names the directory of a run, or the parent of several."""
    found = directory(text)
    if not found.exists():
        raise argparse.ArgumentTypeError(
            f"{text} does not exist; name the directory of a run, or the parent of several"
        )
    return found


def file(text: str) -> Path:
    """Parse a flag that names a file."""
    found = _path(text, "a file")
    if found.is_char_device():  # /dev/zero has no end
        raise argparse.ArgumentTypeError(f"{text} is a device; name a file")
    return found


def _path(text: str, what: str) -> Path:
    if not text.strip():  # mostly a variable without a value
        raise argparse.ArgumentTypeError(f"the value is empty; name {what}")
    if is_url(text):  # a Path would lose a slash of it
        raise argparse.ArgumentTypeError(f"{text} is a URL; name {what} on this machine")
    return Path(text)


def is_url(text: str) -> bool:
    """Whether a text is a URL, of any scheme: https://HOST/PATH, s3://BUCKET/KEY."""
    return re.match(r"[a-z][-+.a-z0-9]*://", text, re.IGNORECASE) is not None


def is_taken(new: Path) -> bool:
    """Whether a directory that is to be created exists and is not empty; raises InputError if it cannot be created."""
    try:
        if blocking := next((each for each in new.absolute().parents if each.exists() and not each.is_dir()), None):
            raise InputError(f"{new} cannot be created: {blocking} is not a directory; name another directory.")
        return new.exists() and (not new.is_dir() or any(new.iterdir()))
    except OSError as error:
        raise InputError(f"{new} cannot be created: {error.strerror}; name another directory.") from error


def seconds(shortest: float, longest: float) -> Callable[[str], float]:
    """Return the parser of a flag in seconds."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not shortest <= value <= longest:
            raise _refused(text, "is not a time", f"write seconds from {shortest:g} to {longest:g}")
        return value

    return parse
