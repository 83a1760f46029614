"""One run of `pdx bench`: measures arm after arm, prints progress, and writes the results, also when interrupted."""

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pdx_api.version import pdx_version
from pdx_cli import streams
from pdx_cli.bench.analysis.arms import Arm, ArmResult
from pdx_cli.bench.analysis.search import expected_steps
from pdx_cli.bench.analysis.steps import StepResult
from pdx_cli.bench.arguments import RESULT
from pdx_cli.bench.calibration import Calibrated, calibrate, model_of
from pdx_cli.bench.load.generator import Shape
from pdx_cli.bench.load.records import Record
from pdx_cli.bench.measure import ArmRun, Observer, Plan, start_rate
from pdx_cli.bench.results.document import Run
from pdx_cli.bench.results.files import REPORT, ResultDirectory
from pdx_cli.bench.results.text import lines, measured
from pdx_cli.bench.targets import Target
from pdx_cli.usage import amount, duration


@dataclass(frozen=True, slots=True)
class Request:
    """How requests are made."""

    model: str | None
    chat: bool
    headers: Mapping[str, str]
    start_rate: float | None
    """A rate from which to search; None: by the first requests."""


@dataclass(slots=True)
class Session:
    """Owns the results of a run. Call `finish` once, whatever has happened."""

    name: str
    plan: Plan
    request: Request
    output: Path
    arms: int = 1
    """How many arms there will be."""
    results: list[ArmResult] = field(default_factory=list)
    devices: int = 0
    has_phases: bool = True
    model: str = ""
    _files: ResultDirectory | None = None
    _current: ArmRun | None = None
    _announced: bool = False
    _date: str = field(default_factory=lambda: time.strftime("%Y-%m-%dT%H:%M:%S%z"))

    @property
    def expected_seconds(self) -> float:
        """About how long the run takes."""
        steps = len(self.plan.rates) * self.plan.repeats * self.arms
        return (steps or expected_steps(self.plan.repeats, self.arms)) * self.plan.step_seconds

    @property
    def has_results(self) -> bool:
        """Whether a step has ended."""
        return self._files is not None

    def announce(self) -> None:
        """Print once what will be done, and about how long it takes."""
        if self._announced:
            return
        self._announced = True
        arms = f"{self.arms} arms, " if self.arms > 1 else ""
        report(
            f"{self.plan.load.name}; SLO: {self.plan.slo}. {arms}{amount(self.plan.repeats, 'repeat')}, about "
            f"{duration(round(self.expected_seconds))}; Ctrl-C ends it with the results so far."
        )

    async def measure(self, target: Target, arm: Arm | None = None) -> ArmResult:
        """Warm up and measure one arm; the result is kept, also a partial one."""
        arm = arm or target.arm
        report(f"{arm.name}: first requests, which are not counted")
        first = await self._first(target)
        self.model = first.shape.model
        self.announce()
        rate = self.request.start_rate or start_rate(first.ttft, first.latency, arm.prefill or arm.aggregated)
        report(f"  alone: TTFT {1000 * first.ttft:.0f} ms, whole answer {first.latency:.2f} s")

        def ended(arm: Arm, step: StepResult, records: Sequence[Record]) -> None:
            self._open_files().add(arm, step, records)
            report(f"  {what(step.repeat)}: {measured(step)}")

        def what(repeat: int) -> str:
            return f"repeat {repeat + 1}" if self.plan.rates else f"repeat {repeat}" if repeat else "search"

        def began(_arm: Arm, rate: float, repeat: int, left: int) -> None:
            about = f"{'' if self.plan.rates else 'about '}{amount(max(1, left), 'step')} left"
            report(f"  {what(repeat)}: {rate:.3g} req/s, {about}")

        observer = Observer(began, ended)
        run = ArmRun(arm, target.server, first.shape, target.meters, self.plan, observer, rate, target.shares_cores)
        self._current = run
        self.has_phases = self.has_phases and target.has_phases
        await run.run()
        return self._keep(run)

    def failed(self, arm: Arm, why: str) -> None:
        """Keep an arm that could not be measured, with what it has."""
        if self._current is not None and self._current.arm == arm and self._current.steps:
            self._current.problem = why
            self._keep(self._current)
        else:
            self.results.append(ArmResult(arm, (), (), problem=why))
        self._current = None

    async def _first(self, target: Target) -> Calibrated:
        model = self.request.model or target.model or await model_of(target.server, self.request.headers)
        shape = Shape(model, self.request.chat, self.request.headers)
        rng = random.Random(self.plan.seed)  # noqa: S311 (no secret depends on it)
        return await calibrate(target.server, shape, self.plan.load, rng, f"first/{self.plan.seed}/{time.time_ns()}")

    def _open_files(self) -> ResultDirectory:
        """Its files. A run that ends before its first step does leaves none."""
        if self._files is None:
            self._files = ResultDirectory(self.output, self.plan.slo, self.model, self._date)
        return self._files

    def _keep(self, run: ArmRun) -> ArmResult:
        self._current = None
        result = run.result()
        self.results.append(result)
        return result

    def finish(self, *, interrupted: bool) -> Run | None:
        """Keep what the current arm has, print and write the results; None if there are none."""
        if self._current is not None and self._current.steps:
            self._keep(self._current)
        if self._files is None:
            if self.results:
                report("\nNo arm could be measured, so there are no results.")
            return None
        self._files.close()
        if not self.results:
            return None
        run = self._run(partial=interrupted)
        self._files.finish(run)
        report("")
        print("\n".join((*lines(run), "", f"{self.output / RESULT}, {self.output / REPORT}")), flush=True)
        return run

    def _run(self, *, partial: bool) -> Run:
        plan = self.plan
        return Run(
            name=self.name,
            date=self._date,
            version=pdx_version(),
            model=self.model,
            load=plan.load.name,
            slo=plan.slo,
            step_seconds=plan.seconds,
            warm_up=plan.warm_up,
            repeats=plan.repeats,
            seed=plan.seed,
            results=tuple(self.results),
            devices=self.devices,
            has_phases=self.has_phases,
            partial=partial,
        )


def report(line: str) -> None:
    """Print progress."""
    streams.report(line)
