"""Overlapping scopes: which operator writes an object."""

import logging
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from pdx_api.kube.client import Cluster, MissingError, RefusedError, UnavailableError
from pdx_api.kube.kinds import Kind
from pdx_operator.controller.claims import Claims
from pdx_operator.kube.resources import Key
from pdx_operator.plan.claim import Claim, Claimed, claim_on
from pdx_operator.status.notice import notice_in, with_notice, without_notice

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
        self.notices: list[str] = []
        self.claims = Claims(cast("Cluster", self.cluster), MINE, lambda: self.now, self._count)

    def _count(self) -> None:
        self.conflicts += 1

    async def after(self, seconds: float, body: dict[str, Any] | None = None, key: Key = KEY) -> Claim:
        """The claim after a number of seconds, with a check in every fifth; notices are written into the body."""
        body, end = body or _object(OTHER), self.now + seconds
        while self.now < end:
            self.now += 5
            found, notice = await self.claims.claim_on(key, body)
            if notice:
                self.notices.append(notice)
                body["status"] = with_notice(body.get("status") or {}, notice, 1, datetime(2026, 1, 1, tzinfo=UTC))
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


FORBIDDEN = RefusedError("forbidden", status=403)


async def test_a_holder_that_leaves_a_notice_for_a_minute_is_gone() -> None:
    setup = _Setup()
    setup.cluster.error = FORBIDDEN
    body = _object(OTHER)
    assert await setup.after(60, body) is Claim.FOREIGN
    assert await setup.after(60, key=Key("ns", "another")) is Claim.FREE, "one notice is enough for all its objects"
    assert await setup.after(5, body) is Claim.FREE
    (notice,) = setup.notices
    assert notice.startswith(f"this object belongs to the operator {OTHER}, whose Lease {MINE} cannot read; ")


async def test_a_holder_that_removes_the_notice_keeps_its_objects_and_is_asked_again_later() -> None:
    setup = _Setup()
    setup.cluster.error = FORBIDDEN
    for _ in range(2):
        body = _object(OTHER)
        await setup.after(5, body)
        body["status"] = without_notice(body["status"])
        assert await setup.after(595, body) is Claim.FOREIGN
    assert len(setup.notices) == 2


async def test_a_notice_that_could_not_be_written_has_no_answer() -> None:
    setup = _Setup()
    setup.cluster.error = FORBIDDEN
    for _ in range(3):
        assert (await setup.claims.claim_on(KEY, _object(OTHER)))[1]
        setup.claims.withdraw(KEY)


async def test_an_api_server_that_fails_says_nothing_about_the_holder() -> None:
    setup = _Setup()
    setup.cluster.error = UnavailableError("down", status=503)
    with pytest.raises(UnavailableError):
        await setup.after(5)


@pytest.mark.parametrize(
    ("error", "words"),
    [(None, "has not renewed its Lease"), (FORBIDDEN, "does not answer")],
    ids=["expired", "unreadable"],
)
async def test_an_annotation_holds_also_when_its_operator_is_gone_and_the_object_says_so(
    error: Exception | None, words: str
) -> None:
    setup = _Setup()
    setup.cluster.error = error
    body = _object(OTHER, OTHER)
    assert await setup.after(500, body) is Claim.FOREIGN
    assert notice_in(body) == (
        f"no operator manages this object: the annotation pdx.dev/operator assigns it to {OTHER}, which {words}; start "
        f"that operator, or set the annotation to {MINE}, or remove it"
    )
