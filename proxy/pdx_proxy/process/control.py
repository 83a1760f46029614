"""The control side: it connects discovery, health and verification with the workers."""

import asyncio
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from pdx_proxy.admission.api_keys import Keyring
from pdx_proxy.admission.quarantine import Casualty, Verdicts
from pdx_proxy.admission.usage import ROWS
from pdx_proxy.balancing.engine_limits import Legs
from pdx_proxy.balancing.leg_limits import leg_limits
from pdx_proxy.balancing.shared_load import LoadTable
from pdx_proxy.config.settings import Settings
from pdx_proxy.discovery.pod_watcher import Discovery, log_warning
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.endpoints.events import HandoffEvent
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.engines.upstreams import create_engines
from pdx_proxy.health.endpoint_manager import EndpointManager
from pdx_proxy.health.engine_loads import EngineLoads
from pdx_proxy.health.engine_scraper import EngineScraper
from pdx_proxy.health.history import History
from pdx_proxy.health.idle_checks import IdleChecks
from pdx_proxy.health.progress import has_work
from pdx_proxy.health.push_queues import PushQueues
from pdx_proxy.health.registry import EndpointRegistry
from pdx_proxy.health.reports import Round
from pdx_proxy.health.stall_judge import StallJudge
from pdx_proxy.health.transfer_share import TransferShare
from pdx_proxy.http.downstream.certificate import certificate_of
from pdx_proxy.process.admin import create_admin
from pdx_proxy.process.guard import Guard
from pdx_proxy.process.quarantine import QuarantineKeeper, WorkerEvent
from pdx_proxy.process.workers import LocalWorkers, ProcessWorkers, Workers, address_of, bind
from pdx_proxy.telemetry.counters import Outcome
from pdx_proxy.verification.prober import TransferProber


