"""Canaries: prompts of the gateway's own that show for each pair of engines whether KV travels between them.

They go over the control side's connections, so nothing of them is counted as a client's. A prompt is fresh to the D
that gets it: what D has not computed came from P. P computes it once and then has it for its other D's.
"""

import asyncio
import logging
import os
import random
import string
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from pdx_api.verification import LONGEST_WAIT, Finding, Verdict
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.engines.engines import Engines
from pdx_proxy.engines.probe import Probe, hand_over, page_of, serve
from pdx_proxy.engines.transfer_params import NO_PARAMS
from pdx_proxy.http.upstream.failures import BadAnswer, ConnectFailure, DeadlineExceeded, EngineFailure, LostConnection
from pdx_proxy.telemetry.counters import Histogram
from pdx_proxy.verification.verdict import (
    Answer,
    Evidence,
    Facts,
    Names,
    Pair,
    Record,
    Result,
    candidates,
    due,
    found,
    judge,
    likely_cause,
    read_answer,
    read_facts,
    recorded,
    starts_of,
)

PAUSE_SECONDS: Final = 1.0
"""Between two looks at what is due, more where there are many pairs."""
LEG_SECONDS: Final = 15.0
"""How long each leg may take. A pair whose D answers by itself in that time, and not over KV, is broken."""
_PAIRS_IN_A_SECOND: Final = 400
_AT_A_TIME: Final = 8
_WORDS: Final = 160
"""In a prompt: 300 to 400 tokens, more than any connector's smallest piece."""
_FEWEST_WORDS: Final = 10
_LETTERS: Final = 5
_ANSWER: Final[Mapping[str, Any]] = {"max_tokens": 4, "temperature": 0, "logprobs": 5}
_PAGES: Final = ("/version", "/v1/models", "/metrics")
_OFF: Final = Finding(Verdict.UNKNOWN, "canaries are switched off (spec.routing.canarySeconds)")
_log: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class Prompt:
    """What a P is asked, and which D's have had it."""

    text: str
    made: float
    decodes: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Tried:
    """What one canary has shown."""

    result: Result = Result.BUSY
    seen: str = ""
    evidence: Evidence | None = None
    tokens: int = 0
    outside: int = 0
    """Prompt tokens that D has not computed."""
    seconds: dict[str, float] = field(default_factory=dict)
    """By phase: prefill, handoff (P's answer to the end of D's), alone (D's answer to the prompt by itself)."""


