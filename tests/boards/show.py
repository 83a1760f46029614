"""`make dashboards`: every panel's queries, asked of a Prometheus that scrapes a gateway, engines and an operator."""

import asyncio
import sys
import tempfile
import time
from pathlib import Path

from tests.boards.scene import ACTS, scene
from tests.boards.server import prometheus
from tests.boards.survey import Finding, survey, table


async def run(folder: Path) -> list[Finding]:
    """Play the scene and ask every query."""
    async with scene() as played, prometheus(folder, played.targets) as server:
        begin = time.time()
        await played.play(ACTS)
        await asyncio.sleep(1.5)  # the last scrapes
        return await survey(server, begin, time.time())


def main() -> int:
    """The exit code: 1 when a query fails or a panel is empty."""
    with tempfile.TemporaryDirectory() as folder:
        findings = asyncio.run(run(Path(folder)))
    sys.stdout.write(table(findings) + "\n")
    bad = [finding for finding in findings if finding.empty]
    panels = {(finding.board.uid, finding.panel.title) for finding in findings}
    sys.stdout.write(f"\n{len(findings)} queries of {len(panels)} panels; {len(bad)} empty or refused.\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
