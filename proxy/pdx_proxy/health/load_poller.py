"""What engines say of their own load: asked by the control side, once for all workers, when a policy wants it.

Only the lines that are needed are read of a page of some 60 kB. Their names are those of vLLM's v1/metrics/loggers.py;
an engine with data-parallel ranks has a line for each.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from typing import Final

from pdx_api.names import Policy, Role
from pdx_proxy.balancing.load_reports import LoadReport, LoadReports
from pdx_proxy.config.settings import Address, Choosing
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.engines.engines import Engines
from pdx_proxy.engines.probe import page_of

PAUSE_SECONDS: Final = 1.0
"""Between two rounds, a fifth more or less, so that several gateways do not ask at the same instant."""
ANSWER_SECONDS: Final = 1.0
"""How long an engine may take to answer."""
OLDEST_SECONDS: Final = 5.0
"""How long numbers are used when no newer ones come."""
_AT_A_TIME: Final = 16
_IDLE: Final = LoadReport(0.0, 0.0, 0.0)
_RUNNING: Final = b"\nvllm:num_requests_running{"
_WAITING: Final = b"\nvllm:num_requests_waiting{"
_KV_USE: Final = b"\nvllm:kv_cache_usage_perc{"
_log: Final = logging.getLogger(__name__)


def asked_roles(choosing: Choosing) -> frozenset[Role]:
    """The roles whose policy goes by the engines' own numbers."""
    roles: set[Role] = set()
    if choosing.prefill_policy is Policy.LEAST_LOAD:
        roles.add(Role.PREFILL)
    if choosing.decode_policy is Policy.LEAST_LOAD:
        roles |= {Role.DECODE, Role.AGGREGATED}
    return frozenset(roles)


def read_measure(page: bytes, rank: int | None = None) -> LoadReport | None:
    """What a metrics page says of an engine, or of one of its ranks; None unless it says all of it."""
    label = () if rank is None else (b'engine="%d"' % rank,)
    running, waiting, kv_use = (list(values(page, name, *label)) for name in (_RUNNING, _WAITING, _KV_USE))
    if not (running and waiting and kv_use) or not all(map(isfinite, (*running, *waiting, *kv_use))):
        return None
    return LoadReport(sum(running), sum(waiting), sum(kv_use) / len(kv_use))


def values(page: bytes, start: bytes, *labels: bytes) -> Iterable[float]:
    """The values of a page's lines that begin so and hold all the labels; NaN for one that is no number."""
    at = page.find(start)
    while at >= 0:
        end = page.find(b"\n", at + 1)
        line = page[at : end if end >= 0 else len(page)]
        if all(label in line for label in labels):
            try:
                yield float(line.rpartition(b" ")[2])
            except ValueError:
                yield float("nan")
        at = page.find(start, at + 1)


def is_news(old: Mapping[str, LoadReport], new: Mapping[str, LoadReport]) -> bool:
    """Whether workers are to be told: always but for engines that were and are idle.

    Of busy ones equal numbers are news too: they are compared with what each worker has sent by now.
    """
    return new != old or any(each != _IDLE for each in new.values())


class EngineLoads:
    """Owner of the engines' numbers."""

    def __init__(
        self,
        engines: Engines,
        snapshot: Callable[[], Snapshot],
        publish: Callable[[], None],
        rng: random.Random | None = None,
    ) -> None:
        self._engines = engines
        self._roles = asked_roles(engines.settings.choosing)
        self._snapshot = snapshot
        self._publish = publish
        """Called when `reports` is another one."""
        self._random = rng or random.Random()  # noqa: S311 (spreads load)
        self._slots = asyncio.Semaphore(_AT_A_TIME)
        self._found: dict[tuple[str, int], tuple[float, LoadReport]] = {}
        """By name and start of an endpoint what it said last, and when."""
        self._task: asyncio.Task[None] | None = None
        self.reports = LoadReports()
        """What is known now."""

    def start(self) -> None:
        """Begin to ask, if a policy wants it."""
        if self._roles:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            try:
                await self.ask_all()
            except Exception:
                _log.exception("Asking engines for their load failed.")
            await asyncio.sleep(PAUSE_SECONDS * self._random.uniform(0.8, 1.2))

    async def ask_all(self) -> None:
        """One round."""
        by_address: dict[Address, list[Endpoint]] = {}
        for endpoint in self._snapshot().everything:
            if endpoint.warm and endpoint.role in self._roles:
                by_address.setdefault(endpoint.address, []).append(endpoint)
        await asyncio.gather(*map(self._ask, by_address.values()))
        self._take({(e.name, e.generation) for ranks in by_address.values() for e in ranks})

    async def _ask(self, ranks: list[Endpoint]) -> None:
        """Ask one engine; one that does not answer has said nothing."""
        async with self._slots:
            page = await page_of(self._engines, ranks[0], "/metrics", ANSWER_SECONDS)
        now = self._engines.clock()
        for endpoint in ranks:
            measure = read_measure(page, endpoint.spec.rank)
            if measure is not None:
                self._found[endpoint.name, endpoint.generation] = (now, measure)

    def _take(self, asked: set[tuple[str, int]]) -> None:
        oldest = self._engines.clock() - OLDEST_SECONDS
        self._found = {key: told for key, told in self._found.items() if key in asked and told[0] > oldest}
        engines = {name: measure for (name, _), (_, measure) in self._found.items()}
        if is_news(self.reports.engines, engines):
            self.reports = LoadReports(engines)
            self._publish()
