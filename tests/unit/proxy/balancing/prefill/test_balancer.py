"""ExpectedWait over endpoints: snapshots, load reports, slow start, and caches that engines have lost."""

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest

from pdx_api.names import Policy, Role
from pdx_api.settings.gateway import Choosing
from pdx_proxy.balancing.chooser import Chooser
from pdx_proxy.balancing.load import Load
from pdx_proxy.balancing.load_reports import LoadReport, LoadReports
from pdx_proxy.balancing.prefill.backlog import Computed, PrefillEngine
from pdx_proxy.balancing.prefill.cache_watch import ENOUGH_TOKENS, CacheWatch
from pdx_proxy.balancing.prefill.shared_log import SharedLog, SharedLogMemory
from pdx_proxy.balancing.slow_start import EffectiveLoad
from pdx_proxy.config.settings import Address, EndpointSpec
from pdx_proxy.endpoints.endpoint import Endpoint, State
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.payload.body import Body
from pdx_proxy.payload.decisions import Decisions
from pdx_proxy.payload.features import PromptFeatures
from pdx_proxy.payload.prompt_blocks import PromptBlocks
from pdx_proxy.telemetry.counters import Counters, add_reports


def endpoint(port: int, role: Role) -> Endpoint:
    return Endpoint(EndpointSpec(Address("127.0.0.1", port), role), State.WARM, generation=1)


P1, P2, D1, D2 = (endpoint(port, Role.PREFILL if port < 3 else Role.DECODE) for port in (1, 2, 3, 4))
A1, A2 = endpoint(5, Role.AGGREGATED), endpoint(6, Role.AGGREGATED)
PAIRS, AGGREGATED = Snapshot.of([P1, P2, D1, D2]), Snapshot.of([A1, A2])
NONE = LoadReports()
P1_SLOT, P2_SLOT = replace(P1, slot=0), replace(P2, slot=1)
SLOTS = Snapshot.of([P1_SLOT, P2_SLOT, replace(D1, slot=2)])


def request(*blocks: int, tokens: int = 512, stream: bool = True) -> Body:
    ends = [tokens * (index + 1) for index in range(len(blocks))]
    features = PromptFeatures(blocks=PromptBlocks(list(blocks), ends, ends[-1]))
    return Body(decisions=Decisions(stream, True), features=features)


def chooser(
    load: Load,
    choosing: Choosing = Choosing(),  # noqa: B008 (frozen)
    log: SharedLog | None = None,
    snapshot: Snapshot = PAIRS,
) -> Chooser:
    by = Chooser(choosing, load, Counters(), log)
    by.apply(snapshot, NONE)
    return by


def prefill_of(by: Chooser, sent: Body, cursor: int = 0, snapshot: Snapshot = PAIRS) -> Endpoint:
    choice = by.choose(snapshot, sent, split=True, avoid=(), cursor=cursor)
    assert choice is not None
    return choice.prefill or choice.decode


def test_by_default_p_is_chosen_by_its_wait_and_d_by_its_requests() -> None:
    by = chooser(Load(clock=lambda: 1.0))
    leg = by.sent(P2, request(1, 2, 3))
    assert leg is not None
    assert [prefill_of(by, request(1, 2, 3, 4), cursor) for cursor in range(4)] == [P1] * 4, "P2 has a backlog"
    leg.answered(2.0)
    assert [prefill_of(by, request(1, 2, 3, 4), cursor) for cursor in range(4)] == [P2] * 4, "P2 has the beginning"
    assert by.sent(D1, request(1)) is None, "a D prefills nothing"
    assert by.prompt_reader is not None


def test_aggregated_engines_are_chosen_by_their_wait_unless_a_policy_is_set() -> None:
    by = chooser(Load(clock=lambda: 1.0), snapshot=AGGREGATED)
    leg = by.sent(A2, request(1, 2))
    assert leg is not None
    leg.answered(3.0)
    assert [prefill_of(by, request(1, 2, 3), cursor, AGGREGATED) for cursor in range(4)] == [A2] * 4
    whole = by.sent(A1, request(9, stream=False))
    assert whole is not None
    whole.answered(99.0)
    assert by.prefills.expected.engine(A1.name).measured.tokens == 0, "it ended when decoding did"
    by = chooser(Load(), Choosing(decode_policy=Policy.LEAST_REQUESTS), snapshot=AGGREGATED)
    assert by.sent(A1, request(1)) is None


def test_another_policy_for_p_tracks_nothing() -> None:
    by = chooser(Load(), Choosing(prefill_policy=Policy.LEAST_REQUESTS))
    assert by.sent(P1, request(1)) is None
    assert by.prompt_reader is None


