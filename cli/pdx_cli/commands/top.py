"""`pdx top`: shows a deployment live on the terminal."""

import argparse
from typing import Final

from pdx_cli import usage
from pdx_cli.display.legend import SOURCES, Sort
from pdx_cli.inputs import formats, target, times

EPILOG: Final = f"""\
examples:
  pdx top                            what `pdx up` runs here
  pdx top qwen -n llm
  pdx top qwen -n llm --interval 5 --sort kv
  pdx top --admin http://127.0.0.1:9090 --once
  pdx top qwen -n llm --once -o json | jq .ttftSeconds

values, and the metrics that they come from:
{SOURCES}

In a terminal, q quits and ? shows the keys. In a pipe, and with TERM=dumb, it prints one update after another; with
-o json, one JSON object per line. NO_COLOR switches colours off."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `pdx top`."""
    target.add_arguments(parser)
    times.add_objectives(parser)
    parser.add_argument("--once", action="store_true", help="print the values of one interval and end")
    parser.add_argument(
        "--interval",
        type=usage.seconds(0.1, 3600),
        default=2.0,
        metavar="SECONDS",
        help="time between two updates (default: %(default)g)",
    )
    parser.add_argument(
        "--sort",
        choices=[str(sort) for sort in Sort],
        default=str(Sort.STATE),
        help="order of the engines; state: first those that do not serve (default: %(default)s)",
    )
    formats.add_arguments(parser, "text", "json", "yaml")
    parser.epilog = target.epilog(parser, EPILOG)


def run(args: argparse.Namespace) -> int:
    """Show figures until q or Ctrl-C, or once."""
    chosen = target.target_of(args)
    from pdx_cli.display import live  # a target that is refused needs none of it

    return live.run(chosen, args)
