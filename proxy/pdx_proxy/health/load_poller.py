"""Polls the engines' own load. The control side does so once for all workers, if a policy uses it."""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from typing import Final

from pdx_api.names import Policy, Role
from pdx_proxy.balancing.load_reports import LoadReport, LoadReports
from pdx_proxy.config.settings import Address, Choosing
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.engines.engine_metrics import read_load
from pdx_proxy.engines.engines import Engines
from pdx_proxy.engines.probe import page_of

PAUSE_SECONDS: Final = 1.0
"""Between two rounds, varied by a fifth so that several gateways do not poll at the same instant."""
ANSWER_SECONDS: Final = 1.0
"""Deadline of an engine's answer."""
OLDEST_SECONDS: Final = 5.0
"""How long a report is used if no newer one arrives."""
_CONCURRENT: Final = 16
_IDLE: Final = LoadReport(0.0, 0.0, 0.0)
_log: Final = logging.getLogger(__name__)


def polled_roles(choosing: Choosing) -> frozenset[Role]:
    """Return the roles whose policy uses the engines' own load."""
    roles: set[Role] = set()
    if choosing.prefill_policy is Policy.LEAST_LOAD:
        roles.add(Role.PREFILL)
    if choosing.decode_policy is Policy.LEAST_LOAD:
        roles |= {Role.DECODE, Role.AGGREGATED}
    return frozenset(roles)


def must_publish(old: Mapping[str, LoadReport], new: Mapping[str, LoadReport]) -> bool:
    """Whether workers need the new reports: always, unless all engines were and are idle.

    Equal numbers of busy engines are published too: each worker compares them with what it has sent by then.
    """
    return new != old or any(report != _IDLE for report in new.values())


class LoadPoller:
    """Owner of the load reports."""

    def __init__(
        self,
        engines: Engines,
        snapshot: Callable[[], Snapshot],
        publish: Callable[[], None],
        rng: random.Random | None = None,
    ) -> None:
        self._engines = engines
        self._roles = polled_roles(engines.settings.choosing)
        self._snapshot = snapshot
        self._publish = publish
        """Called after each change of `reports`."""
        self._random = rng or random.Random()  # noqa: S311 (spreads load)
        self._slots = asyncio.Semaphore(_CONCURRENT)
        self._found: dict[tuple[str, int], tuple[float, LoadReport]] = {}
        """The last report and its time, by name and generation of the endpoint."""
        self._task: asyncio.Task[None] | None = None
        self.reports = LoadReports()

    def start(self) -> None:
        """Start to poll, if a policy needs it."""
        if self._roles:
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
            await asyncio.sleep(PAUSE_SECONDS * self._random.uniform(0.8, 1.2))

    async def poll_all(self) -> None:
        """Poll every engine once."""
        by_address: dict[Address, list[Endpoint]] = {}
        for endpoint in self._snapshot().everything:
            if endpoint.warm and endpoint.role in self._roles:
                by_address.setdefault(endpoint.address, []).append(endpoint)
        await asyncio.gather(*map(self._poll, by_address.values()))
        self._update({(e.name, e.generation) for ranks in by_address.values() for e in ranks})

    async def _poll(self, ranks: list[Endpoint]) -> None:
        """Read one engine's page for all its ranks. Without an answer the last reports stay."""
        async with self._slots:
            page = await page_of(self._engines, ranks[0], "/metrics", ANSWER_SECONDS)
        now = self._engines.clock()
        for endpoint in ranks:
            report = read_load(page, endpoint.spec.rank)
            if report is not None:
                self._found[endpoint.name, endpoint.generation] = (now, report)

    def _update(self, polled: set[tuple[str, int]]) -> None:
        oldest = self._engines.clock() - OLDEST_SECONDS
        self._found = {key: entry for key, entry in self._found.items() if key in polled and entry[0] > oldest}
        engines = {name: report for (name, _), (_, report) in self._found.items()}
        if must_publish(self.reports.engines, engines):
            self.reports = LoadReports(engines)
            self._publish()
