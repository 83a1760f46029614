"""The report of `pdx doctor`: findings as text for people, and as values for programs."""

import dataclasses
import shutil
from collections.abc import Mapping, Sequence
from typing import Any, Final, TextIO

from rich.console import Console
from rich.text import Text

from pdx_cli.checks.findings import Finding, Severity, is_healthy
from pdx_cli.sources.observation import Observation
from pdx_cli.usage import amount

MARKS: Final = {
    Severity.IMPACT: ("!", "bold red"),
    Severity.WRONG: ("✗", "bold red"),
    Severity.WAIT: ("…", "yellow"),
    Severity.FOLLOWS: ("→", "yellow"),
    Severity.NOTE: ("·", "dim"),
}


def print_report(
    observation: Observation, findings: Sequence[Finding], file: TextIO | None = None, width: int | None = None
) -> None:
    """Print the report for people, on stdout or into a file of so many columns."""
    columns = width or shutil.get_terminal_size().columns  # with COLUMNS=0, rich would print nothing
    console = Console(file=file, highlight=False, soft_wrap=True, width=columns)
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
        more = f"; {amount(wrong, 'cause')} below" if wrong else ""
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
        return f"{amount(len(observation.gateways), 'gateway')} and {amount(len(observation.engines), 'engine')}"
    gateways = sum(gateway.state is not None for gateway in observation.gateways)
    pools, pods = amount(len(observation.pools), "Deployment"), amount(len(observation.pods), "pod")
    events, running = amount(len(observation.events), "warning"), amount(len(observation.engines), "running engine")
    return f"the object, {pools} of engines, {pods}, {events}, {amount(gateways, 'gateway')} and {running}"


def _ended(sentence: str) -> str:
    return sentence if sentence.endswith((".", "…", ":", "?", "!")) else f"{sentence}."


def as_json(observation: Observation, findings: Sequence[Finding]) -> Mapping[str, Any]:
    """Return the report for programs."""
    return {
        "name": observation.name,
        "namespace": observation.namespace,
        "healthy": is_healthy(findings),
        "findings": [dataclasses.asdict(finding) for finding in findings],
        "unseen": list(observation.unseen),
    }
