"""Hostile engines and hostile clients: 20 seconds always, 10 minutes with one worker and with three in `make soak`.

`SEED=n` repeats the random choices of a run. `tests/component/hostile/pending.py` lists the behaviours that are known
to fail; only `make soak` runs them.
"""

import os
import random
from pathlib import Path
from typing import Any, Final

import pytest

from benchmarks.soak.results import print_line, record
from tests.component.hostile import client_campaign, engine_campaign, pending
from tests.component.hostile.engine_campaign import setting_of

SHORT: Final = 9.0
"""Seconds of an attack; a campaign also starts a gateway and engines, and waits until all is over."""
LONG: Final = float(os.environ.get("SECONDS_EACH", "600"))
PHASE: Final = 30.0
ALWAYS: Final = pytest.mark.timeout(180)
SOAK: Final = [pytest.mark.soak, pytest.mark.timeout(1800)]


def _seed() -> int:
    return int(os.environ.get("SEED") or random.SystemRandom().randrange(1 << 32))


LENGTHS: Final = [
    pytest.param(1, False, marks=ALWAYS, id="short"),
    *(pytest.param(workers, True, marks=SOAK, id=f"long-{workers}") for workers in (1, 3)),
]


@pytest.mark.parametrize(("workers", "soak"), LENGTHS)
async def test_hostile_engines(workers: int, soak: bool, tmp_path: Path) -> None:
    seed = _seed()
    parts = 3 if soak else 1
    for part in range(parts):
        without = frozenset() if soak else frozenset(pending.ENGINES)
        plan = engine_campaign.Plan(setting_of(seed + part, workers), (LONG if soak else SHORT) / parts, without)
        report = await engine_campaign.run(plan, tmp_path / f"gateway-{part}.log")
        _conclude("hostile-engines", report, seed, soak)


@pytest.mark.parametrize(("workers", "soak"), LENGTHS)
async def test_hostile_clients(workers: int, soak: bool, tmp_path: Path) -> None:
    seed = _seed()
    plan = client_campaign.Plan(
        setting_of(seed, workers),
        LONG if soak else SHORT,
        min(PHASE, LONG / 4) if soak else SHORT,
        connections=200 if soak else 60,
        compares=soak,
        without=frozenset() if soak else frozenset(pending.CLIENTS),
    )
    report = await client_campaign.run(plan, tmp_path / "gateway.log")
    _conclude("hostile-clients", report, seed, soak)


def _conclude(name: str, report: Any, seed: int, soak: bool) -> None:
    print_line(name, report.line())
    failures = list(dict.fromkeys(report.failures))
    assert not failures, f"SEED={seed}: {len(failures)} failures\n" + "\n".join(failures[:40])
    if soak:
        record(name, report.line())


def test_what_is_pending_exists() -> None:
    assert not pending.ENGINES.keys() - engine_campaign.NAMES
    assert not pending.CLIENTS.keys() - client_campaign.NAMES
