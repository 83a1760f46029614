"""`pdx bench`: measures the goodput of a deployment, compares it with the alternatives, and explains the result."""

import argparse
import sys
from pathlib import Path
from typing import Final

from pdx_cli.bench import arguments
from pdx_cli.errors import InputError
from pdx_cli.inputs import target
from pdx_cli.inputs.target import InCluster

NAMED: Final = "name a PDDeployment, a YAML file or a URL"
CONNECT_SECONDS: Final = 10.0
"""Longest wait for a connection to a server."""
EPILOG: Final = """\
examples:
  pdx bench                                      what `pdx up` runs here
  pdx bench qwen -n llm --isl 4000 --osl 300 --ttft 1s --tpot 30ms
  pdx bench qwen -n llm --trace day.csv.gz --scale-tokens 1/4
  pdx bench http://127.0.0.1:8000 --rate 2,4,8   TTFT and TPOT of any OpenAI-compatible server
  pdx bench examples/tiny-cpu.yaml --engine sim --compare
                                                 both modes as local processes, on simulated engines
  pdx bench qwen -n llm --compare --devices 4 --ratios 1:3,2:2
  pdx bench qwen -n llm --advise                 an estimate from live traffic, without load
  pdx bench qwen -n llm --clean                  remove what a killed comparison left
  pdx bench --report bench-qwen                  write the report of a saved run again

A request is good if it ends without an error within --ttft and --tpot. Goodput is the highest rate at which 90 % are.
The load is open-loop: each request is sent when it is due, whether or not earlier ones have ended. Requests of the
warm-up of each step do not count. OPENAI_API_KEY, if set, is sent as the API key.
The results are in --output: result.json, requests.jsonl, report.html, and files with the keys of `vllm bench serve` and
of inference-perf. docs/should-i-split.md explains them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `pdx bench`."""
    arguments.add(parser)
    parser.epilog = target.epilog(parser, EPILOG)


def run(args: argparse.Namespace) -> int:
    """Measure, or write a report again."""
    arguments.check(args)
    chosen = None if arguments.names_a_server(args) else target.target_of(args, NAMED)
    if isinstance(chosen, InCluster) and not (args.yes or args.advise or args.compare or args.clean):
        _confirm(args.name or "the PDDeployment")
    if (url := arguments.sends_to(args)) and args.trace is None:  # what is wrong with a trace is reported first
        if args.output is not None:
            arguments.check_new(args.output)
        _check_listening(arguments.server_url(url))
    if args.report is None and args.name and arguments.is_file(args.name):
        from pdx_cli.inputs import document

        deployment = document.load(Path(args.name), [], args.object)
    else:
        deployment = None
    from pdx_cli.bench import command  # what is refused needs none of it

    return command.run(args, chosen, deployment)


def _check_listening(url: str) -> None:
    """Refuse a server to which no connection can be made, before what measures it is imported; raises InputError."""
    import asyncio

    from pdx_cli.sources.client import AnswerError, connect

    async def try_connection() -> None:
        async with asyncio.timeout(CONNECT_SECONDS):
            await connect(url)

    try:
        asyncio.run(try_connection())
    except AnswerError as error:
        raise InputError(f"{error}; {arguments.SERVER}.") from error
    except TimeoutError as error:
        late = f"{url} did not answer within {CONNECT_SECONDS:g} s"
        raise InputError(f"{late}; {arguments.SERVER}.") from error


def _confirm(name: str) -> None:
    """Ask before load is sent to a PDDeployment of a cluster, which may serve users; raises InputError."""
    load = f"The load goes to the gateway of {name}, which may serve users"
    if not sys.stdin.isatty():
        raise InputError(f"{load}: add --yes, or use --advise, which sends none.")
    print(f"{load}. Send it? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise InputError("Nothing was sent; --advise estimates the result without load.")
