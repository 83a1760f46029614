"""Random metrics pages through everything that uses them: no exception, and every limit is a number."""

import random
from collections.abc import Iterator
from math import isfinite
from typing import Any

import pytest

from pdx_api.names import Order, Role
from pdx_api.settings.gateway import Choosing
from pdx_api.vllm_metrics import read_metrics
from pdx_proxy.balancing.chooser import Chooser
from pdx_proxy.balancing.leg_limits import leg_limits
from pdx_proxy.balancing.load import Load
from pdx_proxy.config.settings import SLO, Address, EndpointSpec, Limits
from pdx_proxy.endpoints.endpoint import Endpoint, State
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.health.engine_loads import EngineLoads
from pdx_proxy.health.progress import StallDetector
from pdx_proxy.health.push_queues import PushQueues
from pdx_proxy.health.reports import Report, Round
from pdx_proxy.health.transfer_share import TransferShare
from pdx_proxy.process.exposition import render
from pdx_proxy.telemetry.counters import Counters, add_reports
from tests.random_pages import random_page


def endpoint(port: int, role: Role, order: Order = Order.PREFILL_FIRST) -> Endpoint:
    return Endpoint(EndpointSpec(Address("127.0.0.1", port), role, order=order), State.WARM, generation=1)


ENGINES = (
    *(endpoint(port, Role.PREFILL) for port in (1, 2)),
    *(endpoint(port, Role.DECODE) for port in (11, 12)),
    endpoint(21, Role.AGGREGATED),
)
SNAPSHOT = Snapshot.of(ENGINES)


class Gateway:
    """What the control side and a worker make of reports, under a virtual clock."""

    def __init__(self) -> None:
        self.now = 100.0
        self.load = Load(clock=lambda: self.now)
        self.chooser = Chooser(Choosing(), self.load, Counters(), None, SLO(2000, 50))
        self.loads, self.queues, self.share = EngineLoads(), PushQueues(30.0), TransferShare()
        self.stalls = StallDetector(60.0)
        self.chooser.apply(SNAPSHOT, self.loads.reports)

    def scrape(self, pages: list[bytes]) -> None:
        reports = tuple(
            Report(engine, read_metrics(page), self.now) for engine, page in zip(ENGINES, pages, strict=True)
        )
        scraped = Round(self.now, SNAPSHOT, reports, reports, is_sample=True)
        self.loads.update(scraped)
        self.stalls.update(scraped)
        self.queues.update(scraped)
        self.share.update(scraped, 0)
        self.chooser.apply_load(SNAPSHOT, self.loads.reports)

    def limits(self) -> dict[str, float]:
        batches = self.chooser.decodes.batch_limits()
        limits = leg_limits(SNAPSHOT, self.loads.reports, Limits(), self.load.legs_at, batches)
        self.load.limit(limits)
        return limits

    def page(self) -> bytes:
        """Return the gateway's own metrics, without those of the transfer probes."""
        chooser = self.chooser
        own = {"prefill": chooser.prefills.report(), "decode": chooser.decodes.report()}
        report = add_reports([{**Counters().report(self.load.view()), **own}])
        probes: dict[str, Any] = {"results": {}, "phases": {}, "pairs": {}, "lastSuccess": None}
        return render({**report, "legLimits": self.limits(), "verification": probes}, ENGINES)


def rounds(seed: int) -> Iterator[list[bytes]]:
    rng = random.Random(seed)
    for _ in range(40):
        yield [random_page(rng) for _ in ENGINES]


@pytest.mark.parametrize("seed", range(6))
def test_random_pages(seed: int) -> None:
    gateway, jumps = Gateway(), random.Random(seed)
    for pages in rounds(seed):
        gateway.now += jumps.choice((0.0, 1e-9, 0.1, 1.0, 100.0))
        gateway.scrape(pages)
        assert all(isfinite(limit) and limit >= 1 for limit in gateway.limits().values())
        assert gateway.page()
        assert all(isfinite(n) for counts in gateway.share.as_json()["decode"].values() for n in counts.values())
