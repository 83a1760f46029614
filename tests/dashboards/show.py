"""`make dashboards`: every query of every panel and every alert, asked of a real Prometheus under load and faults."""

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from tests.dashboards.plots import Acts, svg
from tests.dashboards.scene import ACTS, scene
from tests.dashboards.server import prometheus
from tests.dashboards.survey import Finding, survey, table
from tests.dashboards.troubles import SLOW, Fired, all_fire, wanted

PLOTS: Final = Path(__file__).parents[2] / "docs" / "observability"
_LONGER: Final = 3.0
"""Acts of plots, beside those of tests."""


async def panels(folder: Path, longer: float) -> tuple[list[Finding], Acts]:
    """Play the scene and ask every query."""
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


def alerts(seen: dict[Fired, float]) -> str:
    """Every alert and whether it fired, for people."""
    rows = [f"{'alert':<34}{'deployment':<14}fired after"]
    for deployment, name, own in sorted(wanted(), key=lambda each: each[1:]):
        seconds = seen.get((deployment, name, own))
        told = "NEVER" if seconds is None else f"{seconds:.1f} s"
        rows.append(f"{f'{name} {own}':<34}{deployment or 'operator':<14}{told}")
    rows += [f"{f'{name} {own}':<34}{'':<14}takes hours: shown by promtool alone" for name, own in SLOW]
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
        seen = asyncio.run(all_fire(Path(folder)))
    sys.stdout.write(alerts(seen) + "\n")
    empty = [finding for finding in findings if finding.empty]
    count = len({(finding.board.uid, finding.panel.title) for finding in findings})
    silent, false = wanted() - set(seen), [each for each in seen if each[0] == "healthy"]
    sys.stdout.write(
        f"\n{len(findings)} queries of {count} panels, {len(empty)} empty or refused; {len(wanted())} alerts caused, "
        f"{len(silent)} silent; {len(false)} false.\n"
    )
    return 1 if empty or silent or false else 0


if __name__ == "__main__":
    sys.exit(main())
