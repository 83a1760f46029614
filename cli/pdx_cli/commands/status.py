"""`pdx status`: shows what `pdx up` runs on this machine."""

import argparse
from typing import Final

from pdx_cli import usage
from pdx_cli.inputs import formats
from pdx_cli.runs.run_record import default_root

EPILOG: Final = """\
examples:
  pdx status
  pdx status -o json | jq '.[] | select(.running) | .endpoint'
  pdx status -o name

In flight are requests of clients, and what engines serve of them: a split request may be at a prefill and at a decode
engine at once."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `pdx status`."""
    formats.add_arguments(parser, "text", "json", "yaml", "name")
    parser.add_argument(
        "--run-dir",
        type=usage.existing_run_directory,
        metavar="DIR",
        help=f"directory of a run, or parent of several (default: {default_root()})",
    )
    parser.epilog = EPILOG


def run(args: argparse.Namespace) -> int:
    """Print the running `pdx up`s, and remove the records of ended ones."""
    from pdx_cli.display import overview  # not for --help

    return overview.run(args)
