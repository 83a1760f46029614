"""`pdx version`: the version of PDX."""

import argparse

from pdx_api.version import pdx_version


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `pdx version`: none."""
    parser.epilog = f"examples:\n  {parser.prog}"


def run(args: argparse.Namespace) -> int:
    """Print the version, as --version does."""
    print(f"{'kubectl pdx' if args.plugin else 'pdx'} {pdx_version()}")
    return 0
