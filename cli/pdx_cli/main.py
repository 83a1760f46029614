"""The command line `pdx`: finds the command, and turns its errors into one sentence and an exit code.

A command is a module with `add_arguments(parser)` and `run(args)`. Only the command on the command line is imported, so
that `pdx --help` is fast.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

from pdx_api.version import pdx_version
from pdx_cli.errors import CommandError

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "up": ("pdx_cli.commands.up", "Run a PDDeployment as local processes and prove that KV moves."),
    "status": ("pdx_cli.commands.status", "Show what `pdx up` runs on this machine."),
    "top": ("pdx_cli.commands.top", "Watch a deployment live: engines, pairs, phases, outcomes."),
    "doctor": ("pdx_cli.commands.doctor", "Report what is wrong with a deployment, and what to do."),
    "render": ("pdx_cli.commands.render", "Print what the operator would apply to a cluster, as YAML."),
    "gateway": ("pdx_cli.commands.gateway", "Run only the gateway, in front of engines that already run."),
    "sim": ("pdx_cli.commands.sim", "Run a simulated engine: vLLM's API and KV protocols, without a model."),
    "tiny-model": (
        "pdx_cli.commands.tiny_model",
        "Create a tiny model with random weights, to try PDX without a download.",
    ),
}
"""Name of a command -> its module and its help text."""

EPILOG: Final = """\
examples:
  pdx tiny-model /tmp/pdx/models/tiny      create the model for the next example
  pdx up examples/tiny-cpu.yaml            serve it with one prefill and one decode engine
  pdx up examples/tiny-cpu.yaml --engine sim --once
                                           the same with simulated engines; stop after the proof
  pdx render examples/qwen.yaml            print the objects for a cluster
  pdx doctor qwen -n llm                   find what is wrong with it there

Run `pdx COMMAND --help` for the flags of a command."""


def plugin() -> int:
    """Run as `kubectl pdx`: kubectl runs the program kubectl-pdx on PATH."""
    return main(prog="kubectl pdx")


def main(argv: Sequence[str] | None = None, prog: str = "pdx") -> int:
    """Run one command and return the exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    parser, chosen = _parser(args, prog)
    parsed = parser.parse_args(args, argparse.Namespace(plugin=prog != "pdx"))
    assert chosen is not None, "argparse refuses a missing command"
    try:
        return int(importlib.import_module(COMMANDS[chosen][0]).run(parsed))
    except CommandError as error:
        print(f"pdx: {error}", file=sys.stderr)
        for line in error.details:
            print(f"    {line}", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader has closed the pipe (`pdx render … | head`). Python flushes stdout again at exit, which would fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


class Parser(argparse.ArgumentParser):
    """Reports a usage error in one sentence, without the list of all flags."""

    def error(self, message: str) -> NoReturn:
        """Print the error on stderr and exit with 2."""
        self.exit(2, f"{self.prog}: {message}\n")


def _parser(args: Sequence[str], prog: str) -> tuple[argparse.ArgumentParser, str | None]:
    parser = Parser(
        prog=prog,
        description="PDX serves large language models with vLLM's prefill and decode on different engines.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"{prog} {pdx_version()}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    chosen = next((arg for arg in args if not arg.startswith("-")), None)
    for name, (module, summary) in COMMANDS.items():
        command = commands.add_parser(
            name,
            help=summary,
            description=summary,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        if name == chosen:
            importlib.import_module(module).add_arguments(command)
    return parser, chosen
