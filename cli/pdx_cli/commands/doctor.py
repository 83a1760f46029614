"""`pdx doctor`: reports what is wrong with one deployment, and what to do."""

import argparse
import asyncio
import dataclasses
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from rich.console import Console
from rich.text import Text

from pdx_cli.checks.catalogue import CHECKS
from pdx_cli.checks.findings import Finding, Severity, examine, is_healthy
from pdx_cli.inputs import target
from pdx_cli.inputs.target import InCluster, Local
from pdx_cli.sources import local
from pdx_cli.sources.access import ObjectAccess, sole_name
from pdx_cli.sources.client import Client
from pdx_cli.sources.cluster import ClusterObserver
from pdx_cli.sources.kube import Kube
from pdx_cli.sources.observation import Observation

EPILOG: Final = f"""\
examples:
  pdx doctor qwen -n llm
  kubectl pdx doctor qwen -n llm --context prod
  pdx doctor                         what `pdx up` runs here
  pdx doctor --admin http://127.0.0.1:9090
  pdx doctor qwen -n llm --json | jq -r '.findings[].cause'

{target.WHERE}

It changes nothing. Exit code: 0 nothing is wrong; 1 something is wrong or not ready; 2 the inspection failed.
docs/doctor.md lists the causes and the rights that it needs."""

MARKS: Final = {
    Severity.WRONG: ("✗", "bold red"),
    Severity.WAIT: ("…", "yellow"),
    Severity.FOLLOWS: ("→", "yellow"),
    Severity.NOTE: ("·", "dim"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `pdx doctor`."""
    target.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the findings as JSON, for programs")
    parser.epilog = EPILOG


def run(args: argparse.Namespace) -> int:
    """Inspect, print the findings, and return 1 if something is wrong."""
    observation = asyncio.run(inspect(target.target_of(args)))
    findings = examine(observation, CHECKS)
    print(_json(observation, findings)) if args.json else _print(observation, findings)
    return 0 if is_healthy(findings) else 1


async def inspect(deployment: Local | InCluster) -> Observation:
    """Observe a deployment; raises CommandError with code 2."""
    if isinstance(deployment, Local):
        async with Client() as client:
            return await local.observe(deployment, client, _now)
    kube, namespace = await Kube.of(deployment.kubeconfig, deployment.context)
    try:
        namespace = deployment.namespace or namespace
        name = deployment.name or await sole_name(kube, namespace)
        return await ClusterObserver(ObjectAccess(kube, namespace, name)).observe(_now)
    finally:
        await kube.close()


def _now() -> datetime:
    return datetime.now(UTC)


def _print(observation: Observation, findings: Sequence[Finding]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    where = f"namespace {observation.namespace}" if observation.namespace is not None else "this machine"
    console.print(Text(f"{observation.name} ({where}): {_verdict(findings)}", "bold"))
    for finding in findings:
        mark, style = MARKS[finding.severity]
        console.print()
        console.print(Text.assemble((f"{mark} ", style), (f"{finding.cause}: ", style), _ended(finding.sentence)))
        if finding.remedy:
            console.print(Text(f"    {_ended(finding.remedy)}"))
    console.print()
    console.print(Text(f"Inspected {_extent(observation)}.", "dim"))
    if observation.unseen:
        console.print(Text(f"Not inspected: {'; '.join(observation.unseen)}.", "dim"))


def _verdict(findings: Sequence[Finding]) -> str:
    wrong = sum(finding.severity is Severity.WRONG for finding in findings)
    if wrong:
        return "1 thing is wrong." if wrong == 1 else f"{wrong} things are wrong."
    return "nothing is wrong." if is_healthy(findings) else "it is not ready, but no cause was found."


def _extent(observation: Observation) -> str:
    if observation.namespace is None:
        return f"{len(observation.gateways)} gateways and {len(observation.engines)} engines"
    gateways = sum(gateway.state is not None for gateway in observation.gateways)
    return (
        f"the object, {len(observation.pools)} Deployments of engines, {len(observation.pods)} pods, "
        f"{len(observation.events)} warnings, {gateways} gateways and {len(observation.engines)} running engines"
    )


def _ended(sentence: str) -> str:
    return sentence if sentence.endswith((".", "…", ":", "?", "!")) else f"{sentence}."


def _json(observation: Observation, findings: Sequence[Finding]) -> str:
    report = {
        "name": observation.name,
        "namespace": observation.namespace,
        "healthy": is_healthy(findings),
        "findings": [dataclasses.asdict(finding) for finding in findings],
        "unseen": list(observation.unseen),
    }
    return json.dumps(report, indent=2, ensure_ascii=False)
