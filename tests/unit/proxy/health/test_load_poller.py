"""Which engines are polled for their load, and which reports are published."""

import pytest

from pdx_api.names import Policy, Role
from pdx_proxy.balancing.load_reports import LoadReport
from pdx_proxy.config.settings import Choosing
from pdx_proxy.health.load_poller import must_publish, polled_roles

IDLE, BUSY, FULL = LoadReport(0, 0, 0.0), LoadReport(3, 0, 0.2), LoadReport(3, 9, 0.9)
CHANGES = [
    ({}, {}, False),
    ({}, {"a": IDLE}, True),
    ({"a": IDLE}, {"a": IDLE}, False),
    ({"a": IDLE}, {"a": BUSY}, True),
    ({"a": BUSY}, {"a": BUSY}, True),
    ({"a": BUSY}, {"a": FULL}, True),
    ({"a": BUSY}, {"a": IDLE}, True),
    ({"a": IDLE}, {}, True),
]


@pytest.mark.parametrize(("old", "new", "expected"), CHANGES)
def test_which_reports_are_published(old: dict[str, LoadReport], new: dict[str, LoadReport], expected: bool) -> None:
    assert must_publish(old, new) is expected


ROLES: list[tuple[Choosing, set[Role]]] = [
    (Choosing(), set()),
    (Choosing(Policy.SESSION_AFFINITY, Policy.PREFIX_AFFINITY), set()),
    (Choosing(prefill_policy=Policy.LEAST_LOAD), {Role.PREFILL}),
    (Choosing(decode_policy=Policy.LEAST_LOAD), {Role.DECODE, Role.AGGREGATED}),
]


@pytest.mark.parametrize(("choosing", "roles"), ROLES)
def test_only_roles_whose_policy_uses_load_are_polled(choosing: Choosing, roles: set[Role]) -> None:
    assert polled_roles(choosing) == roles
