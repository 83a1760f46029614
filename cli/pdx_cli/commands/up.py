"""`pdx up`: runs a PDDeployment as local processes, in the foreground."""

import argparse
import os
from pathlib import Path
from typing import Final

from pdx_api.names import GATEWAY_PORT
from pdx_cli import streams, usage
from pdx_cli.inputs import document_arguments
from pdx_cli.local.engines import LEAST_LIMIT, EngineKind, default_limit
from pdx_cli.runs.run_record import default_root

EXAMPLE: Final = Path(__file__).parents[1] / "local" / "example.yaml"
"""examples/tiny-cpu.yaml: an installation from a wheel has no folder of examples."""
START_SECONDS: Final = 600.0
MAX_START_SECONDS: Final = 24 * 3600.0

EPILOG: Final = """\
examples:
  pdx up examples/tiny-cpu.yaml
  pdx up examples/tiny-cpu.yaml --once                          prove that KV moves, then stop
  pdx up examples/tiny-cpu.yaml --set spec.kvTransfer.order=DecodeFirst
  pdx up examples/tiny-cpu.yaml --set spec.mode=Aggregated      one pool, for comparison
  pdx up examples/tiny-cpu.yaml --engine sim                    no vLLM, no model
  pdx up --engine sim --once                                    the same example, without a clone of PDX
  cat examples/tiny-cpu.yaml | pdx up - --engine sim

Ctrl-C stops every process; a second Ctrl-C kills those that still run. The exit code is 0 if --once proved that KV
moves, and after Ctrl-C while serving. It is 2 if the port or the run directory is in use: nothing was started."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `pdx up`."""
    document_arguments.add(parser, EXAMPLE)
    parser.add_argument("--once", action="store_true", help="print the proof and stop")
    parser.add_argument(
        "--port",
        type=usage.port,
        default=GATEWAY_PORT,
        metavar="PORT",
        help="the gateway's port on 127.0.0.1 (default: %(default)s)",
    )
    parser.add_argument(
        "--engine",
        choices=[str(kind) for kind in EngineKind],
        default=str(EngineKind.VLLM),
        help="real vLLM, or simulated engines (default: %(default)s)",
    )
    parser.add_argument(
        "--run-dir",
        type=usage.directory,
        metavar="DIR",
        help=f"directory for logs and state (default: {default_root()}/<name of the object>)",
    )
    parser.add_argument(
        "--start-timeout",
        type=usage.seconds(0, MAX_START_SECONDS),
        default=START_SECONDS,
        metavar="SECONDS",
        help="time for the engines to load (default: %(default)g)",
    )
    parser.add_argument(
        "--max-engines",
        type=usage.count,
        default=default_limit(os.cpu_count()),
        metavar="N",
        help="maximum number of engines on this machine "
        f"(default: 4 per core, at least {LEAST_LIMIT}, %(default)s here)",
    )
    parser.epilog = EPILOG


def run(args: argparse.Namespace) -> int:
    """Read the object, then run it until the end."""
    if args.file == EXAMPLE:
        streams.report(f"No FILE is named, so this runs PDX's example: {EXAMPLE}")
    from pdx_cli.inputs import document  # not for --help

    deployment = document.load(args.file, args.assignments, args.name)
    from pdx_cli.local import foreground  # a file that is refused needs none of it

    return foreground.run(deployment, args)
