"""The command line `pdx`: finds the command, and turns its errors into one sentence and an exit code.

A command is a module with `add_arguments(parser)` and `run(args)`. Only the command on the command line is imported, so
that `pdx --help` is fast.
"""

import argparse
import contextlib
import errno
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Final

from pdx_api.version import pdx_version
from pdx_cli import streams
from pdx_cli.errors import EXIT_CODES, CommandError, ExitCode
from pdx_cli.usage import Parser, check_command, check_extra, check_first, prepared

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "up": ("pdx_cli.commands.up", "Run a PDDeployment as local processes and prove that KV moves."),
    "status": ("pdx_cli.commands.status", "Show what `pdx up` runs on this machine."),
    "top": ("pdx_cli.commands.top", "Watch a deployment live: engines, load, latency, pairs."),
    "bench": ("pdx_cli.commands.bench", "Measure the goodput of a deployment, and where the time goes."),
    "doctor": ("pdx_cli.commands.doctor", "Report what is wrong with a deployment, and what to do."),
    "probe": (
        "pdx_cli.commands.probe",
        "Test whether KV moves between two running engines, of PDX or of any other system.",
    ),
    "render": ("pdx_cli.commands.render", "Print what the operator would apply to a cluster, as YAML."),
    "gateway": ("pdx_cli.commands.gateway", "Run only the gateway, in front of engines that already run."),
    "sim": ("pdx_cli.commands.sim", "Run a simulated engine: vLLM's API and KV protocols, without a model."),
    "tiny-model": (
        "pdx_cli.commands.tiny_model",
        "Create a tiny model with random weights, to try PDX without a download.",
    ),
    "check-vllm": ("pdx_cli.commands.check_vllm", "Compare the code of a vLLM with what PDX assumes of it."),
    "completion": ("pdx_cli.commands.completion", "Print the completion of a shell: bash, zsh or fish."),
    "version": ("pdx_cli.commands.version", "Print the version."),
}
"""Name of a command -> its module and its help text."""

PLUGIN_COMMANDS: Final = ("top", "doctor", "render", "version")
"""The commands of `kubectl pdx`: those that concern a cluster."""

EPILOG: Final = f"""\
examples:
  pdx tiny-model /tmp/pdx/models/tiny      create the model for the next example
  pdx up examples/tiny-cpu.yaml            serve it with one prefill and one decode engine
  pdx up examples/tiny-cpu.yaml --engine sim --once
                                           the same with simulated engines; stop after the proof
  pdx render examples/qwen.yaml            print the objects for a cluster
  pdx doctor qwen -n llm                   find what is wrong with it there

{EXIT_CODES}

Run `pdx COMMAND --help` for the flags of a command."""

PLUGIN_EPILOG: Final = f"""\
examples:
  kubectl pdx doctor qwen -n llm           find what is wrong with a PDDeployment
  kubectl pdx top qwen -n llm              watch its engines, load and latency
  kubectl pdx render qwen.yaml | kubectl diff -f -
                                           compare a file with the cluster

The plugin always inspects the cluster of your kubeconfig, as kubectl does. The commands for this machine (up, status,
gateway, sim, tiny-model), and `bench`, which also measures in a cluster, are in the program `pdx`.

{EXIT_CODES}

Run `kubectl pdx COMMAND --help` for the flags of a command. To list objects: kubectl get pdd."""

_OUTPUT_ERRORS: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF}
"""Errors of a stream that has no file name: the output cannot be written."""

_NAME_ERRORS: Final = {errno.ENAMETOOLONG, errno.ELOOP}
"""Errors of a path that the user wrote, whatever it is read for."""
_LONGEST_PATH: Final = 100
"""Characters of a path that a sentence quotes."""


def main(argv: Sequence[str] | None = None, prog: str = "pdx") -> int:
    """Run one command and return the exit code."""
    streams.open_closed()
    streams.replace_unwritable()
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        if {"_ARGCOMPLETE", "COMP_LINE", "COMP_POINT"} <= os.environ.keys():
            from pdx_cli.commands import completion

            completion.answer(lambda words: parser_of(words, prog)[0])
        try:
            return _run(args, prog)
        finally:  # argparse's help ends with SystemExit
            sys.stdout.flush()
    except CommandError as error:
        streams.report(f"{prog}: {error}", *(f"    {line}" for line in error.details))
        return error.code
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("pdx_"):
            raise
        streams.report(f"{prog}: {error.name} is not installed; run `pip install 'pdx-serving[cli]'` (220 MB).")
        return ExitCode.FAILED
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader has closed the pipe (`pdx render … | head`).
        _discard_output()
        return ExitCode.FAILED
    except OSError as error:
        if error.errno in _NAME_ERRORS and error.filename is not None:
            streams.report(f"{prog}: {_shown(str(error.filename))} is not a usable path: {error.strerror}.")
            return ExitCode.INVALID
        if error.filename is not None or error.errno not in _OUTPUT_ERRORS:
            raise
        _discard_output()
        streams.report(f"{prog}: The output cannot be written: {error.strerror}.")
        return ExitCode.FAILED


def _run(args: Sequence[str], prog: str) -> int:
    def parser_of_all() -> Parser:
        return parser_of((), prog, complete=True)[0]

    if args and args[0].startswith("-") and args[0] not in ("--help", "-h", "--version", "-V"):
        check_first(args[0], args, parser_of_all)
    if args and args[0] in ("--version", "-V"):
        print(f"{prog} {pdx_version()}")
        return 0
    parser, chosen = parser_of(args, prog)
    if not args:
        parser.print_help()
        return 0
    check_command(parser, chosen, args)
    namespace = argparse.Namespace(plugin=prog != "pdx")
    parsed, extra = parser.parse_known_args(prepared(parser, chosen, args), namespace)
    assert chosen is not None, "argparse refuses a missing command"
    check_extra(parser, chosen, extra, lambda: parser_of((chosen,), "pdx")[0])
    return int(importlib.import_module(COMMANDS[chosen][0]).run(parsed))


def _shown(path: str) -> str:
    return path if len(path) <= _LONGEST_PATH else f"{path[:_LONGEST_PATH]}…"


def _discard_output() -> None:
    """Point stdout at nothing: Python flushes it again at exit, which would fail."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def parser_of(args: Sequence[str], prog: str, *, complete: bool = False) -> tuple[Parser, str | None]:
    """Return the parser and the name of the command on the command line.

    The parsers of other commands have no arguments, unless `complete`.
    """
    plugin = prog != "pdx"
    parser = Parser(
        prog=prog,
        description="PDX serves large language models with vLLM's prefill and decode on different engines.",
        epilog=PLUGIN_EPILOG if plugin else EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("-V", "--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    chosen = next((arg for arg in args if not arg.startswith("-")), None)
    if plugin and chosen in COMMANDS and chosen not in PLUGIN_COMMANDS:
        parser.error(f"The plugin has no command `{chosen}`; run `pdx {chosen}`")
    for name in PLUGIN_COMMANDS if plugin else COMMANDS:
        module, summary = COMMANDS[name]
        command = parser.commands[name] = commands.add_parser(
            name,
            help=summary,
            description=summary,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        if complete or name == chosen:
            importlib.import_module(module).add_arguments(command)
            command.epilog = f"{command.epilog or ''}\n\n{EXIT_CODES}"
    return parser, chosen
