"""The engines' own load, from their metrics: for the limits of legs, and for the policy LeastLoad. Pure."""

from collections.abc import Iterable

from pdx_api.names import Role
from pdx_proxy.balancing.engine_limits import EngineLimit, EngineSample, LimitEstimator, Work
from pdx_proxy.balancing.load_reports import LoadReport, LoadReports
from pdx_proxy.endpoints.endpoint import Endpoint, Start
from pdx_proxy.health.reports import Report, Round


def must_publish(old: LoadReports, new: LoadReports) -> bool:
    """Whether workers need the new reports: always, unless all engines were and are idle.

    Equal numbers of busy engines are published too: each worker compares them with what it has sent by then.
    """
    return new != old or any(load.running or load.waiting or load.kv_use for load in new.engines.values())


class EngineLoads:
    """Owner of the load reports."""

    def __init__(self) -> None:
        self.reports = LoadReports()
        self._estimators: dict[Start, LimitEstimator] = {}
        self._limits: dict[Start, EngineLimit] = {}

    @property
    def grow(self) -> bool:
        """Whether an engine may be able to run more."""
        return any(limit.grows for limit in self.reports.limits.values())

    def lacks(self, endpoints: Iterable[Endpoint]) -> bool:
        """Whether one of these is warm and has not been read yet."""
        limits, silent = self.reports.limits, self.reports.silent
        return any(e.warm and e.name not in limits and e.name not in silent for e in endpoints)

    def update(self, scraped: Round) -> bool:
        """Evaluate a round; return whether `reports` has changed for the workers."""
        warm = scraped.warm
        self._estimators = {start: estimator for start, estimator in self._estimators.items() if start in warm}
        loads = {r.endpoint.start: load for r in scraped.latest if (load := LoadReport.of(r.metrics)) is not None}
        for report in scraped.new:
            if report.endpoint.start in loads:
                self._estimate(report)
        self._limits = {start: limit for start, limit in self._limits.items() if start in loads}
        engines = {name: load for (name, _), load in loads.items()}
        limits = {name: limit for (name, _), limit in self._limits.items()}
        reports = LoadReports(engines, limits, frozenset(name for name, _ in warm) - engines.keys())
        if not must_publish(self.reports, reports):
            return False
        self.reports = reports
        return True

    def _estimate(self, report: Report) -> None:
        start = report.endpoint.start
        estimator = self._estimators.get(start)
        if estimator is None:
            work = Work.PREFILL if report.endpoint.role is Role.PREFILL else Work.DECODE
            estimator = self._estimators[start] = LimitEstimator(work, report.endpoint.spec.runs)
        self._limits[start] = estimator.update(EngineSample.of(report.metrics, report.at))