def test_an_engine_that_restarts_or_goes_is_forgotten() -> None:
    by = chooser(Load(clock=lambda: 1.0))
    for each in (P1, P2):
        assert by.sent(each, request(1, 2)) is not None
    cache = by.prefills.expected.engine(P1.name).cache
    suspect = replace(P1, warm_up_state=State.SUSPECT)
    by.apply(Snapshot.of([suspect, P2, D1, D2]), NONE)
    assert by.prefills.expected.engine(P1.name).cache is cache, "an ejection is no restart"
    by.apply(Snapshot.of([replace(P1, generation=2), P2, D1, D2]), NONE)
    assert by.prefills.expected.engine(P1.name).cache.tokens == 0
    assert by.prefills.expected.engine(P2.name).backlog > 0
    by.apply(Snapshot.of([replace(P1, generation=2), D1, D2]), NONE)
    assert set(by.prefills.expected.engines) == {P1.name}


def test_an_engine_in_slow_start_gets_fewer_prompts() -> None:
    load = Load(clock=lambda: 1.0)
    by = chooser(load)
    assert {prefill_of(by, request(7), cursor).name for cursor in range(2)} == {P1.name, P2.name}
    load.effective_loads = {P2.name: EffectiveLoad(since=0.0, seconds=30.0)}
    assert {prefill_of(by, request(7), cursor).name for cursor in range(2)} == {P1.name}


def test_the_mirror_has_the_size_that_the_engine_reports() -> None:
    by = chooser(Load())
    by.apply_load(PAIRS, LoadReports({P1.name: LoadReport(0, 0, 0.0, cache_tokens=100_000)}))
    assert by.prefills.expected.engine(P1.name).cache.capacity == 100_000


@pytest.fixture
def memory() -> Iterator[SharedLogMemory]:
    owner = SharedLogMemory(2)
    yield owner
    owner.close()


def workers(memory: SharedLogMemory, load: Load) -> list[Chooser]:
    """Two workers of a gateway."""
    return [chooser(load, log=SharedLog.over(os.dup(memory.fd), number, 2), snapshot=SLOTS) for number in range(2)]


def test_workers_share_backlog_rates_and_caches(memory: SharedLogMemory) -> None:
    now = [1.0]
    one, other = workers(memory, Load(clock=lambda: now[0]))
    leg = one.sent(P1_SLOT, request(1, 2, 3))
    assert leg is not None
    assert {prefill_of(other, request(1, 2, 3), cursor, SLOTS) for cursor in range(4)} == {P2_SLOT}, "P1 has a backlog"
    now[0] = 2.0
    leg.answered(2.0)
    assert {prefill_of(other, request(1, 2, 3), cursor, SLOTS) for cursor in range(4)} == {P1_SLOT}, "P1 has the prompt"
    own, copy = (by.prefills.expected.engine(P1_SLOT.name) for by in (one, other))
    assert copy.rate(2.0) == own.rate(2.0) > 0
    assert (copy.backlog, copy.expected_hits, copy.cache.tokens) == (own.backlog, own.expected_hits, own.cache.tokens)
    reports = [by.prefills.report() for by in (one, other)]
    assert [report["tokens"]["computed"] for report in reports] == [1536, 0], "counters count each prompt once"
    assert add_reports(reports)["counted"][P1_SLOT.name] == 2


def test_what_a_worker_drops_or_leaves_behind_is_no_backlog(memory: SharedLogMemory) -> None:
    one, other = workers(memory, Load(clock=lambda: 1.0))
    legs = [one.sent(P1_SLOT, request(number)) for number in range(3)]
    assert legs[0] is not None
    backlog = [other.prefills.report()["backlog"][P1_SLOT.name]]
    legs[0].dropped()
    backlog.append(other.prefills.report()["backlog"][P1_SLOT.name])
    memory.forget(0)
    backlog.append(other.prefills.report()["backlog"][P1_SLOT.name])
    assert backlog == [3 * 513, 2 * 513, 0]


def test_what_goes_to_an_engine_without_a_slot_is_not_shared(memory: SharedLogMemory) -> None:
    one, other = workers(memory, Load(clock=lambda: 1.0))
    assert one.sent(P1, request(1)) is not None
    assert other.prefills.report()["backlog"] == {}


def test_a_cache_that_was_reset_is_forgotten() -> None:
    """A worker clears its mirror when the engine counts less than a quarter of the hits that were expected."""
    by, sent = chooser(Load(clock=lambda: 1.0)), request(*range(16))
    engine = by.prefills.expected.engine(P1.name)

    def round_of(hits: float) -> int:
        leg = by.sent(P1, sent)
        assert leg is not None
        leg.answered(1.0)
        by.apply_load(PAIRS, LoadReports({P1.name: LoadReport(1, 0, 0.0, cache_hits=hits)}))
        return engine.cache.tokens

    tokens = 16 * 512
    assert [round_of(0), round_of(tokens), round_of(2 * tokens)] == [tokens] * 3
    assert [round_of(2 * tokens), round_of(2 * tokens)] == [tokens, 0]
    assert round_of(2 * tokens) == tokens, "it is learned anew"
    assert round_of(0) == 0, "its count has begun anew: it has restarted"


def test_few_expected_hits_show_nothing() -> None:
    engine, watch = PrefillEngine(Computed()), CacheWatch()
    assert not watch.update(engine, 0.0)
    for _ in range(3):
        engine.expected_hits += ENOUGH_TOKENS // 4
        assert not watch.update(engine, 0.0)
