"""The arguments of every command that reads a PDDeployment."""

import argparse
from collections.abc import Callable
from pathlib import Path

from pdx_cli import usage


def add(parser: argparse.ArgumentParser, example: Path | None = None, *, several: bool = False) -> None:
    """Add the arguments of every command that reads a PDDeployment. With an example, FILE may be left out.

    With `several`, files and directories may be named, also by -f, and `sources_of` returns their files.
    """
    parser.add_argument(
        "file",
        metavar="FILE",
        type=_file_of(parser.prog),
        nargs="*" if several else None if example is None else "?",
        default=[] if several else example,
        help="YAML file with a PDDeployment; other objects are skipped; -: stdin"
        f"{'' if example is None else '; left out: an example with one engine of each kind'}",
    )
    if several:
        parser.add_argument(
            "-f",
            "--filename",
            metavar="FILE",
            type=_file_of(parser.prog),
            action="append",
            default=[],
            help="the same as FILE; a directory: its .yaml, .yml and .json files that contain a PDDeployment",
        )
        parser.set_defaults(refuse=parser.error)
    parser.add_argument(
        "--name", metavar="NAME", help="the PDDeployment of this name, or NAMESPACE/NAME, if FILE has several"
    )
    parser.add_argument(
        "--set",
        dest="assignments",
        metavar="PATH=VALUE",
        action="append",
        default=[],
        help="change one field, for example spec.kvTransfer.order=DecodeFirst or spec.engine.args[0]=--seed=1 "
        "(VALUE is YAML; null removes the field; repeatable)",
    )


def _file_of(prog: str) -> Callable[[str], Path]:
    """Return the parser of FILE for a command; `prog` is how the user calls it."""

    def parse(text: str) -> Path:
        if not text.strip():
            raise argparse.ArgumentTypeError("the value is empty; name a YAML file, or - for stdin")
        if text.lower().startswith(("http://", "https://")):
            raise argparse.ArgumentTypeError(f"{text} is a URL; pipe its content: `curl -sL {text} | {prog} -`")
        if usage.is_url(text):
            raise argparse.ArgumentTypeError(f"{text} is a URL; pipe its content, and write - instead of it")
        return Path(text)

    return parse
