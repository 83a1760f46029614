"""`make dashboards`: run every query of every panel and alert in a real Prometheus, under load and faults."""

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from tests.dashboards.faulty import FASTER, Fired, expected_alerts, rig, wrong
from tests.dashboards.plots import Acts, svg
from tests.dashboards.scene import ACTS, scene
from tests.dashboards.server import prometheus
from tests.dashboards.survey import Finding, survey, table

PLOTS: Final = Path(__file__).parents[2] / "docs" / "observability"
_LONGER: Final = 3.0
"""How many times longer the acts of plots are than those of tests."""


async def panels(folder: Path, longer: float) -> tuple[list[Finding], Acts]:
    """Play the scene and run every query."""
    acts = [replace(act, seconds=act.seconds * longer) for act in ACTS]
    async with scene() as played, prometheus(folder, played.targets) as server:
        begin = time.time()
        await played.play(acts)
        await asyncio.sleep(1.5)  # the last scrapes
        return await survey(server, begin, time.time()), played.played


def plot(findings: list[Finding], acts: Acts) -> None:
    """Write docs/observability/*.svg."""
    PLOTS.mkdir(exist_ok=True)
    for uid in dict.fromkeys(finding.board.uid for finding in findings):
        own = [finding for finding in findings if finding.board.uid == uid]
        (PLOTS / f"{uid}.svg").write_text(svg(own, acts), encoding="utf-8")


async def alerts(folder: Path) -> dict[Fired, float]:
    """Break everything; the alerts, with the seconds after the fault."""
    async with rig(folder, seconds=10 * 60 / FASTER + 8) as running:
        return await running.run(quiet=3.0)


def listed(seen: dict[Fired, float]) -> str:
    """Every alert and whether it fired, for people."""
    rows = [f"{'alert':<28}{'deployment':<14}fired after"]
    for name, alert in sorted(expected_alerts() | set(seen), key=lambda each: each[1]):
        seconds = seen.get((name, alert))
        rows.append(f"{alert:<28}{name or 'operator':<14}{'NEVER' if seconds is None else f'{seconds:.1f} s'}")
    return "\n".join(rows)


def main() -> int:
    """The exit code: 1 when a query fails, a panel is empty or an alert does not fire."""
    parser = argparse.ArgumentParser(description="Run every panel and every alert.")
    parser.add_argument("--plots", action="store_true", help="play longer, and write docs/observability/*.svg")
    plots = parser.parse_args().plots
    logging.disable(logging.CRITICAL)  # requests fail on purpose
    with tempfile.TemporaryDirectory() as folder:
        findings, acts = asyncio.run(panels(Path(folder), _LONGER if plots else 1.0))
    sys.stdout.write(table(findings) + "\n\n")
    if plots:
        plot(findings, acts)
    with tempfile.TemporaryDirectory() as folder:
        seen = asyncio.run(alerts(Path(folder)))
    sys.stdout.write(listed(seen) + "\n")
    empty = [finding for finding in findings if finding.empty]
    count = len({(finding.board.uid, finding.panel.title) for finding in findings})
    differences = wrong(seen)
    sys.stdout.write(
        f"\n{len(findings)} queries of {count} panels, {len(empty)} empty or refused; "
        f"{len(expected_alerts())} alerts caused; {len(differences)} differ from the table.\n"
    )
    sys.stdout.writelines(f"{line}\n" for line in differences)
    return 1 if empty or differences else 0


if __name__ == "__main__":
    sys.exit(main())
