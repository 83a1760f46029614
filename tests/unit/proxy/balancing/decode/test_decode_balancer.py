"""Engines that answer, under a virtual clock: who is selected, what is learned and how soon, and when a D prefills."""

from collections import Counter
from dataclasses import replace
from itertools import count
from math import floor, inf

import pytest

from pdx_api.names import Policy, Role
from pdx_api.settings.gateway import Choosing
from pdx_proxy.balancing.chooser import Chooser
from pdx_proxy.balancing.decode.placement import Place
from pdx_proxy.balancing.engine_limits import FIRST_LIMIT, EngineLimit
from pdx_proxy.balancing.leg_limits import leg_limits
from pdx_proxy.balancing.load import Load
from pdx_proxy.balancing.load_reports import LoadReport, LoadReports
from pdx_proxy.balancing.pick import Choice
from pdx_proxy.config.settings import SLO, Address, EndpointSpec, Limits
from pdx_proxy.endpoints.endpoint import Endpoint, State
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.payload.body import Body
from pdx_proxy.payload.decisions import Decisions
from pdx_proxy.payload.features import PromptFeatures
from pdx_proxy.payload.prompt_blocks import PromptBlocks
from pdx_proxy.telemetry.counters import Counters, NotSplitReason

BASE, SLOPE, CACHE = 0.018, 0.0001, 400_000
TARGETS = SLO(2000, 50)


def endpoint(port: int, role: Role) -> Endpoint:
    return Endpoint(EndpointSpec(Address("127.0.0.1", port), role), State.WARM, generation=1)


P1, P2 = endpoint(1, Role.PREFILL), endpoint(2, Role.PREFILL)
D1, D2, D3 = (endpoint(port, Role.DECODE) for port in (11, 12, 13))


