"""What the admin port decides."""

import pytest

from pdx_api.names import Role
from pdx_proxy.config.settings import Address, EndpointSpec
from pdx_proxy.endpoints.endpoint import Endpoint, State
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.process.admin import read_wait, why_not_ready

WARM = Snapshot.of([Endpoint(EndpointSpec(Address("d", 1), Role.DECODE), State.WARM)])


@pytest.mark.parametrize(
    ("snapshot", "draining", "serving", "why"),
    [
        (WARM, False, 2, None),
        (WARM, False, 1, None),
        (WARM, False, 0, "no worker serves"),
        (WARM, True, 2, "draining"),
        (Snapshot(), False, 2, "no engine that can answer is warm"),
        (Snapshot(), False, 0, "no worker serves"),
    ],
)
def test_when_a_gateway_is_ready(snapshot: Snapshot, draining: bool, serving: int, why: str | None) -> None:
    assert why_not_ready(snapshot, draining=draining, serving=serving) == why


@pytest.mark.parametrize("text", ["nan", "-nan", "inf", "-1", "", "x"])
def test_what_is_no_time_to_wait(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (no text: the caller writes its own)
        read_wait(text)


def test_a_time_to_wait() -> None:
    assert [read_wait(text) for text in ("0", "1.5", "1e9")] == [0, 1.5, 1e9]
