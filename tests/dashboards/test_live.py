"""Every query of every dashboard, in a real Prometheus that scrapes a gateway and engines under load."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.dashboards.scene import ACTS, scene
from tests.dashboards.server import prometheus
from tests.dashboards.survey import Finding, survey, table


def values(findings: Sequence[Finding], title: str, begin: float, end: float) -> list[float]:
    """The values of a panel's first query between two times."""
    found = next(finding for finding in findings if finding.panel.title == title)
    return [value for series in found.series for when, value in series.points if begin <= when <= end]


@pytest.mark.timeout(150)
@pytest.mark.usefixtures("programs")
async def test_every_panel_has_data(tmp_path: Path) -> None:
    async with scene() as played, prometheus(tmp_path, played.targets) as server:
        begin = time.time()
        await played.play(ACTS)
        await asyncio.sleep(1.5)
        findings = await survey(server, begin, time.time())
    at = {name: (began, ended) for name, began, ended in played.played}

    assert not [finding for finding in findings if finding.empty], table(findings)
    assert max(values(findings, "KV that arrives", *at["steady"])) > 0.6
    assert min(values(findings, "KV that arrives", *at["KV does not move"])) < 0.4
    assert max(values(findings, "Remote prompt tokens by D", *at["steady"])) > 0.6
    assert min(values(findings, "Remote prompt tokens by D", *at["KV does not move"])) < 0.5
    assert min(values(findings, "Warm P", *at["a P dies"])) == 1