class Stream:
    """An open stream of an engine."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.source = endpoint.name
        self.tokens = 0.0
        self.paused = False

    @property
    def relayed_chunks(self) -> int:
        return int(self.tokens)


class Rig:
    """A worker's choice over engines that decode by a + b * batch. Streams stay until they are ended."""

    def __init__(self, *decodes: Endpoint, slo: SLO = SLO()) -> None:  # noqa: B008 (frozen)
        self.now = 100.0
        self.load = Load(clock=lambda: self.now)
        self.counters = Counters()
        self.by = Chooser(Choosing(), self.load, self.counters, None, slo)
        self.streams: list[Stream] = []
        self.slow: dict[str, float] = {}
        self.kv: dict[str, float] = {}
        self.cursor = count()
        self.latency = 5.0
        self.put(*decodes)

    def put(self, *decodes: Endpoint) -> None:
        self.snapshot = Snapshot.of([P1, P2, *decodes])
        names = {d.name for d in decodes}
        self.streams = [stream for stream in self.streams if stream.source in names]
        self.by.apply(self.snapshot, self.reports)

    @property
    def reports(self) -> LoadReports:
        engines, limits = {}, {}
        for d in self.snapshot.decode if hasattr(self, "snapshot") else ():
            running = self.running(d)
            engines[d.name] = LoadReport(running, 0, self.kv.get(d.name, 0.1), CACHE)
            limits[d.name] = EngineLimit(200.0, running, latency=self.latency)
        return LoadReports(engines, limits)

    def running(self, decode: Endpoint) -> int:
        return sum(stream.source == decode.name for stream in self.streams)

    def request(self, tokens: int = 400, *blocks: int, stream: bool = True, most_tokens: float = inf) -> Body:
        ends = [tokens * (index + 1) // len(blocks) for index in range(len(blocks))]
        features = PromptFeatures(blocks=PromptBlocks(list(blocks), ends, tokens))
        return Body(decisions=Decisions(stream, True, most_tokens), features=features)

    def choose(self, request: Body | None = None) -> Endpoint:
        choice = self.by.choose(
            self.snapshot, request or self.request(), split=True, avoid=(), cursor=next(self.cursor)
        )
        assert choice is not None
        return choice.decode

    def open(self, times: int = 1) -> list[Endpoint]:
        """Select engines for so many requests, which begin to stream at once."""
        found = []
        for _ in range(times):
            found.append(self.choose())
            self.load.acquire(found[-1])
            self.streams.append(Stream(found[-1]))
        return found

    def open_at(self, decode: Endpoint, times: int) -> None:
        for _ in range(times):
            self.load.acquire(decode)
            self.streams.append(Stream(decode))

    def end(self, times: int) -> None:
        """The oldest streams end."""
        for stream in self.streams[:times]:
            self.load.release(stream.endpoint)
        del self.streams[:times]

    def go_on(self, seconds: int = 1) -> None:
        """Let time pass; the engines' metrics are read each second."""
        for _ in range(seconds):
            self.now += 1.0
            batches = Counter(stream.source for stream in self.streams)
            for stream in self.streams:
                itl = self.slow.get(stream.source, 1.0) * (BASE + SLOPE * batches[stream.source])
                stream.tokens += 1.0 / itl
            self.counters.relays = set(self.streams)
            self.by.apply_load(self.snapshot, self.reports)

    def serve(self, seconds: int, rate: int = 6) -> Counter[str]:
        """So many requests come and go in each second; return where they went."""
        found: Counter[str] = Counter()
        for _ in range(seconds):
            found.update(d.name for d in self.open(rate))
            self.end(rate)
            self.go_on()
        return found

    def learn_prefill(self, rate: float = 1000.0) -> None:
        """Both P's prefill so many tokens per second."""
        for prefill in (P1, P2):
            for _ in range(4):
                leg = self.by.sent(prefill, self.request(1000))
                assert leg is not None
                self.now += 1000 / rate
                leg.answered(self.now)

    def place(self, request: Body, waited: float = 0.0) -> Choice | None:
        return self.by.place(self.snapshot, request, waited, ())


def test_equal_engines_alternate_as_with_least_requests() -> None:
    rig = Rig(D1, D2, D3)
    assert Counter(rig.open(30)) == {D1: 10, D2: 10, D3: 10}
    rig.go_on(20)
    rig.open_at(D1, 2)
    assert D1 not in rig.open(4)
    assert rig.counters.choices["decode"]["LeastITL"] == 0, "selections are counted when they are used"


def test_a_slow_engine_gets_what_it_decodes_as_fast_as_the_others() -> None:
    rig = Rig(D1, D2, D3)
    rig.slow[D1.name] = 1.5
    for _ in range(30):
        rig.open(10)
        rig.go_on()
    rig.end(300)
    before = rig.open(60)
    assert before.count(D1) == 0, "with 30 each, the others are faster than D1 alone"
    more = rig.open(600)
    load = [rig.running(d) for d in (D1, D2, D3)]
    assert more.count(D1) > 50
    assert rig.slow[D1.name] * (BASE + SLOPE * load[0]) == pytest.approx(BASE + SLOPE * load[1], rel=0.1)


def test_an_engine_that_recovers_gets_requests_again_and_few_while_it_is_slow() -> None:
    rig = Rig(D1, D2)
    rig.slow[D1.name] = 2.0
    rig.open(40)
    rig.go_on(5)
    rig.end(40)
    rig.open(40)
    slow = rig.serve(60)
    assert 0 < slow[D1.name] <= 0.1 * sum(slow.values()), "it is measured again now and then"
    rig.slow.clear()
    rig.serve(30)
    again = rig.serve(20)
    assert again[D1.name] == pytest.approx(again[D2.name], rel=0.3)


@pytest.mark.parametrize("factor", [2.0, 0.5], ids=["slower", "faster"])
def test_a_change_is_followed_within_30_seconds_of_traffic(factor: float) -> None:
    rig = Rig(D1, D2)
    rig.open(60)
    rig.serve(20)
    rig.slow[D1.name] = factor
    rig.serve(30)
    itl = rig.by.decodes.report()["itl"]
    found = {d: itl[d.name] / (BASE + SLOPE * rig.running(d)) for d in (D1, D2)}
    assert found[D1] == pytest.approx(factor, rel=0.2)
    assert found[D2] == pytest.approx(1.0, rel=0.15)


def test_an_engine_that_restarts_is_new_and_one_that_is_gone_is_forgotten() -> None:
    rig = Rig(D1, D2)
    rig.slow[D1.name] = 2.0
    rig.open(40)
    rig.go_on(5)
    rig.end(40)
    rig.open(20)
    assert rig.running(D1) <= 2
    rig.put(replace(D1, generation=2), D2)
    rig.slow.clear()
    assert {d.name for d in rig.open(6)} == {D1.name}, "nothing is known about it, and it has the fewest requests"
    rig.go_on(5)
    rig.put(D2)
    rig.go_on(25)
    assert rig.by.decodes.report()["itl"].keys() == {D2.name}
    rig.put(D2, D3)
    rig.end(50)
    assert Counter(rig.open(10)) == {D2: 5, D3: 5}


def test_requests_go_where_their_kv_has_room() -> None:
    rig = Rig(D1, D2)
    rig.open(20)
    rig.go_on(5)
    rig.kv[D1.name] = 0.7
    rig.go_on()
    short = [rig.choose(rig.request(1_000)) for _ in range(4)]
    assert set(short) == {D1, D2}, "both have room"
    assert {rig.choose(rig.request(60_000)) for _ in range(4)} == {D2}
    rig.kv[D1.name] = 0.97
    rig.go_on()
    assert {rig.choose(rig.request(1_000)) for _ in range(4)} == {D2}


def test_the_answer_needs_room_too() -> None:
    rig = Rig(D1, D2)
    rig.open(20)
    rig.go_on(5)
    rig.kv[D1.name] = 0.78
    reports = rig.reports
    long = {name: replace(report, answer_tokens=50_000) for name, report in reports.engines.items()}
    rig.by.apply_load(rig.snapshot, replace(reports, engines=long))
    assert {rig.choose(rig.request(1_000)) for _ in range(4)} == {D2}, "answers are long here"
    limited = rig.request(1_000, most_tokens=100.0)
    assert {rig.choose(limited) for _ in range(4)} == {D1, D2}, "but not that of this request"


def test_a_full_engine_fills_between_two_reports() -> None:
    """Requests since the last report count with the tokens of a usual one."""
    rig = Rig(D1, D2)
    rig.open(20)
    rig.go_on(5)
    rig.kv[D1.name], rig.kv[D2.name] = 0.75, 0.65
    rig.go_on()
    assert rig.open(8).count(D2) == 5, "each is about 7 % of the cache"


def test_an_objective_limits_the_batch() -> None:
    rig = Rig(D1, D2, slo=TARGETS)
    for number in range(30):
        rig.open(4 + number % 5)
        rig.go_on()
    batches = rig.by.decodes.batch_limits()
    assert batches[D1.name] == pytest.approx((0.045 - BASE) / SLOPE, rel=0.3)
    limits = leg_limits(rig.snapshot, LoadReports(), Limits(), rig.load.legs_at, batches)
    assert limits[D1.name] == FIRST_LIMIT, "nothing is reported yet"
    free = LoadReports(limits={D1.name: EngineLimit(1000.0, rig.running(D1)), D2.name: EngineLimit(20.0)})
    limits = leg_limits(rig.snapshot, free, Limits(), rig.load.legs_at, batches)
    assert limits[D1.name] == floor(batches[D1.name])
    assert limits[D2.name] == 20.0, "the engine runs fewer"
    silent = LoadReports(silent=frozenset({D1.name}))
    assert leg_limits(rig.snapshot, silent, Limits(), rig.load.legs_at, batches)[D1.name] == batches[D1.name]
    rig.slow[D1.name] = 2.0
    rig.go_on(30)
    assert rig.by.decodes.batch_limits()[D1.name] < 0.5 * batches[D1.name]


def test_without_an_objective_nothing_is_limited_or_placed() -> None:
    rig = Rig(D1, D2)
    rig.open(20)
    rig.go_on(10)
    rig.learn_prefill()
    assert rig.by.decodes.batch_limits() == {}
    assert not rig.by.places


def test_no_request_bursts_before_anything_is_learned() -> None:
    rig = Rig(D1, D2, slo=TARGETS)
    busy = rig.by.sent(P1, rig.request(100_000)), rig.by.sent(P2, rig.request(100_000))
    assert all(busy)
    assert rig.place(rig.request(), waited=60.0) is None, "neither rates nor ITLs"
    rig.open(4)
    rig.go_on(4)
    assert rig.place(rig.request(), waited=60.0) is None, "no rate"
    other = Rig(D1, D2, slo=TARGETS)
    other.learn_prefill()
    other.by.sent(P1, other.request(100_000))
    other.by.sent(P2, other.request(100_000))
    assert other.place(other.request(), waited=60.0) is None, "no ITL"


def ready() -> Rig:
    """Both kinds of rates are learned, each D has 10 streams, and P's are idle."""
    rig = Rig(D1, D2, slo=TARGETS)
    rig.learn_prefill()
    rig.open(20)
    rig.go_on(10)
    return rig


def test_a_burst_goes_to_the_d_that_finishes_first() -> None:
    rig = ready()
    assert rig.place(rig.request(500)) is None, "an idle P is as fast"
    for prefill in (P1, P2):
        rig.by.sent(prefill, rig.request(10_000))
    choice = rig.place(rig.request(500, 7))
    assert choice is not None
    assert (choice.prefill, choice.place) == (None, Place.BURST)
    first = choice.decode
    assert rig.by.sent(first, rig.request(1_500)) is not None, "it has a backlog"
    second = rig.place(rig.request(500, 7))
    assert second is not None
    assert second.decode is not first
    rig.by.count(second, rig.request(500), split=True, first=True)
    assert rig.counters.not_split[NotSplitReason.BURST] == 1


def test_the_prefix_cache_of_a_d_counts_whole_or_split() -> None:
    """Both D's have 3,000 of 4,000 tokens: one computed them, the other received them from a P."""
    rig = ready()
    first, other = rig.request(3_000, 1, 2, 3), rig.request(3_000, 4, 5, 6)
    legs = [rig.by.sent_split(D2, first), rig.by.sent(D1, other)]
    rig.now += 3.0
    for leg in legs:
        assert leg is not None
        leg.answered(rig.now)
    rig.go_on(60)
    for hashes, decode in (((1, 2, 3), D2), ((4, 5, 6), D1)):
        ends = [1_000, 2_000, 3_000, 4_000]
        features = PromptFeatures(blocks=PromptBlocks([*hashes, 99], ends, 4_000))
        found = rig.place(Body(decisions=Decisions(True, True), features=features))
        assert found is not None
        assert (found.decode, found.place) == (decode, Place.SOONER)


def test_a_d_whose_streams_would_lose_their_tpot_gets_no_burst() -> None:
    rig = ready()
    for prefill in (P1, P2):
        rig.by.sent(prefill, rig.request(60_000))
    assert rig.place(rig.request(500)) is not None
    rig.slow = {D1.name: 2.3, D2.name: 2.3}
    rig.go_on(30)
    assert rig.place(rig.request(500)) is None


def test_bursts_use_the_spare_time_of_d_and_no_more() -> None:
    """A burst of 400 tokens takes 0.4 s. With an ITL of 19 of 45 ms, prefills may take 58 % of D's time."""
    rig = ready()
    for prefill in (P1, P2):
        rig.by.sent(prefill, rig.request(10_000_000))
    sent = 0
    for _ in range(300):
        rig.now += 0.1
        choice = rig.place(rig.request(400))
        if choice is not None:
            sent += 1
            leg = rig.by.sent(choice.decode, rig.request(400))
            assert leg is not None
            leg.answered(rig.now + 0.4)
    assert 0.4 * sent / (2 * 30.0 + 2 * rig.latency) == pytest.approx(0.58, abs=0.12)


def test_a_full_d_and_one_without_room_for_the_kv_get_no_burst() -> None:
    rig = ready()
    for prefill in (P1, P2):
        rig.by.sent(prefill, rig.request(60_000))
    rig.load.limits = {D1.name: 10.0}
    rig.kv[D2.name] = 0.85
    rig.go_on()
    assert rig.place(rig.request(500)) is None
    rig.kv[D2.name] = 0.3
    rig.go_on()
    found = rig.place(rig.request(500))
    assert found is not None
    assert found.decode is D2


def test_a_p_has_no_itl() -> None:
    rig = Rig(D1, D2)
    rig.by = Chooser(Choosing(prefill_policy=Policy.LEAST_ITL, decode_policy=Policy.LEAST_ITL), rig.load, rig.counters)
    rig.put(D1, D2)
    choice = rig.by.choose(rig.snapshot, rig.request(), split=True, avoid=(), cursor=0)
    assert choice is not None
    rig.by.count(choice, rig.request(), split=True, first=True)
    assert rig.counters.choices["prefill"]["LeastRequests"] == rig.counters.choices["decode"]["LeastITL"] == 1
