"""Overlapping scopes: which operator writes an object."""

import logging
from typing import Any, cast

import pytest

from pdx_operator.controller.claims import Claims
from pdx_operator.kube.client import Cluster, MissingError, RefusedError
from pdx_operator.kube.resources import Key, Kind
from pdx_operator.plan.claim import Claim, Claimed, claim_on

KEY = Key("ns", "m")
MINE, OTHER = "pdx-system/pdx", "team/pdx"


def _object(operator: str = "", annotation: str = "") -> dict[str, Any]:
    annotations = {"pdx.dev/operator": annotation} if annotation else {}
    return {"metadata": {"name": "m", "annotations": annotations}, "status": {"operator": operator} if operator else {}}


@pytest.mark.parametrize(
    ("body", "own", "expected"),
    [
        (_object(), MINE, Claimed(Claim.FREE)),
        (_object(MINE), MINE, Claimed(Claim.OURS, MINE)),
        (_object(OTHER), MINE, Claimed(Claim.FOREIGN, OTHER)),
        (_object(OTHER, MINE), MINE, Claimed(Claim.FREE)),
        (_object(MINE, MINE), MINE, Claimed(Claim.OURS, MINE)),
        (_object(MINE, OTHER), MINE, Claimed(Claim.FOREIGN, OTHER, by_annotation=True)),
        (_object("", OTHER), MINE, Claimed(Claim.FOREIGN, OTHER, by_annotation=True)),
        (_object(), "", Claimed(Claim.OURS)),
        (_object(OTHER), "", Claimed(Claim.FOREIGN, OTHER)),
    ],
)
def test_the_annotation_decides_and_then_the_status(body: dict[str, Any], own: str, expected: Claimed) -> None:
    assert claim_on(body, own) == expected


class _Cluster:
    """An API server with the Lease of the other operator."""

    def __init__(self) -> None:
        self.renewals = 0
        self.error: Exception | None = None

    async def get(self, kind: Kind, namespace: str, name: str) -> dict[str, Any]:
        assert (kind.plural, f"{namespace}/{name}") == ("leases", OTHER)
        if self.error is not None:
            raise self.error
        return {"spec": {"holderIdentity": "x", "renewTime": str(self.renewals)}}


class _Setup:
    def __init__(self) -> None:
        self.now = 0.0
        self.cluster = _Cluster()
        self.conflicts = 0
        self.claims = Claims(cast("Cluster", self.cluster), MINE, lambda: self.now, self._count)

    def _count(self) -> None:
        self.conflicts += 1

    async def after(self, seconds: float, body: dict[str, Any] | None = None) -> Claim:
        """The claim after a number of seconds, with a check in every fifth."""
        end = self.now + seconds
        while self.now < end:
            self.now += 5
            found = await self.claims.claim_on(KEY, body or _object(OTHER))
        return found


async def test_a_conflict_is_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    setup = _Setup()
    with caplog.at_level(logging.WARNING):
        for _ in range(30):
            setup.cluster.renewals += 1
            assert await setup.after(5) is Claim.FOREIGN
    assert (setup.conflicts, len(caplog.records)) == (1, 1)
    assert await setup.after(5, _object(MINE)) is Claim.OURS
    assert await setup.after(5) is Claim.FOREIGN
    assert setup.conflicts == 2


@pytest.mark.parametrize("error", [None, MissingError("gone", status=404)], ids=["not renewed", "deleted"])
async def test_an_expired_lease_frees_its_objects(error: Exception | None) -> None:
    setup = _Setup()
    setup.cluster.error = error
    assert await setup.after(60) is Claim.FOREIGN
    assert await setup.after(10) is Claim.FREE


async def test_a_lease_that_cannot_be_read_has_not_expired() -> None:
    setup = _Setup()
    setup.cluster.error = RefusedError("forbidden", status=403)
    assert await setup.after(600) is Claim.FOREIGN


async def test_an_annotation_holds_also_when_its_lease_has_expired() -> None:
    setup = _Setup()
    assert await setup.after(600, _object(OTHER, OTHER)) is Claim.FOREIGN
