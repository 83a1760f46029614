"""What the scraper of metrics hands over: new and latest reports, engines that are late, samples, models."""

import asyncio
from dataclasses import dataclass, field

import pytest

from pdx_api.names import Role
from pdx_proxy.config.settings import Address, EndpointSpec, Settings
from pdx_proxy.endpoints.endpoint import Endpoint, State
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.engines.upstreams import Engines, create_engines
from pdx_proxy.health import engine_scraper
from pdx_proxy.health.engine_scraper import OLDEST_SECONDS, SAMPLE_SECONDS, EngineScraper
from pdx_proxy.health.reports import Round
from pdx_proxy.http.upstream.failures import ConnectFailure, ConnectTimeout, DeadlineExceeded, EngineFailure


def engine(host: str, role: Role, rank: int | None = None, state: State = State.WARM) -> Endpoint:
    return Endpoint(EndpointSpec(Address(host, 1), role, rank=rank), state, generation=1)


P, D0, D1 = engine("p", Role.PREFILL), engine("d", Role.DECODE, 0), engine("d", Role.DECODE, 1)
COLD = engine("cold", Role.DECODE, state=State.COLD)
PAGE = b'vllm:num_requests_running{engine="0"} 3.0\nvllm:num_requests_running{engine="1"} 4.0\n'
LATE, UNREACHED, REFUSED = DeadlineExceeded("p", "late"), ConnectTimeout("p", "late"), ConnectFailure("p", "refused")


@dataclass
class Scene:
    """A scraper of engines that answer as a test says."""

    answers: dict[str, bytes | EngineFailure]
    """By host."""
    now: float = 0.0
    queries: list[str] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    models: list[str] = field(default_factory=list)
    """The engines whose models were read."""
    hurries: bool = False

    def scraper(self, monkeypatch: pytest.MonkeyPatch) -> EngineScraper:
        async def fetch(_: Engines, endpoint: Endpoint, path: str, __: float) -> bytes:
            self.queries.append(f"{endpoint.address.host}{path}")
            answer = self.answers[endpoint.address.host]
            if isinstance(answer, EngineFailure):
                raise answer
            return answer

        async def consume(scraped: Round) -> None:
            self.rounds.append(scraped)

        monkeypatch.setattr(engine_scraper, "fetch", fetch)
        monkeypatch.setattr(engine_scraper, "page_of", fetch)
        engines = create_engines(Settings(), lambda _: None)
        engines.clock = lambda: self.now
        snapshot, set_models = Snapshot.of([P, D0, D1, COLD]), lambda endpoint, _: self.models.append(endpoint.name)
        return EngineScraper(engines, lambda: snapshot, consume, set_models, lambda: self.hurries)


async def test_a_page_is_read_once_for_all_ranks_of_a_warm_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene({"p": PAGE, "d": PAGE})
    await scene.scraper(monkeypatch).scrape_all()
    assert scene.queries == ["p/metrics", "d/metrics"]
    (scraped,) = scene.rounds
    assert [(r.endpoint, r.metrics.running) for r in scraped.new] == [(P, 7), (D0, 3), (D1, 4)]
    assert (scraped.latest, scraped.late, scraped.warm) == (scraped.new, (), {P.start, D0.start, D1.start})


@pytest.mark.parametrize(("answer", "late"), [(LATE, True), (UNREACHED, True), (REFUSED, False), (b"", False)])
async def test_an_engine_without_an_answer_in_time_is_late(
    answer: bytes | EngineFailure, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a page, its last report stays for a limited time."""
    scene = Scene({"p": PAGE, "d": PAGE})
    scraper = scene.scraper(monkeypatch)
    await scraper.scrape_all()
    scene.answers["d"] = answer
    for scene.now in (OLDEST_SECONDS - 0.1, OLDEST_SECONDS + 0.1):
        await scraper.scrape_all()
    assert [scraped.late for scraped in scene.rounds[1:]] == [((D0, D1),) if late else ()] * 2
    assert [[r.endpoint for r in scraped.new] for scraped in scene.rounds[1:]] == [[P], [P]]
    assert [[r.endpoint for r in scraped.latest] for scraped in scene.rounds[1:]] == [[P, D0, D1], [P]]


async def test_one_round_in_ten_seconds_is_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """In it, the models of the engines that answer clients are read too."""
    scene = Scene({"p": PAGE, "d": PAGE})
    scraper = scene.scraper(monkeypatch)
    for scene.now in (0.0, SAMPLE_SECONDS - 0.1, SAMPLE_SECONDS, SAMPLE_SECONDS + 1.0):
        await scraper.scrape_all()
    assert [scraped.is_sample for scraped in scene.rounds] == [False, False, True, False]
    assert scene.models == [D0.name]
    assert scene.queries.count("d/v1/models") == 1


@pytest.mark.parametrize("hurries", [False, True])
async def test_the_next_round_begins_soon_if_an_engine_may_run_more(
    hurries: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene({"p": PAGE, "d": PAGE}, hurries=hurries)
    scraper, yielded = scene.scraper(monkeypatch), asyncio.sleep

    async def sleep(seconds: float) -> None:
        scene.now += seconds
        await yielded(0)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    scraper.start()
    while len(scene.rounds) < 11:
        await yielded(0)
    await scraper.stop()
    gaps = [after.at - before.at for before, after in zip(scene.rounds, scene.rounds[1:], strict=False)]
    assert all(0.04 < gap < 0.06 if hurries else 0.79 < gap < 1.21 for gap in gaps)
