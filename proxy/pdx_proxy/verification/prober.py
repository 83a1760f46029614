"""Transfer probes at intervals: requests of the gateway's own that show, for each pair, whether KV moves.

A prompt is new to the D that receives it, so what D has not computed came from P. P computes it once and has it for
its other D's.
"""

import asyncio
import logging
import os
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from pdx_api.names import Role
from pdx_api.verification import LONGEST_WAIT, MOST_VERSIONS, Finding, Verdict
from pdx_proxy.endpoints.endpoint import Endpoint, Names, Pairing, names_in, wire_of
from pdx_proxy.endpoints.events import FailedHandoff, HandedOver, HandoffEvent
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.engines.upstreams import Engines
from pdx_proxy.telemetry.counters import Histogram
from pdx_proxy.verification.attempt import Attempt, AttemptRunner
from pdx_proxy.verification.diagnosis import likely_cause
from pdx_proxy.verification.prompts import Prompts
from pdx_proxy.verification.record import Pair, Record, Result, generations_of, names_of
from pdx_proxy.verification.schedule import candidates, due, unequal, urgent
from pdx_proxy.verification.suspension import Suspensions
from pdx_proxy.verification.verdict import (
    Unanswered,
    count_unanswered,
    doubt,
    finding_of,
    next_record,
    present_verdict,
)

PAUSE_SECONDS: Final = 1.0
"""Pause between two sweeps for pairs that are due. It is longer if there are many pairs."""
_PAIRS_PER_SECOND: Final = 400
_CONCURRENT: Final = 8
_PROOF_SECONDS: Final = 5.0
"""How long a probe that moved KV explains that a hand-off is slow: D decodes."""
_DISABLED: Final = Finding(Verdict.UNKNOWN, "transfer probes are disabled (spec.kvTransfer.verification.periodSeconds)")
_log: Final = logging.getLogger(__name__)


