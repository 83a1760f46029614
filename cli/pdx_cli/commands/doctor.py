"""`pdx doctor`: reports what is wrong with one deployment, and what to do."""

import argparse
import dataclasses
import io
import platform
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pdx_api.words import did_you_mean
from pdx_cli import streams, usage
from pdx_cli.errors import CommandError, InputError
from pdx_cli.inputs import formats, target, times
from pdx_cli.inputs.target import InCluster, Local

if TYPE_CHECKING:
    from pdx_cli.checks.findings import Finding
    from pdx_cli.sources.observation import Observation

FORMATS: Final = ("text", "json", "yaml")
EPILOG: Final = """\
examples:
  pdx doctor qwen -n llm
  pdx doctor qwen -n llm --context prod
  pdx doctor                         what `pdx up` runs here
  pdx doctor --admin http://127.0.0.1:9090
  pdx doctor qwen -n llm --slo ttft=2s,tpot=50ms
  pdx doctor qwen -n llm -o json | jq -r '.findings[].cause'
  pdx doctor qwen -n llm --bundle qwen-bundle
                                     write state, logs and metrics for other people to read

It changes nothing in the deployment. docs/doctor.md lists the causes and the rights that it needs."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `pdx doctor`."""
    target.add_arguments(parser)
    times.add_objectives(parser)
    formats.add_arguments(parser, *FORMATS).type = _format
    parser.add_argument(
        "--bundle",
        type=usage.directory,
        metavar="DIR",
        help="write a support bundle into a new directory: state, conditions, events, logs, metrics and versions, "
        "without keys, tokens, prompts and answers",
    )
    parser.epilog = target.epilog(parser, EPILOG)


def _format(text: str) -> str:
    """Parse the format. Whoever writes a directory means the bundle, as other commands' --output is a directory."""
    if text in FORMATS:
        return text
    if hint := did_you_mean(text, FORMATS):
        raise argparse.ArgumentTypeError(f"is {text!r}; {hint}")
    instead = f"write one of: {', '.join(FORMATS)}; a support bundle is written by --bundle DIR"
    raise argparse.ArgumentTypeError(f"{text!r} is not a format; {instead}")


def run(args: argparse.Namespace) -> int:
    """Inspect, print the findings, and return 1 if something is wrong."""
    if args.bundle is not None and usage.is_taken(args.bundle):
        raise InputError(f"--bundle {args.bundle} exists already; name a new or empty directory.")
    chosen = target.target_of(args)
    # A refused target needs none of these.
    import asyncio

    from pdx_cli.checks.catalogue import CHECKS
    from pdx_cli.checks.findings import examine, is_healthy
    from pdx_cli.support.report import as_json, print_report

    observation = asyncio.run(inspect(chosen, complete=args.bundle is not None))
    if args.slo is not None:
        observation = dataclasses.replace(observation, objectives=args.slo)
    findings = examine(observation, CHECKS)
    if args.format == "text":
        print_report(observation, findings)
    else:
        print(formats.printed(as_json(observation, findings), args.format, streams.encoding()), end="")
    if args.bundle is not None:
        _write_bundle(args.bundle, observation, findings)
    return 0 if is_healthy(findings) else 1


def _write_bundle(directory: Path, observation: "Observation", findings: "Sequence[Finding]") -> None:
    """Write the bundle, readable by its owner only."""
    from pdx_api.version import pdx_version
    from pdx_cli.support.bundle import files_of
    from pdx_cli.support.report import print_report

    report = io.StringIO()
    print_report(observation, findings, report, width=120)
    versions = {"pdx": pdx_version(), "python": platform.python_version(), "platform": platform.platform()}
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name, page in files_of(observation, findings, report.getvalue(), versions).items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{directory} cannot be written: {error.strerror}.") from error
    print(f"The support bundle is in {directory}; read README.txt in it before you pass it on.", file=sys.stderr)


async def inspect(deployment: Local | InCluster, *, complete: bool = False) -> "Observation":
    """Observe a deployment, with everything that can be read if `complete`; raises CommandError with code 2."""
    if isinstance(deployment, Local):
        from pdx_cli.sources import local
        from pdx_cli.sources.client import Client

        async with Client() as client:
            return await local.observe(deployment, client, _now)
    from pdx_cli.sources.access import access_to
    from pdx_cli.sources.cluster import ClusterObserver

    async with access_to(deployment) as access:
        return await ClusterObserver(access, complete).observe(_now)


def _now() -> datetime:
    return datetime.now(UTC)