class Control:
    """Owner of discovery, the endpoints, the workers and the admin port.

    Flow: discovery -> manager of endpoints -> `_publish` -> workers. Events of workers go to the manager, too.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._guard = Guard()
        self._leg_limits: dict[str, float] = {}
        """The last limits that were computed for the gateway's own report."""
        self._workers: Workers | None = None
        self._runner: web.AppRunner | None = None
        self._engines = create_engines(settings, lambda _: None)
        self._keyring = Keyring(settings.keys, self._engines.pool, log_warning)
        self._certificate = certificate_of(settings.tls, log_warning)
        self._table = LoadTable(settings.workers, rows=ROWS) if settings.workers > 1 else None
        self.registry = EndpointRegistry(settings.endpoints, self._engines.clock, self._table)
        self.endpoint_manager = EndpointManager(self._engines, self.registry, self._publish)
        self.loads = EngineLoads()
        self.transfer_share = TransferShare()
        self.history = History(self._engines.clock())
        self._idle_checks = IdleChecks(self._engines.clock, self._legs, self.endpoint_manager.on_event)
        self._stalls = StallJudge(
            self._engines, self._snapshot, self.endpoint_manager.on_event, settings.health.stalled_seconds
        )
        self._queues = PushQueues(self._engines.deadlines.handoff_seconds)
        self.scraper = EngineScraper(
            self._engines,
            self._snapshot,
            self._consume,
            self.endpoint_manager.set_models,
            hurry=self._must_hurry,
        )
        self._quarantine = QuarantineKeeper(self._engines.clock, self._worker_report, self._publish_verdicts)
        self.prober = TransferProber(self._engines, self._snapshot, self._has_work, self.endpoint_manager.set_pairs)
        self.discovery: asyncio.Task[None] | None = None
        """Runs as long as the gateway, unless discovery fails for good."""
        self._stopping = False
        self.draining = False
        self.listen = settings.listen
        """Where clients are served, with the port in force."""
        self.admin = settings.admin

    @classmethod
    async def start(cls, settings: Settings, discovery: Discovery | None = None) -> "Control":
        """Bind both ports, start the workers, start to discover and warm up engines.

        Raises ListenError, and OSError if the system grants no memory, file or process.
        """
        control = cls(settings)
        admin = bind(settings.admin, shared=False, flag="--admin")
        try:
            control._workers = workers = await control._start_workers()
        except BaseException:
            admin.close()
            raise
        control.listen, control.admin = workers.address, address_of(admin)
        app = create_admin(
            settings,
            snapshot=control._snapshot,
            report=control._report,
            draining=lambda: control.draining,
            serving=lambda: workers.serving,
            prober=control.prober,
        )
        control._runner = web.AppRunner(app, access_log=None)
        await control._runner.setup()
        await web.SockSite(control._runner, admin).start()
        control._keyring.start()
        if control._certificate is not None:
            control._certificate.start()
        control._quarantine.start()
        control._publish()
        control.endpoint_manager.start()
        control.scraper.start()
        control.prober.start()
        if discovery is not None:
            control.discovery = asyncio.create_task(discovery.run(control.endpoint_manager.update))
        return control

    def drain(self) -> None:
        """Report on /readyz that this gateway ends soon, and serve on."""
        self.draining = True
        if self._workers is not None:
            self._workers.drain()

    async def stop(self) -> None:
        """Let open requests finish and end everything. Discovery runs until then, so that removed engines are seen."""
        self.draining = self._stopping = True
        await self.prober.stop()
        await self._quarantine.stop()
        if self._workers is not None:
            await self._workers.stop()
        if self.discovery is not None:
            self.discovery.cancel()
            await asyncio.wait([self.discovery])
        await self._stalls.stop()
        await self.endpoint_manager.stop()
        await self.scraper.stop()
        self._keyring.stop()
        if self._certificate is not None:
            self._certificate.stop()
        self._engines.pool.close()
        if self._table is not None:
            self._table.close()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _start_workers(self) -> Workers:
        if self._table is None:
            return await LocalWorkers.start(self._settings, self._on_event)
        return ProcessWorkers(self._settings, self._on_event, self._table)

    def _waiting(self) -> int:
        return self._workers.waiting if self._workers is not None else 0

    def _must_hurry(self) -> bool:
        """Whether a further report soon lets an engine have more requests."""
        return (self._waiting() > 0 and self.loads.grow) or self.loads.lacks(self._snapshot().everything)

    def _snapshot(self) -> Snapshot:
        return self.registry.snapshot

    async def _worker_report(self) -> dict[str, Any]:
        assert self._workers is not None
        return await self._workers.report()

    async def _legs(self) -> Mapping[str, int]:
        legs: Mapping[str, int] = (await self._worker_report())["legs"]
        return legs

    async def _report(self) -> dict[str, Any]:
        report = await self._worker_report()
        with self._guard.step("The report of the limits of legs"):
            self._leg_limits = self._limits_of(report)
        arrivals: dict[str, Any] = {}
        with self._guard.step("The report of the share of transfers"):
            arrivals = self.transfer_share.as_json()
        history: dict[str, Any] = {}
        with self._guard.step("The report of the history"):
            history = self.history.as_json(self._engines.clock(), report)
        own = {"ejections": dict(self.registry.ejections), "verification": self.prober.report()}
        own |= {"split": self._settings.choosing.split, "slo": self._settings.slo.seconds()}
        own |= {"legLimits": self._leg_limits, "arrivals": arrivals, "history": history}
        return {**report, **own}

    def _limits_of(self, report: Mapping[str, Any]) -> dict[str, float]:
        """Return the limits of legs at the moment of a report of the workers."""
        counts = [report.get(key, {}) for key in ("legs", "prefilling", "blocked")]
        decode = report.get("decode", {})
        batches = {name: limit / decode["limited"][name] for name, limit in decode.get("batches", {}).items()}
        return leg_limits(
            self._snapshot(),
            self.loads.reports,
            self._settings.limits,
            lambda endpoint: Legs(*(by_name.get(endpoint.name, 0) for by_name in counts)),
            batches,
        )

    def _publish(self) -> None:
        snapshot = self.registry.snapshot
        self._engines.apply(snapshot)
        if self._workers is not None:
            with self._guard.step("The publication of the endpoints"):
                self._workers.apply(snapshot)

    async def _consume(self, scraped: Round) -> None:
        """Use what the metrics of all engines have shown. A use that fails stops no other one."""
        with self._guard.step("The use of the engines' load"):
            if self.loads.update(scraped):
                self._publish_load()
        if scraped.is_sample:
            with self._guard.step("The search for engines without progress"):
                self._stalls.update(scraped)
            with self._guard.step("The use of the engines' queues"):
                for endpoint, is_long in self._queues.update(scraped):
                    self.endpoint_manager.set_long_queue(endpoint, is_long)
        if self._stopping:  # workers that end report nothing
            return
        with self._guard.step("The check of silent engines"):
            await self._idle_checks.update(scraped)
        if scraped.is_sample:
            report: dict[str, Any] = {}
            with self._guard.step("The report of the workers"):
                report = await self._worker_report()
            with self._guard.step("The use of the share of transfers"):
                self.transfer_share.update(scraped, report["outcomes"][Outcome.SPLIT])
            with self._guard.step("The history"):
                self.history.update(scraped.at, report, scraped.latest)

    async def _has_work(self, endpoint: Endpoint) -> bool:
        """Whether work explains that this engine does not answer. A report that is no longer used explains nothing."""
        ranks = [e.name for e in self._snapshot().everything if e.address == endpoint.address]
        reports, legs = self.loads.reports.engines, await self._legs()
        return has_work([reports[name] for name in ranks if name in reports], sum(legs.get(name, 0) for name in ranks))

    def _on_event(self, event: WorkerEvent) -> None:
        if isinstance(event, HandoffEvent):
            self.prober.on_event(event)
        elif isinstance(event, Casualty):
            self._quarantine.add(event)
        else:
            self.endpoint_manager.on_event(event)

    def _publish_verdicts(self, verdicts: Verdicts) -> None:
        if self._workers is not None and not self._stopping:
            self._workers.apply_verdicts(verdicts)

    def _publish_load(self) -> None:
        if self._workers is not None:
            self._workers.apply_load(self.loads.reports)
