"""`pdx probe`: hand-offs between two engines that already run, to see whether KV moves."""

import argparse
import os
from typing import Final

from pdx_cli import streams, usage
from pdx_cli.errors import InputError
from pdx_cli.inputs import formats, wiring
from pdx_cli.probing.question import Question, engine_url

KEY_VARIABLE: Final = "VLLM_API_KEY"
EPILOG: Final = f"""\
examples:
  pdx probe --prefill http://10.0.0.1:8000 --decode http://10.0.0.2:8000
  pdx probe --prefill http://p0:8000 --decode http://d0:8000 --connector NIXL --order Concurrent
  pdx probe --prefill http://p0:8000 --decode http://d0:8000 --connector Mooncake --identity-port 8998 -o json

The engines may be run by anything; PDX needs only their URLs. It sends at most 13 short requests with random
prompts, and frees what they hold. docs/how-to/probe.md lists what it prints.

The key of engines that require one is read from {KEY_VARIABLE}, where the process list does not show it.

The exit code is 0 if KV moved and the text is right, 1 if KV did not move, 2 if an engine cannot be probed, and 3 if
the text is wrong."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `pdx probe`."""
    kind = usage.text("write for example http://10.0.0.1:8000")
    parser.add_argument("--prefill", type=kind, required=True, metavar="URL", help="engine that prefills")
    parser.add_argument("--decode", type=kind, required=True, metavar="URL", help="engine that decodes")
    wiring.add_arguments(parser)
    parser.add_argument(
        "--identity-port",
        type=usage.port,
        metavar="PORT",
        help="port at which the prefill engine serves its identity: Mooncake's bootstrap (the connector's default)",
    )
    parser.add_argument("--model", type=usage.text("name a model"), help="name to request (the one that both serve)")
    parser.add_argument(
        "--api-key",
        type=usage.text(f"write a key, or set {KEY_VARIABLE}"),
        metavar="KEY",
        help=f"key of both engines (${KEY_VARIABLE})",
    )
    parser.add_argument(
        "--timeout",
        type=usage.seconds(1, 600),
        default=30.0,
        metavar="SECONDS",
        help="deadline of each request (%(default)g)",
    )
    formats.add_arguments(parser, "text", "json", "yaml")
    parser.epilog = EPILOG


def run(args: argparse.Namespace) -> int:
    """Probe, print the result, and return its exit code."""
    connector, order = wiring.chosen(args)
    prefill, decode = engine_url("--prefill", args.prefill), engine_url("--decode", args.decode)
    if prefill == decode:
        raise InputError(f"--prefill and --decode are both {prefill}; name two engines.")
    question = Question(prefill, decode, connector, order, args.model, args.identity_port, args.timeout)
    from pdx_cli.probing.interruptible import interruptible  # not for --help: they import the gateway
    from pdx_cli.probing.report import EXIT_CODES, as_json, lines_of

    report = interruptible(question, args.api_key or os.environ.get(KEY_VARIABLE) or None)
    if args.format == "text":
        print("\n".join(lines_of(report)))
    else:
        print(formats.printed(as_json(report), args.format, streams.encoding()), end="")
    return EXIT_CODES[report.outcome]
