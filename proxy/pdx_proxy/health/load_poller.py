"""Polls the engines' own load, once for all workers: for the limits of legs, and for the policy LeastLoad.

An engine that has no work answers at once. If it does not, a health check follows, because without requests nothing
else shows that it hangs.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from pdx_api.names import Role
from pdx_proxy.balancing.engine_limits import EngineLimit, LimitEstimator, Work
from pdx_proxy.balancing.load_reports import LoadReport, LoadReports
from pdx_proxy.config.settings import Address
from pdx_proxy.endpoints.endpoint import Endpoint, Start
from pdx_proxy.endpoints.events import EndpointEvent, HealthCheckRequest
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.engines.engine_metrics import read_load, read_sample
from pdx_proxy.engines.probe import fetch
from pdx_proxy.engines.upstreams import Engines
from pdx_proxy.health.progress import has_work
from pdx_proxy.http.upstream.failures import ConnectTimeout, DeadlineExceeded, EngineFailure

PAUSE_SECONDS: Final = 1.0
"""Between two rounds, varied by a fifth so that several gateways do not poll at the same instant."""
GROWING_SECONDS: Final = 0.1
"""Between two rounds while requests wait for an engine that may be able to run more."""
ANSWER_SECONDS: Final = 1.0
"""Deadline of an engine's answer."""
OLDEST_SECONDS: Final = 5.0
"""How long a report is used if no newer one arrives."""
LATE_ROUNDS: Final = 3
"""Consecutive rounds without an answer in time after which an engine without work gets a health check."""
_CONCURRENT: Final = 16
_PASSES: Final = 10
"""Passes of the event loop, more than a health check needs."""
_PASSES_SECONDS: Final = 0.5
"""The longest time for these passes in which a health check has time to spare."""
_log: Final = logging.getLogger(__name__)


def must_publish(old: LoadReports, new: LoadReports) -> bool:
    """Whether workers need the new reports: always, unless all engines were and are idle.

    Equal numbers of busy engines are published too: each worker compares them with what it has sent by then.
    """
    return new != old or any(each.running or each.waiting or each.kv_use for each in new.engines.values())


