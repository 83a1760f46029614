"""`pdx doctor`: what is wrong with one deployment, in sentences, and what to do."""

import argparse
import asyncio
import dataclasses
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from rich.console import Console
from rich.text import Text

from pdx_cli.checks import cluster, serving
from pdx_cli.checks.findings import Finding, Severity, examine, is_healthy
from pdx_cli.inputs import target
from pdx_cli.inputs.target import InCluster
from pdx_cli.sources.client import Client
from pdx_cli.sources.cluster import Look, sole_name
from pdx_cli.sources.kube import Kube
from pdx_cli.sources.local import Local
from pdx_cli.sources.picture import Picture

CHECKS: Final = (*cluster.CHECKS, *serving.CHECKS)

EPILOG: Final = f"""\
examples:
  pdx doctor qwen -n llm
  kubectl pdx doctor qwen -n llm --context prod
  pdx doctor                         what `pdx up` runs here
  pdx doctor --admin http://127.0.0.1:9090
  pdx doctor qwen -n llm --json | jq -r '.findings[].cause'

{target.WHERE}

It changes nothing. Exit code: 0 nothing is wrong; 1 something is; 2 it could not look.
docs/doctor.md lists what it looks for and the rights it uses."""

MARKS: Final = {
    Severity.WRONG: ("✗", "bold red"),
    Severity.WAIT: ("…", "yellow"),
    Severity.FOLLOWS: ("→", "yellow"),
    Severity.NOTE: ("·", "dim"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `pdx doctor`."""
    target.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the findings as JSON, for programs")
    parser.epilog = EPILOG


def run(args: argparse.Namespace) -> int:
    """Look, print the findings, and say by the exit code whether there is any."""
    picture = asyncio.run(look(target.target_of(args)))
    findings = examine(picture, CHECKS)
    print(_json(picture, findings)) if args.json else _print(picture, findings)
    return 0 if is_healthy(findings) else 1


async def look(what: Local | InCluster) -> Picture:
    """The picture of a deployment; raises CommandError with code 2 when it cannot be had."""
    if isinstance(what, Local):
        async with Client() as client:
            return await what.picture(client, _now)
    kube, namespace = await Kube.of(what.kubeconfig, what.context)
    try:
        namespace = what.namespace or namespace
        name = what.name or await sole_name(kube, namespace)
        return await Look(kube, namespace, name).picture(_now)
    finally:
        await kube.close()


def _now() -> datetime:
    return datetime.now(UTC)


def _print(picture: Picture, findings: Sequence[Finding]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    where = f"namespace {picture.namespace}" if picture.namespace is not None else "this machine"
    console.print(Text(f"{picture.name} ({where}): {_verdict(findings)}", "bold"))
    for finding in findings:
        mark, style = MARKS[finding.severity]
        console.print()
        console.print(Text.assemble((f"{mark} ", style), (f"{finding.cause}: ", style), _ended(finding.sentence)))
        if finding.remedy:
            console.print(Text(f"    {_ended(finding.remedy)}"))
    console.print()
    console.print(Text(f"Looked at {_seen(picture)}.", "dim"))
    if picture.unseen:
        console.print(Text(f"Not seen: {'; '.join(picture.unseen)}.", "dim"))


def _verdict(findings: Sequence[Finding]) -> str:
    wrong = sum(finding.severity is Severity.WRONG for finding in findings)
    if wrong:
        return "1 thing is wrong." if wrong == 1 else f"{wrong} things are wrong."
    return "nothing is wrong." if is_healthy(findings) else "it is not ready, and nothing is found to be wrong."


def _seen(picture: Picture) -> str:
    if picture.namespace is None:
        return f"{len(picture.gateways)} gateways and {len(picture.engines)} engines"
    asked = sum(gateway.state is not None for gateway in picture.gateways)
    return (
        f"the object, {len(picture.pools)} Deployments of engines, {len(picture.pods)} pods, {len(picture.events)} "
        f"warnings, {asked} gateways and {len(picture.engines)} running engines"
    )


def _ended(sentence: str) -> str:
    return sentence if sentence.endswith((".", "…", ":", "?", "!")) else f"{sentence}."


def _json(picture: Picture, findings: Sequence[Finding]) -> str:
    told = {
        "name": picture.name,
        "namespace": picture.namespace,
        "healthy": is_healthy(findings),
        "findings": [dataclasses.asdict(finding) for finding in findings],
        "unseen": list(picture.unseen),
    }
    return json.dumps(told, indent=2, ensure_ascii=False)
