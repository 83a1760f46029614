"""A part of `make conformance`: every connector, order and case once, with alternating shapes of requests."""

import pytest

from pdx_api.connectors import CONNECTORS
from tests.component.harness import SHAPES, Shape, World
from tests.conformance import ALL_SHAPES, CASES, Wiring, cell, rows, wirings

POSSIBLE = [wiring for wiring in wirings() if not wiring.impossible]
CELLS = [
    pytest.param(wiring, ALL_SHAPES[number % len(ALL_SHAPES)], case, id=f"{wiring.label}-{wiring.order}-{case}")
    for number, (wiring, case) in enumerate((wiring, case) for wiring in POSSIBLE for case in CASES)
]


@pytest.mark.parametrize(("wiring", "shape", "case"), CELLS)
async def test_a_cell(wiring: Wiring, shape: Shape, case: str) -> None:
    assert await cell(wiring, shape, case) == "pass"


async def test_what_is_not_possible_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.conformance.CASES", {})
    found = [row async for row in rows()]
    assert len(found) == len(POSSIBLE) * len(ALL_SHAPES) + sum(bool(wiring.impossible) for wiring in wirings())
    assert all(row[3].startswith("not possible: ") for row in found if len(row) > 3)
    assert all(all(row) for row in found)


def test_a_connector_that_is_not_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CONNECTORS, "Pigeon", CONNECTORS["Mooncake"])
    found = {wiring.impossible for wiring in wirings() if wiring.connector == "Pigeon"}
    assert all(
        text.startswith("not possible: the push protocol of connector Pigeon is not simulated") for text in found
    )


async def test_problems_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    async def wrong(world: World, shape: Shape) -> None:
        world.sent += 1  # a request that the gateway did not receive

    monkeypatch.setitem(CASES, "wrong", wrong)
    assert (await cell(POSSIBLE[0], SHAPES[0], "wrong")).startswith("FAILED: ")
