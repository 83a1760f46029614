"""The errors that end a command, and the exit codes of all commands."""

from enum import IntEnum
from typing import Final


class ExitCode(IntEnum):
    """The exit codes. The same mistake has the same code in every command."""

    DONE = 0
    FAILED = 1
    """The command ran and failed, or found something wrong."""
    INVALID = 2
    """The command line or FILE is wrong, or the deployment cannot be inspected. Nothing was started or changed."""
    WRONG_TEXT = 3
    """Only of `pdx probe`: KV moved, and the text over it is wrong."""


EXIT_CODES: Final = """\
exit codes:
  0    done; nothing is wrong
  1    the command ran and failed, or found something wrong
  2    the command line or FILE is wrong, or the deployment cannot be read; nothing was started or changed
  130  interrupted by Ctrl-C (128 + the number of the signal)"""


class CommandError(Exception):
    """The text is one sentence for the user. `details` are lines printed below it, for example the end of a log."""

    def __init__(self, sentence: str, details: tuple[str, ...] = (), *, code: int = ExitCode.FAILED) -> None:
        super().__init__(sentence)
        self.details = details
        self.code = code
        """The exit code."""


class InputError(CommandError):
    """The command line or FILE is wrong."""

    def __init__(self, sentence: str, details: tuple[str, ...] = ()) -> None:
        super().__init__(sentence, details, code=ExitCode.INVALID)