class LoadPoller:
    """Owner of the load reports."""

    def __init__(
        self,
        engines: Engines,
        snapshot: Callable[[], Snapshot],
        publish: Callable[[], None],
        legs: Callable[[], Awaitable[Mapping[str, int]]],
        report: Callable[[EndpointEvent], None],
        waiting: Callable[[], int] = lambda: 0,
        rng: random.Random | None = None,
    ) -> None:
        self._engines = engines
        self._legs = legs
        """Returns the legs of all workers by name of the endpoint."""
        self._report = report
        self._waiting = waiting
        """Returns the number of requests that wait in the gateway."""
        self._estimators: dict[Start, LimitEstimator] = {}
        self._limits: dict[Start, EngineLimit] = {}
        self._snapshot = snapshot
        self._publish = publish
        """Called after each change of `reports`."""
        self._random = rng or random.Random()  # noqa: S311 (spreads load)
        self._slots = asyncio.Semaphore(_CONCURRENT)
        self._found: dict[Start, tuple[float, LoadReport]] = {}
        """The last report and its time."""
        self._idle: dict[Start, bool] = {}
        """Whether an endpoint had no work by its last report, however old that is."""
        self._late: dict[Address, int] = {}
        """Consecutive rounds in which an engine did not answer in time."""
        self._task: asyncio.Task[None] | None = None
        self.reports = LoadReports()

    def start(self) -> None:
        """Start to poll."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop polling."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            try:
                await self.poll_all()
            except Exception:
                _log.exception("Polling the engines' load failed.")
            await self._pause(PAUSE_SECONDS * self._random.uniform(0.8, 1.2))

    async def _pause(self, seconds: float) -> None:
        """Sleep until the next round: a short time while requests wait for engines that may be able to run more."""
        clock = self._engines.clock
        ends = clock() + seconds
        while (remaining := ends - clock()) > 0:
            await asyncio.sleep(min(remaining, GROWING_SECONDS))
            if self._waiting() and any(limit.grows for limit in self.reports.limits.values()):
                return

    async def poll_all(self) -> None:
        """Poll every engine once."""
        by_address: dict[Address, list[Endpoint]] = {}
        for endpoint in self._snapshot().everything:
            if endpoint.warm:
                by_address.setdefault(endpoint.address, []).append(endpoint)
        answered = await asyncio.gather(*map(self._poll, by_address.values()))
        self._update({e.start for ranks in by_address.values() for e in ranks})
        late = [address for address, in_time in zip(by_address, answered, strict=True) if not in_time]
        self._late = {address: self._late.get(address, 0) + 1 for address in late}
        await self._check_idle([by_address[address] for address in late if self._late[address] >= LATE_ROUNDS])

    async def has_work(self, endpoint: Endpoint) -> bool:
        """Whether work explains that this engine does not answer. A report that is no longer used explains nothing."""
        ranks = [e for e in self._snapshot().everything if e.address == endpoint.address]
        reports = [report for e in ranks if (report := self.reports.engines.get(e.name)) is not None]
        legs = await self._legs()
        return has_work(reports, sum(legs.get(e.name, 0) for e in ranks))

    async def _check_idle(self, late: Sequence[Sequence[Endpoint]]) -> None:
        """Request a health check of those of these engines that have no work."""
        idle = [ranks for ranks in late if all(self._idle.get(e.start) for e in ranks)]
        if not idle or not await self._has_time():
            return
        legs = await self._legs()
        for ranks in idle:
            if not has_work((), sum(legs.get(e.name, 0) for e in ranks)):
                for endpoint in ranks:
                    self._report(HealthCheckRequest(*endpoint.start))

    async def _has_time(self) -> bool:
        """Whether this process has time for a health check. If it is overloaded, every engine seems to be late."""
        began = self._engines.clock()
        for _ in range(_PASSES):
            await asyncio.sleep(0)
        return self._engines.clock() - began < _PASSES_SECONDS

    async def _poll(self, ranks: list[Endpoint]) -> bool:
        """Read one engine's page for all its ranks; return False if it does not answer in time.

        Without an answer the last reports stay. A connection that is refused or lost costs a request no time, so it
        is left to requests.
        """
        async with self._slots:
            try:
                page = await fetch(self._engines, ranks[0], "/metrics", ANSWER_SECONDS)
            except EngineFailure as failure:
                return not isinstance(failure, DeadlineExceeded | ConnectTimeout)
        self._read(ranks, page)
        return True

    def _read(self, ranks: list[Endpoint], page: bytes) -> None:
        now = self._engines.clock()
        for endpoint in ranks:
            report = read_load(page, endpoint.spec.rank)
            if report is not None:
                start = endpoint.start
                self._found[start] = (now, report)
                self._idle[start] = not has_work([report], 0)
                estimator = self._estimators.get(start)
                if estimator is None:
                    work = Work.PREFILL if endpoint.role is Role.PREFILL else Work.DECODE
                    estimator = self._estimators[start] = LimitEstimator(work)
                self._limits[start] = estimator.update(read_sample(page, report, now, endpoint.spec.rank))

    def _update(self, polled: set[Start]) -> None:
        oldest = self._engines.clock() - OLDEST_SECONDS
        self._found = {start: entry for start, entry in self._found.items() if start in polled and entry[0] > oldest}
        self._estimators = {start: estimator for start, estimator in self._estimators.items() if start in polled}
        self._idle = {start: idle for start, idle in self._idle.items() if start in polled}
        self._limits = {start: limit for start, limit in self._limits.items() if start in self._found}
        engines = {name: report for (name, _), (_, report) in self._found.items()}
        limits = {name: limit for (name, _), limit in self._limits.items()}
        reports = LoadReports(engines, limits, frozenset(name for name, _ in polled) - engines.keys())
        if must_publish(self.reports, reports):
            self.reports = reports
            self._publish()
