"""The prompt tokens of the last half minute."""

from typing import Any

from pdx_api.names import Role
from pdx_api.vllm_metrics import EngineMetrics, PromptTokens
from pdx_proxy.config.settings import Address, EndpointSpec
from pdx_proxy.endpoints.endpoint import Endpoint, State
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.health.reports import Report, Round
from pdx_proxy.health.transfer_share import TransferShare

P, D, E = (
    Endpoint(EndpointSpec(Address(host, 1), role), State.WARM)
    for host, role in (("p", Role.PREFILL), ("d", Role.DECODE), ("e", Role.DECODE))
)


def a_round(at: float, *engines: Endpoint, known: tuple[Endpoint, ...] = (P, D, E), **tokens: Any) -> Round:
    counted = {"total": 10 * at, "external": 5 * at, "computed": 2.5 * at, **tokens}
    metrics = EngineMetrics(prompt_sources=PromptTokens(**counted))
    return Round(at, Snapshot.of(known), latest=tuple(Report(engine, metrics, at) for engine in engines))


def test_the_difference_of_the_last_few_counts() -> None:
    share = TransferShare()
    assert share.as_json() == {"split": 0, "decode": {}}
    share.update(a_round(0, P, D), 0)
    assert share.as_json() == {"split": 0, "decode": {}}, "one count has no difference"
    for number in range(1, 9):
        share.update(a_round(10.0 * number, P, D), number)
    assert share.as_json() == {"split": 3, "decode": {"d:1": {"promptTokens": 300, "outside": 150, "computed": 75}}}


def test_counters_that_fall_start_again() -> None:
    share = TransferShare()
    for at, total in ((0.0, 300.0), (10.0, 500.0), (20.0, 40.0)):
        share.update(a_round(at, D, total=total), 0)
    assert share.decode == {}
    share.update(a_round(30.0, D, total=50.0), 0)
    assert [tokens.total for tokens in share.decode.values()] == [10.0]


def test_counts_that_are_too_old_are_forgotten() -> None:
    """Otherwise the share of a decode engine that does not report any more would hide that nothing arrives."""
    share = TransferShare()
    for at in (0.0, 10.0):
        share.update(a_round(at, D, E), 0)
    for at, names in ((20.0, {"d:1", "e:1"}), (50.0, {"d:1", "e:1"}), (60.0, {"e:1"})):
        share.update(a_round(at, E), 0)
        assert set(share.decode) == names


def test_engines_that_are_gone_are_forgotten() -> None:
    share = TransferShare()
    for at in (0.0, 10.0):
        share.update(a_round(at, D, E), 0)
    share.update(a_round(20.0, E, known=(P, E)), 0)
    assert set(share.decode) == {"e:1"}