class TransferProber:
    """Owner of what is known of pairs."""

    def __init__(self, engines: Engines, snapshot: Callable[[], Snapshot], rng: random.Random | None = None) -> None:
        self._engines = engines
        self._snapshot = snapshot
        self._random = rng or random.Random()  # noqa: S311 (no secret)
        self._usual = engines.settings.verification.period_seconds
        self._records: dict[Names, Record] = {}
        self._tried: dict[Names, tuple[float, Tried]] = {}
        """The last try of each pair, and when, in Unix time."""
        self._compared: dict[Names | str, float] = {}
        """When a pair, or a D, was last compared with D alone."""
        self._prompts: dict[str, Prompt] = {}
        self._words: dict[str, int] = {}
        """Words in a prompt, by revision: fewer where engines refuse so many."""
        self._slots = asyncio.Semaphore(_AT_A_TIME)
        self._open: dict[Names, asyncio.Task[None]] = {}
        self._task: asyncio.Task[None] | None = None
        self._over = False
        self._changed = asyncio.Event()
        self._prefix, self._version = os.urandom(4).hex(), 0
        self.results = dict.fromkeys(Result, 0)
        self.phases = {phase: Histogram() for phase in ("prefill", "handoff", "alone")}
        self.last_success: float | None = None
        """Unix time."""
        self.finding = _OFF if not self._usual else found([], {}, None)

    def start(self) -> None:
        """Begin to send canaries, unless they are switched off."""
        if self._usual:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Send no more; whoever waits for news is answered."""
        self._over = True
        self._changed.set()
        tasks = [*self._open.values(), *([self._task] if self._task is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def news(self, after: str, wait: float) -> dict[str, Any]:
        """What is found, once it is another thing than under the stamp `after`, or `wait` seconds are over."""
        loop = asyncio.get_running_loop()
        end = loop.time() + min(wait, LONGEST_WAIT)
        while self._stamp == after and not self._over:
            try:
                async with asyncio.timeout_at(end):
                    await self._changed.wait()
            except TimeoutError:
                break
        return {"stamp": self._stamp, "finding": self.finding.as_json(), "lastSuccess": self.last_success}

    def describe(self) -> dict[str, Any]:
        """Everything for people, as JSON values."""
        now = time.time()
        pairs = [self._describe(names, record, now) for names, record in sorted(self._records.items())]
        told = {"seconds": self._usual, "lastSuccess": self.last_success, "finding": self.finding.as_json()}
        return {**told, "pairs": pairs}

    def report(self) -> dict[str, Any]:
        """The counters as JSON values, for the metrics page."""
        verdicts = dict.fromkeys((verdict.value for verdict in Verdict), 0)
        for record in self._records.values():
            verdicts[record.verdict] += 1
        return {
            "results": dict(self.results),
            "phases": {name: {"counts": h.counts, "total": h.total} for name, h in self.phases.items()},
            "pairs": verdicts,
            "lastSuccess": self.last_success,
        }

    @property
    def _stamp(self) -> str:
        return f"{self._prefix}-{self._version}"

    def _describe(self, names: Names, record: Record, now: float) -> dict[str, Any]:
        at, tried = self._tried.get(names, (now, Tried()))
        broken = record.verdict is Verdict.BROKEN
        told = asdict(tried)
        del told["evidence"]
        verdict = {"verdict": record.verdict, "cause": record.cause if broken else None, "ageSeconds": round(now - at)}
        return {"prefill": names[0], "decode": names[1], **verdict, **told}

    async def _run(self) -> None:
        while True:
            pairs = 0
            try:
                pairs = self._look()
            except Exception:
                _log.exception("Looking for canaries that are due failed.")
            pause = max(PAUSE_SECONDS, pairs / _PAIRS_IN_A_SECOND)
            await asyncio.sleep(pause * self._random.uniform(0.8, 1.2))

    def _look(self) -> int:
        """Begin what is due; the number of pairs there are."""
        everything = self._snapshot().everything
        revisions = candidates(everything)
        self._forget({e.name for e in everything})
        now = self._engines.clock()
        for pairs in revisions:
            for pair in due(pairs, self._records, now, self._usual):
                names = (pair[0].name, pair[1].name)
                if names not in self._open:
                    self._open[names] = asyncio.get_running_loop().create_task(self._attempt(names, pair))
        self._conclude(revisions)
        return sum(map(len, revisions))

    def _forget(self, names: set[str]) -> None:
        """Keep nothing of engines that are gone."""
        gone = [pair for pair in self._records if not names.issuperset(pair)]
        for pair in gone:
            del self._records[pair]
            self._tried.pop(pair, None)
            self._compared.pop(pair, None)
        for name in [name for name in self._prompts if name not in names]:
            del self._prompts[name]
        for key in [key for key in self._compared if not names.issuperset((key,) if isinstance(key, str) else key)]:
            del self._compared[key]

    def _conclude(self, revisions: list[list[Pair]]) -> None:
        finding = found(revisions, self._records, self.finding)
        if finding != self.finding:
            self.finding = finding
            self._version += 1
            self._changed.set()
            self._changed = asyncio.Event()

    async def _attempt(self, names: Names, pair: Pair) -> None:
        tried = Tried()
        try:
            async with self._slots:
                await self._try(pair, tried)
        except Exception:
            tried.result = Result.BUSY
            _log.exception("A canary failed.")
        finally:
            del self._open[names]
        self._take(names, pair, tried)

    def _take(self, names: Names, pair: Pair, tried: Tried) -> None:
        self.results[tried.result] += 1
        for phase, seconds in tried.seconds.items():
            self.phases[phase].observe(seconds)
        now = {e.name: e for e in self._snapshot().everything}
        if any(name not in now for name in names) or starts_of(pair) != starts_of((now[names[0]], now[names[1]])):
            return  # it speaks of engines that have started anew since
        cause = {"cause": likely_cause(pair, tried.evidence)} if tried.evidence else {}
        if tried.evidence and tried.evidence.unconnected:
            tried.seen = f"{tried.seen}, and {tried.evidence.unconnected}"
        before = self._records.get(names)
        self._records[names] = recorded(pair, tried.result, before, self._engines.clock(), tried.seen, **cause)
        self._tried[names] = (time.time(), tried)
        if tried.result is Result.MOVED:
            self.last_success = time.time()
        self._conclude(candidates(now.values()))

    async def _try(self, pair: Pair, tried: Tried) -> None:
        prefill, decode = pair
        prompt = self._prompt_for(pair)
        body = {"prompt": prompt, **_ANSWER}
        try:
            probe = await hand_over(self._engines, prefill, decode, body, LEG_SECONDS)
        except EngineFailure as failure:
            await self._take_failure(pair, body, failure, tried)
            return
        tried.seconds |= {"prefill": probe.prefill_seconds, "handoff": probe.handoff_seconds}
        said = read_answer(probe.answer.body)
        if said is None:
            tried.seen = "D's answer is none of vLLM's"
            return
        tried.tokens, tried.outside = said.prompt_tokens, said.cached or 0
        alone = await self._alone(decode, body, tried) if self._must_compare(pair) else None
        tried.result = judge(said, alone)
        tried.seen = _seen(tried.result, said)
        if tried.result is Result.MOVED and alone is not None:
            self._compared |= dict.fromkeys([(prefill.name, decode.name), decode.name], self._engines.clock())
        elif tried.result in (Result.RECOMPUTED, Result.WRONG_TEXT):
            tried.evidence = await self._gather(pair, tried.result, probe)

    def _prompt_for(self, pair: Pair) -> str:
        """P's prompt of this round, or a new one where D knows that already."""
        prefill, decode = pair
        now, prompt = self._engines.clock(), self._prompts.get(prefill.name)
        if prompt is None or decode.name in prompt.decodes or now - prompt.made >= self._usual:
            words = self._words.get(prefill.revision, _WORDS)
            letters = self._random.choices(string.ascii_lowercase, k=words * _LETTERS)
            text = " ".join("".join(letters[at : at + _LETTERS]) for at in range(0, len(letters), _LETTERS))
            prompt = self._prompts[prefill.name] = Prompt(text, now)
        prompt.decodes.add(decode.name)
        return prompt.text

    def _must_compare(self, pair: Pair) -> bool:
        """Whether D is to be asked alone: each pair at first, then once for each D in the usual time."""
        names = (pair[0].name, pair[1].name)
        before = self._records.get(names)
        if names not in self._compared or before is None or before.result is not Result.MOVED:
            return True
        if before.starts != starts_of(pair):
            return True
        return self._engines.clock() - self._compared.get(pair[1].name, 0.0) >= self._usual

    async def _alone(self, engine: Endpoint, body: Mapping[str, Any], tried: Tried | None = None) -> Answer | None:
        """An engine's own answer, with its time in `tried`.

        Under another salt, or D's prefix cache would answer with what came from P.
        """
        began = self._engines.clock()
        try:
            answer = await serve(self._engines, engine, {**body, "cache_salt": os.urandom(8).hex()}, LEG_SECONDS)
        except EngineFailure:
            return None
        if tried is not None:
            tried.seconds["alone"] = self._engines.clock() - began
        return read_answer(answer.body)

    async def _take_failure(self, pair: Pair, body: Mapping[str, Any], failure: EngineFailure, tried: Tried) -> None:
        prefill, decode = pair
        tried.seen = f"the hand-off failed at {failure}"
        if isinstance(failure, BadAnswer) and 400 <= failure.status < 500:
            words = self._words.get(prefill.revision, _WORDS)
            if failure.status == 400 and len(body["prompt"].split()) == words:  # several of one length may fail
                self._shorten(prefill.revision)
        elif failure.endpoint == prefill.name:
            await self._take_prefill_failure(prefill, body, failure, tried)
        elif _may_be_kv(failure) and await self._alone(decode, body, tried) is not None:
            tried.result = Result.FAILED
            tried.evidence = await self._gather(pair, Result.FAILED, None)

    async def _take_prefill_failure(
        self, prefill: Endpoint, body: Mapping[str, Any], failure: EngineFailure, tried: Tried
    ) -> None:
        """P has failed: that proves something only where it has no connector. One that hangs is not asked again."""
        if failure.detail == NO_PARAMS:
            tried.result, tried.seen = Result.FAILED, "P answers without kv_transfer_params"
            tried.evidence = Evidence(Result.FAILED, connector_off=True)
        elif not isinstance(failure, DeadlineExceeded) and await self._alone(prefill, body) is not None:
            facts = await self._facts(prefill)  # of a P that has now computed a prompt
            if facts.connector is False:
                tried.result, tried.evidence = Result.FAILED, Evidence(Result.FAILED, facts)

    def _shorten(self, revision: str) -> None:
        words = self._words.get(revision, _WORDS)
        self._words[revision] = max(words // 2, _FEWEST_WORDS)
        self._prompts.clear()

    async def _gather(self, pair: Pair, result: Result, probe: Probe | None) -> Evidence:
        prefill, decode = await asyncio.gather(*map(self._facts, pair))
        return Evidence(result, prefill, decode, probe.decode_params if probe else {})

    async def _facts(self, endpoint: Endpoint) -> Facts:
        return read_facts(*[await page_of(self._engines, endpoint, path, LEG_SECONDS) for path in _PAGES])


def _may_be_kv(failure: EngineFailure) -> bool:
    """Whether D's failure may come from the KV: not when D is not there, or full."""
    if isinstance(failure, ConnectFailure | LostConnection):
        return False
    return isinstance(failure, DeadlineExceeded) or (isinstance(failure, BadAnswer) and failure.status != 503)


def _seen(result: Result, said: Answer) -> str:
    """In words that are the same for the next prompt: they go into the status."""
    match result:
        case Result.RECOMPUTED:
            return f"D has computed {'most of a' if said.cached else 'a whole'} prompt by itself"
        case Result.WRONG_TEXT:
            return "D says something else over P's KV than alone"
        case Result.UNTOLD:
            return "D does not say how many prompt tokens it had cached"
    return ""
