"""`pdx doctor`: reports what is wrong with one deployment, and what to do."""

import argparse
import asyncio
import dataclasses
import io
import platform
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from pdx_api.version import pdx_version
from pdx_cli import usage
from pdx_cli.checks.catalogue import CHECKS
from pdx_cli.checks.findings import Finding, Severity, examine, is_healthy
from pdx_cli.errors import CommandError, InputError
from pdx_cli.inputs import formats, target, times
from pdx_cli.inputs.target import InCluster, Local
from pdx_cli.sources import local
from pdx_cli.sources.access import access_to
from pdx_cli.sources.client import Client
from pdx_cli.sources.cluster import ClusterObserver
from pdx_cli.sources.observation import Observation
from pdx_cli.support.bundle import files_of

EPILOG: Final = """\
examples:
  pdx doctor qwen -n llm
  pdx doctor qwen -n llm --context prod
  pdx doctor                         what `pdx up` runs here
  pdx doctor --admin http://127.0.0.1:9090
  pdx doctor qwen -n llm --slo ttft=2s,tpot=50ms
  pdx doctor qwen -n llm -o json | jq -r '.findings[].cause'
  pdx doctor qwen -n llm --output bundle
                                     write state, logs and metrics for other people to read

It changes nothing in the deployment. docs/doctor.md lists the causes and the rights that it needs."""

MARKS: Final = {
    Severity.IMPACT: ("!", "bold red"),
    Severity.WRONG: ("✗", "bold red"),
    Severity.WAIT: ("…", "yellow"),
    Severity.FOLLOWS: ("→", "yellow"),
    Severity.NOTE: ("·", "dim"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `pdx doctor`."""
    target.add_arguments(parser)
    times.add_objectives(parser)
    formats.add_arguments(parser, "text", "json", "yaml")
    parser.add_argument(
        "--output",
        type=usage.directory,
        metavar="DIR",
        help="write a support bundle into a new directory: state, conditions, events, logs, metrics and versions, "
        "without keys, tokens, prompts and answers",
    )
    parser.epilog = target.epilog(parser, EPILOG)


def run(args: argparse.Namespace) -> int:
    """Inspect, print the findings, and return 1 if something is wrong."""
    if args.output is not None and usage.is_taken(args.output):
        raise InputError(f"--output {args.output} exists already; name a new or empty directory.")
    observation = asyncio.run(inspect(target.target_of(args), complete=args.output is not None))
    if args.slo is not None:
        observation = dataclasses.replace(observation, objectives=args.slo)
    findings = examine(observation, CHECKS)
    if args.format == "text":
        _print(Console(highlight=False, soft_wrap=True), observation, findings)
    else:
        print(formats.printed(_report(observation, findings), args.format), end="")
    if args.output is not None:
        _write_bundle(args.output, observation, findings)
    return 0 if is_healthy(findings) else 1


def _write_bundle(directory: Path, observation: Observation, findings: Sequence[Finding]) -> None:
    """Write the bundle, readable by its owner only."""
    report = io.StringIO()
    _print(Console(file=report, highlight=False, soft_wrap=True, width=120), observation, findings)
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


async def inspect(deployment: Local | InCluster, *, complete: bool = False) -> Observation:
    """Observe a deployment, with everything that can be read if `complete`; raises CommandError with code 2."""
    if isinstance(deployment, Local):
        async with Client() as client:
            return await local.observe(deployment, client, _now)
    async with access_to(deployment) as access:
        return await ClusterObserver(access, complete).observe(_now)


def _now() -> datetime:
    return datetime.now(UTC)


def _print(console: Console, observation: Observation, findings: Sequence[Finding]) -> None:
    where = f"namespace {observation.namespace}" if observation.namespace is not None else "this machine"
    console.print(Text(f"{observation.name} ({where}): {_verdict(findings)}", "bold"))
    for finding in findings:
        mark, style = MARKS[finding.severity]
        console.print()
        console.print(Text.assemble((f"{mark} ", style), (f"{finding.cause}: ", style), _ended(finding.sentence)))
        for line in finding.remedy.splitlines():
            console.print(Text(f"    {line if line.startswith('Its ') else _ended(line)}"))
    console.print()
    console.print(Text(f"Inspected {_extent(observation)}.", "dim"))
    if observation.unseen:
        console.print(Text(f"Not inspected: {'; '.join(observation.unseen)}.", "dim"))


def _verdict(findings: Sequence[Finding]) -> str:
    wrong = sum(finding.severity is Severity.WRONG for finding in findings)
    if any(finding.severity is Severity.IMPACT for finding in findings):
        more = f"; {_count(wrong, 'cause')} below" if wrong else ""
        return f"clients suffer{more}."
    if wrong:
        return "1 thing is wrong." if wrong == 1 else f"{wrong} things are wrong."
    if is_healthy(findings):
        return "nothing is wrong."
    if any(finding.severity is Severity.WAIT for finding in findings):
        return "it is not ready yet."
    return "it is not ready, but no cause was found."


def _extent(observation: Observation) -> str:
    if observation.namespace is None:
        return f"{_count(len(observation.gateways), 'gateway')} and {_count(len(observation.engines), 'engine')}"
    gateways = sum(gateway.state is not None for gateway in observation.gateways)
    pools, pods = _count(len(observation.pools), "Deployment"), _count(len(observation.pods), "pod")
    events, running = _count(len(observation.events), "warning"), _count(len(observation.engines), "running engine")
    return f"the object, {pools} of engines, {pods}, {events}, {_count(gateways, 'gateway')} and {running}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _ended(sentence: str) -> str:
    return sentence if sentence.endswith((".", "…", ":", "?", "!")) else f"{sentence}."


def _report(observation: Observation, findings: Sequence[Finding]) -> Mapping[str, Any]:
    return {
        "name": observation.name,
        "namespace": observation.namespace,
        "healthy": is_healthy(findings),
        "findings": [dataclasses.asdict(finding) for finding in findings],
        "unseen": list(observation.unseen),
    }