class TransferProber:
    """Owner of the records of all pairs and of the finding."""

    def __init__(
        self,
        engines: Engines,
        snapshot: Callable[[], Snapshot],
        has_work: Callable[[Endpoint], Awaitable[bool]],
        set_pairs: Callable[[frozenset[Names], frozenset[Names]], None],
        rng: random.Random | None = None,
    ) -> None:
        """`has_work` returns whether other work explains that an engine does not answer.

        `set_pairs` receives the suspended and the watched pairs.
        """
        self._engines = engines
        self._snapshot = snapshot
        self._has_work = has_work
        self._set_pairs = set_pairs
        self._suspensions = Suspensions()
        self._random = rng or random.Random()  # noqa: S311 (no secret)
        self._period = engines.settings.verification.period_seconds
        self._prompts = Prompts(self._period, self._random)
        self._runner = AttemptRunner(engines, self._prompts)
        self._records: dict[Names, Record] = {}
        self._attempts: dict[Names, Attempt] = {}
        """The last attempt of each pair."""
        self._proved: dict[Names, float] = {}
        """When an attempt of each pair last proved something, in Unix time."""
        self._unanswered: Unanswered = {}
        self._compared: dict[Names | str, float] = {}
        """When the last comparison with D alone ended, by pair and by name of D."""
        self._slots = asyncio.Semaphore(_CONCURRENT)
        self._open: dict[Names, asyncio.Task[None]] = {}
        self._task: asyncio.Task[None] | None = None
        self._stopped = False
        self._changed = asyncio.Event()
        self._prefix, self._version = os.urandom(4).hex(), 0
        self.results = dict.fromkeys(Result, 0)
        self.phases = {phase: Histogram() for phase in ("prefill", "handoff", "alone")}
        self.last_success: float | None = None
        """Unix time."""
        self.finding = _DISABLED if not self._period else finding_of([], {}, None)

    def start(self) -> None:
        """Start to send transfer probes, unless they are disabled."""
        if self._period:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def on_event(self, event: HandoffEvent) -> None:
        """Receive what a worker has seen of a hand-off. Without probes no pair is suspended: none would return."""
        names = names_in(event.pair)
        if isinstance(event, HandedOver):
            self._suspensions.handed_over(names)
        elif self._period and isinstance(event, FailedHandoff):
            self._suspensions.fail(names, self._engines.clock())
        elif self._period and not self._moved_lately(event.pair):
            self._suspensions.watch(names, self._engines.clock())
        self._publish()

    def _moved_lately(self, pair: Pairing) -> bool:
        """Whether a probe has just moved KV within the pair, so that a slow hand-off needs no further one."""
        record = self._records.get(names_in(pair))
        if record is None or record.generations != (pair[1], pair[3]) or record.result is not Result.MOVED:
            return False
        return self._engines.clock() - record.at < _PROOF_SECONDS

    async def stop(self) -> None:
        """Stop, and end every `wait_for_change`."""
        self._stopped = True
        self._changed.set()
        tasks = [*self._open.values(), *([self._task] if self._task is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def wait_for_change(self, after: str, wait: float) -> dict[str, Any]:
        """Return the finding once its stamp differs from `after`, at the latest after `wait` seconds."""
        loop = asyncio.get_running_loop()
        end = loop.time() + min(wait, LONGEST_WAIT)
        while self._stamp == after and not self._stopped:
            try:
                async with asyncio.timeout_at(end):
                    await self._changed.wait()
            except TimeoutError:
                break
        return {"stamp": self._stamp, "finding": self.finding.as_json(), "lastSuccess": self.last_success}

    def describe(self) -> dict[str, Any]:
        """Return the finding and all pairs, as JSON values."""
        now, present = time.time(), {e.name: e for e in self._snapshot().everything}
        return {
            "seconds": self._period,
            "lastSuccess": self.last_success,
            "finding": self.finding.as_json(),
            "pairs": [self._describe(names, record, now, present) for names, record in sorted(self._records.items())],
        }

    def report(self) -> dict[str, Any]:
        """Return the counters for the metrics page, as JSON values."""
        verdicts = dict.fromkeys((verdict.value for verdict in Verdict), 0)
        present = {e.name: e for e in self._snapshot().everything}
        for names, record in self._records.items():
            verdicts[present_verdict(record, self._doubt(names, present))] += 1
        return {
            "results": dict(self.results),
            "phases": {name: {"counts": h.counts, "total": h.total} for name, h in self.phases.items()},
            "pairs": verdicts,
            "lastSuccess": self.last_success,
        }

    @property
    def _stamp(self) -> str:
        return f"{self._prefix}-{self._version}"

    def _doubt(self, names: Names, present: Mapping[str, Endpoint]) -> str:
        return doubt(present.get(names[0]), present.get(names[1]), self._unanswered)

    def _describe(self, names: Names, record: Record, now: float, present: Mapping[str, Endpoint]) -> dict[str, Any]:
        attempt, proved = self._attempts.get(names, Attempt()), self._proved.get(names)
        why_not = self._doubt(names, present)
        verdict = present_verdict(record, why_not)
        generations = tuple(present[name].generation if name in present else None for name in names)
        return {
            "prefill": names[0],
            "decode": names[1],
            "verdict": verdict,
            "outdated": record.generations != generations,
            "cause": record.cause if record.verdict is Verdict.BROKEN else None,
            "ageSeconds": None if proved is None else round(now - proved),
            "result": attempt.result,
            "seen": why_not if why_not and verdict is Verdict.UNKNOWN else attempt.seen,
            "tokens": attempt.tokens,
            "outside": attempt.remote_tokens,
            "seconds": attempt.seconds,
        }

    async def _run(self) -> None:
        while True:
            pairs = 0
            try:
                pairs = self._sweep()
            except Exception:
                _log.exception("Starting the transfer probes that are due failed.")
            pause = max(PAUSE_SECONDS, pairs / _PAIRS_PER_SECOND)
            await asyncio.sleep(pause * self._random.uniform(0.8, 1.2))

    def _sweep(self) -> int:
        """Start every attempt that is due; return the number of pairs."""
        everything = self._snapshot().everything
        revisions = candidates(everything)
        self._forget_all_but(everything)
        now = self._engines.clock()
        prefills, decodes = ({e.name for e in everything if e.role is role} for role in (Role.PREFILL, Role.DECODE))
        self._suspensions.advance(_names_in(revisions), prefills, decodes, now)
        self._publish()
        watched, suspended = self._suspensions.watched, self._suspensions.suspended
        for pairs in revisions:
            chosen = due(pairs, self._records, now, self._period)
            for pair in [*urgent(pairs, self._records, now, watched, suspended), *chosen]:
                names = names_of(pair)
                if names not in self._open:
                    self._open[names] = asyncio.get_running_loop().create_task(self._attempt(names, pair))
        self._conclude(revisions)
        return sum(map(len, revisions))

    def _forget_all_but(self, everything: Sequence[Endpoint]) -> None:
        """Forget the engines and the revisions that are gone."""
        names, starts = {e.name for e in everything}, {e.start for e in everything}
        self._unanswered = {start: count for start, count in self._unanswered.items() if start in starts}
        for pair in [pair for pair in self._records if not names.issuperset(pair)]:
            del self._records[pair]
            self._attempts.pop(pair, None)
            self._proved.pop(pair, None)
        for key in [key for key in self._compared if not names.issuperset((key,) if isinstance(key, str) else key)]:
            del self._compared[key]
        self._prompts.keep(names, {e.revision for e in everything})

    def _conclude(self, revisions: list[list[Pair]]) -> None:
        doubts = {
            names_of(pair): why for pairs in revisions for pair in pairs if (why := doubt(*pair, self._unanswered))
        }
        reported = {e.version for e in self._snapshot().everything if e.version and not e.spec.leaving}
        found = finding_of(revisions, self._records, self.finding, doubts, unequal(self._snapshot().everything))
        finding = replace(found, versions=tuple(sorted(reported)[:MOST_VERSIONS]))
        if finding != self.finding:
            self.finding = finding
            self._version += 1
            self._changed.set()
            self._changed = asyncio.Event()

    async def _attempt(self, names: Names, pair: Pair) -> None:
        attempt, unanswered = Attempt(), self._unanswered
        try:
            async with self._slots:
                self._suspensions.begin_probe(names, self._engines.clock())
                await self._runner.run(pair, lambda: self._must_compare(pair), attempt)
            for engine in pair:
                if engine.name == attempt.silent and await self._has_work(engine):
                    attempt.silent = ""
        except Exception:
            attempt.result, attempt.silent = Result.BUSY, ""
            _log.exception("A transfer probe failed.")
        finally:
            self._suspensions.end_probe(names)
            del self._open[names]
        self._record(names, pair, attempt, unanswered)

    def _record(self, names: Names, pair: Pair, attempt: Attempt, unanswered: Unanswered) -> None:
        """Evaluate an attempt; `unanswered` are the counts when it began."""
        self._count(names, attempt)
        present = {e.name: e for e in self._snapshot().everything}
        if any(name not in present for name in names):
            return
        if generations_of(pair) != generations_of((present[names[0]], present[names[1]])):
            return  # the result is about earlier generations
        cause = {}
        if attempt.evidence is not None:
            prefill = pair[0]
            wire = partial(wire_of, prefill.spec)
            cause = {"cause": likely_cause(prefill.family, prefill.address.host, attempt.evidence, wire)}
            if attempt.evidence.unconnected:
                attempt.seen = f"{attempt.seen}, and {attempt.evidence.unconnected}"
        before, now = self._records.get(names), self._engines.clock()
        self._records[names] = next_record(pair, attempt.result, before, now, attempt.seen, **cause)
        self._unanswered = count_unanswered(self._unanswered, unanswered, pair, attempt.answered, attempt.silent)
        self._attempts[names] = attempt
        if attempt.result is not Result.BUSY:
            self._proved[names] = time.time()
        if attempt.result is Result.MOVED:
            self.last_success = time.time()
        revisions = candidates(present.values())
        self._suspend_or_not(pair, self._records[names], revisions)
        self._conclude(revisions)

    def _suspend_or_not(self, pair: Pair, record: Record, revisions: list[list[Pair]]) -> None:
        """Draw the conclusion from a probe for the pair's hand-offs."""
        if record.result is Result.MOVED or record.result is Result.NOT_REPORTED:
            self._suspensions.moved(names_of(pair))
        elif record.result is not Result.BUSY and record.verdict is Verdict.BROKEN:
            self._suspensions.suspend(names_of(pair), _names_in(revisions), self._engines.clock())
        self._publish()

    def _publish(self) -> None:
        self._set_pairs(self._suspensions.suspended, self._suspensions.watched)

    def _count(self, names: Names, attempt: Attempt) -> None:
        self.results[attempt.result] += 1
        for phase, seconds in attempt.seconds.items():
            self.phases[phase].observe(seconds)
        if attempt.compared:
            self._compared |= dict.fromkeys([names, names[1]], self._engines.clock())

    def _must_compare(self, pair: Pair) -> bool:
        """Whether D must also answer alone: once for each new pair, then once for each D in the period."""
        names = names_of(pair)
        before = self._records.get(names)
        if names not in self._compared or before is None or before.result is not Result.MOVED:
            return True
        if before.generations != generations_of(pair):
            return True
        return self._engines.clock() - self._compared.get(names[1], 0.0) >= self._period


def _names_in(revisions: Iterable[Iterable[Pair]]) -> frozenset[Names]:
    return frozenset(names_of(pair) for pairs in revisions for pair in pairs)
