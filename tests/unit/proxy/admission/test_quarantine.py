"""Which bodies and clients are isolated after deaths of engines, for how long, and which are not."""

import pytest

from pdx_proxy.admission.permit import Permit
from pdx_proxy.admission.quarantine import BODY_SECONDS, CLIENT_SECONDS, MOST_COMMON, Casualty, Deaths, is_majority
from pdx_proxy.admission.senders import Senders
from pdx_proxy.admission.usage import Usage

A, B, C = ("a", 1), ("b", 1), ("c", 1)


def no_crowd(_: str) -> bool:
    return False


def deaths(*reports: tuple[float, tuple[str, int], str, int]) -> Deaths:
    found = Deaths()
    for at, start, client, body in reports:
        found.add(Casualty(start, client, body), at)
    return found


def test_a_body_that_was_on_two_engines_when_they_died() -> None:
    found = deaths((0, A, "x", 1), (1, B, "x", 1)).verdicts(7, 2.0, no_crowd)
    assert found.key == 7
    assert found.bodies == {("x", 1): 1 + BODY_SECONDS}
    assert found.clients["x"].engines == {"a", "b"}
    assert found.clients["x"].until == 1 + CLIENT_SECONDS


@pytest.mark.parametrize(
    "reports",
    [
        [(0, A, "x", 1)],
        [(0, A, "x", 1), (1, A, "x", 1)],
        [(0, A, "x", 1), (1, B, "x", 2)],
        [(0, A, "x", 1), (1, B, "y", 1)],
        [(0, A, "x", 1), (CLIENT_SECONDS, B, "x", 1)],
    ],
    ids=["one death", "reported twice", "other bodies", "other clients", "long ago"],
)
def test_what_isolates_nobody(reports: list[tuple[float, tuple[str, int], str, int]]) -> None:
    found = deaths(*reports).verdicts(0, reports[-1][0], no_crowd)
    assert not found.bodies
    assert not found.clients


def test_an_engine_that_died_twice_counts_twice() -> None:
    found = deaths((0, A, "x", 1), (5, ("a", 2), "x", 1)).verdicts(0, 5.0, no_crowd)
    assert found.clients["x"].engines == {"a"}


@pytest.mark.parametrize(("bodies", "isolated"), [(MOST_COMMON, MOST_COMMON), (MOST_COMMON + 1, 0)])
def test_too_many_bodies_show_nothing(bodies: int, isolated: int) -> None:
    reports = [(0.0, start, f"x{body}", body) for start in (A, B) for body in range(bodies)]
    found = deaths(*reports).verdicts(0, 1.0, no_crowd)
    assert (len(found.bodies), len(found.clients)) == (isolated, isolated)


def test_a_verdict_ends() -> None:
    table = deaths((0, A, "x", 1), (0, B, "x", 1))
    found = table.verdicts(0, BODY_SECONDS, no_crowd)
    assert not found.bodies
    assert found.clients
    assert not found.at(CLIENT_SECONDS).clients
    assert not table.verdicts(0, CLIENT_SECONDS, no_crowd).clients


def test_of_a_crowd_only_the_body_is_refused() -> None:
    found = deaths((0, A, "ingress", 1), (1, B, "ingress", 1)).verdicts(0, 1.0, lambda client: client == "ingress")
    assert found.bodies
    assert not found.clients


def test_further_deaths_add_engines() -> None:
    table = deaths((0, A, "x", 1), (1, B, "x", 1), (2, B, "x", 2), (3, C, "x", 2))
    assert table.verdicts(0, 4.0, no_crowd).clients["x"].engines == {"a", "b", "c"}
    assert table.clients() == {"x"}


def test_tables_are_bounded() -> None:
    table = Deaths()
    for number in range(200):
        for body in range(3):
            table.add(Casualty((f"e{number}", 1), f"x{number // 2}", body), 0.0)
    found = table.verdicts(0, 1.0, no_crowd)
    assert 0 < len(found.bodies) <= 3 * 32
    for body in range(5000):
        table.add(Casualty(("e199", 1), "y", body), 0.0)
    assert sum(len(death.bodies) for death in table._deaths.values()) <= 1024 + 64 * 3


@pytest.mark.parametrize(("requests", "of_address", "majority"), [(10, 6, True), (10, 5, False), (0, 0, False)])
def test_a_majority_is_more_than_half(requests: int, of_address: int, majority: bool) -> None:
    assert is_majority("a", requests, {"a": of_address}) is majority


def test_senders_of_the_last_minute() -> None:
    senders = Senders()
    senders.advance(100.0)
    for address, count in (("a", 30), ("b", 18), ("c", 2)):
        for _ in range(count):
            senders.count_address(address, senders.count())
    senders.count()
    assert senders.report() == {"requests": 51, "addresses": {"a": 30, "b": 18}}
    senders.advance(131.0)
    senders.count_address("c", senders.count())
    assert senders.report()["requests"] == 52
    senders.advance(162.0)
    assert senders.report() == {"requests": 1, "addresses": {"c": 1}}
    senders.advance(300.0)
    assert senders.report() == {"requests": 0, "addresses": {}}


def test_the_first_report_of_load_forgets_no_sender() -> None:
    """A gateway may serve requests before it has read its engines' metrics."""
    senders = Senders()
    senders.count_address("a", senders.count())
    senders.advance(100.0)
    assert senders.report() == {"requests": 1, "addresses": {"a": 1}}
    senders.advance(130.0)
    assert senders.report() == {"requests": 1, "addresses": {"a": 1}}
    senders.advance(160.0)
    assert senders.report() == {"requests": 0, "addresses": {}}


def test_senders_are_bounded() -> None:
    senders = Senders()
    for number in range(10_000):
        senders.count_address(str(number), 1)
    assert len(senders._now) == 4096


def test_of_many_requests_a_sample_is_counted_by_address() -> None:
    senders = Senders()
    samples = [senders.count() for _ in range(8_000)]
    assert sum(samples) == 8_000
    assert samples.count(0) > 6_000


def test_one_request_of_a_client_excludes_others_until_its_permit_is_free() -> None:
    usage, exchange = Usage(), object()
    first, second = (Permit(usage, exchange, None, None) for _ in range(2))  # type: ignore[arg-type]
    assert first.exclude_others("x")
    assert first.exclude_others("x"), "it holds it already"
    assert not second.exclude_others("x")
    assert second.exclude_others("y")
    first.hold()
    first.release()
    third = Permit(usage, exchange, None, None)  # type: ignore[arg-type]
    assert not third.exclude_others("x"), "a settlement of the first one goes on"
    first.settled()
    assert third.exclude_others("x")
