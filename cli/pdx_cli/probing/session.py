"""All steps of a probe: inspect both engines, hand over, compare, explain, and free what is held."""

import asyncio
import random
import string
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from pdx_api.connectors.families import Identity, Pool, Push
from pdx_api.names import Order, Role
from pdx_api.vllm_metrics import EngineMetrics, read_metrics, whole_number
from pdx_cli.probing.causes import Reason
from pdx_cli.probing.engines import EngineFacts, UnusableError, inspect
from pdx_cli.probing.judgement import is_timeout, may_be_held, problem_of, result_of
from pdx_cli.probing.legs import Legs
from pdx_cli.probing.question import Question
from pdx_cli.probing.report import Report
from pdx_cli.probing.trial import Counted, Trial, said_by
from pdx_cli.sources.client import AnswerError, Client
from pdx_proxy.verification.record import Result

_SHAPE: Final = {"max_tokens": 8, "temperature": 0, "logprobs": 5, "ignore_eos": True}
_TOKENS: Final = 350
"""Tokens of a prompt at least: more than the smallest piece that any connector moves."""
_POOL_TOKENS: Final = 700
"""The same for pools, which move whole chunks only, by default of 256 tokens."""
_BLOCKS: Final = 2.5
"""KV blocks of a prompt at least."""
_SAMPLE_WORDS: Final = 16
_DEFAULT_BLOCK: Final = 16
_COUNT_SECONDS: Final = 3.0
"""Metrics may lag behind the answer by this much."""
_FREE_SECONDS: Final = 2.0
"""How long an engine takes at most to free blocks of which it was notified."""
_PAUSE: Final = 0.1
_NOT_FOUND: Final = 404
_LEASE: Final = 30.0
"""Seconds: vLLM's default of `kv_lease_duration`."""


@dataclass(frozen=True, slots=True)
class Session:
    """One probe."""

    client: Client
    question: Question
    rng: random.Random
    now: Callable[[], datetime]

    async def run(self, report: Report) -> Report:
        """Probe engines that were inspected, and free what the hand-offs left."""
        try:
            report.model = self._model(report.engines[Role.PREFILL], report.engines[Role.DECODE])
            words = await self._warm_up(report)
            legs = self._legs(report)
            await self._try_twice(report, legs, words, None)
        except UnusableError as error:
            report.unusable[error.role] = str(error)
            return report
        in_order = isinstance(self.question.family, Push) and self.question.order is not Order.PREFILL_FIRST
        if in_order and report.problem is None and not report.unusable and report.trial is not None:
            await self._try_twice(report, legs, words, report.trial.identity)
        return report

    async def _try_twice(self, report: Report, legs: Legs, words: int, identity: Identity | None) -> None:
        """Hand one prompt over, and another one if the text is wrong: one text that differs may be chance."""
        await self._try(report, legs, words, identity)
        if report.problem is not None and report.problem.reason is Reason.WRONG_KV:
            await self._try(report, legs, words, identity)

    def _model(self, prefill: EngineFacts, decode: EngineFacts) -> str:
        asked = self.question.model
        for role, engine in ((Role.PREFILL, prefill), (Role.DECODE, decode)):
            if asked is not None and asked not in engine.names:
                raise UnusableError(role, f"has no model {asked}; write --model with one of: {_listed(engine.names)}")
        common = [name for name in decode.names if name in prefill.names]
        if not common:
            served = f"serves {_listed(decode.names)}, and the prefill engine {_listed(prefill.names)}"
            raise UnusableError(Role.DECODE, f"{served}; start both with one --served-model-name")
        return asked or common[0]

    def _legs(self, report: Report) -> Legs:
        ranks, new_id = report.engines[Role.PREFILL].ranks, lambda: f"pdx-probe-{uuid.uuid4().hex}"
        return Legs(self.client, self.question, report.model, ranks, time.perf_counter, new_id)

    async def _warm_up(self, report: Report) -> int:
        """Send D a short request of its own; return how many words a prompt needs.

        A D whose first work is a hand-off may crash, and a D that fails here fails without KV, too.
        """
        sample = {**_SHAPE, "prompt": self._text(_SAMPLE_WORDS), "max_tokens": 1}
        leg = await self._legs(report).alone(sample, uuid.uuid4().hex)
        if leg.failure is not None:
            missing = "has no /v1/completions; probe engines whose model generates text"
            clause = f"{said_by(leg.failure)} to a request of its own; see its log"
            raise UnusableError(Role.DECODE, missing if leg.failure.status == _NOT_FOUND else clause)
        if leg.answer is None:
            raise UnusableError(Role.DECODE, "answers nothing of vLLM at /v1/completions; name a vLLM engine")
        engines = report.engines.values()
        blocks = (whole_number(each.metrics.cache_settings.get("block_size")) for each in engines)
        least = _POOL_TOKENS if isinstance(self.question.family, Pool) else _TOKENS
        target = max(least, int(_BLOCKS * max(block or _DEFAULT_BLOCK for block in blocks)))
        room = min((each.max_model_len for each in engines if each.max_model_len), default=None)
        if room is not None and target > 0.9 * room:
            clause = f"takes {room} tokens, and a probe needs {target}; raise --max-model-len, or lower --block-size"
            raise UnusableError(Role.DECODE, clause)
        return max(1, target * _SAMPLE_WORDS // max(1, leg.answer.prompt_tokens))

    async def _try(self, report: Report, legs: Legs, words: int, identity: Identity | None) -> None:
        """Hand one prompt over: P first, or, if P's identity is known, in the order itself."""
        body, before = {**_SHAPE, "prompt": self._text(words)}, await self._metrics()
        trial = await (legs.prefill_first(body) if identity is None else legs.in_order(body, identity))
        failed = trial.decode is not None and trial.decode.failure is not None
        try:
            trial = replace(trial, counted=await self._count(trial, before[Role.DECODE]))
            if failed or result_of(trial) in (Result.MOVED, Result.WRONG_TEXT):
                trial = replace(trial, alone=await legs.alone(body, uuid.uuid4().hex))
        finally:
            await legs.release(trial)
        if may_be_held(trial):
            trial = replace(trial, held=await self._held(trial, before))
        report.trials.append(trial)
        if failed and trial.alone is not None and trial.alone.failure is not None:
            clause = f"{said_by(trial.alone.failure)} to a request of its own after the hand-off; see its log"
            report.unusable[Role.DECODE] = clause
            return
        await self._explain(report, trial)

    async def _explain(self, report: Report, trial: Trial) -> None:
        """Read again what the engines report, if KV did not move: only now they have computed a prompt."""
        if result_of(trial) is not Result.MOVED:
            for role in (Role.PREFILL, Role.DECODE):
                try:
                    report.engines[role] = await inspect(self.client, self.question, role)
                except UnusableError as error:
                    report.unusable[role] = str(error)
        report.problem = problem_of(self.question, trial, report.engines[Role.PREFILL], report.engines[Role.DECODE])

    async def _count(self, trial: Trial, before: EngineMetrics) -> Counted | None:
        """Return what D counted once it has counted the prompt; None if it reports no metrics."""
        answer = None if trial.decode is None else trial.decode.answer
        if answer is None or before.prompt_tokens is None or before.prompt_sources is None:
            return None
        deadline = time.monotonic() + _COUNT_SECONDS
        while True:
            after = (await self._metrics())[Role.DECODE]
            if after.prompt_tokens is None or after.prompt_sources is None:
                return None
            prompts = int(after.prompt_tokens - before.prompt_tokens)
            if prompts >= answer.prompt_tokens or time.monotonic() > deadline:
                external = int(after.prompt_sources.external - before.prompt_sources.external)
                return Counted(external, busy=prompts != answer.prompt_tokens or bool(before.running))
            await asyncio.sleep(_PAUSE)

    async def _held(self, trial: Trial, before: dict[Role, EngineMetrics]) -> str:
        """Return what engines may still hold of a failed hand-off, as a clause; empty: nothing."""
        if isinstance(self.question.family, Pool) or trial.prefill is None or trial.prefill.failure is not None:
            return ""
        ends = self.now()
        deadline = time.monotonic() + _FREE_SECONDS
        while time.monotonic() < deadline:
            after = await self._metrics()
            if all(_is_free(before[role], after[role]) for role in after):
                return ""
            await asyncio.sleep(_PAUSE)
        lease = self.question.family.kept_seconds or _LEASE
        until = (ends + timedelta(seconds=lease)).strftime("%H:%M:%S")
        held = f"it may hold the blocks of this prompt until about {until} (a lease of {lease:g} s, the default)"
        failure = trial.decode.failure if trial.decode is not None else None
        waits = isinstance(self.question.family, Push) and failure is not None and is_timeout(failure)
        return f"{held}, and the decode engine as many until its own time-out or restart" if waits else held

    async def _metrics(self) -> dict[Role, EngineMetrics]:
        roles = (Role.PREFILL, Role.DECODE)
        return dict(zip(roles, await asyncio.gather(*map(self._report, roles)), strict=True))

    async def _report(self, role: Role) -> EngineMetrics:
        try:
            page = await self.client.text(f"{self.question.url(role)}/metrics")
        except AnswerError:
            page = ""
        return read_metrics(page.encode())

    def _text(self, count: int) -> str:
        """Return random words, so that no cache has this prompt."""
        letters: Any = self.rng.choices
        return " ".join("".join(letters(string.ascii_lowercase, k=5)) for _ in range(count))


def _is_free(before: EngineMetrics, after: EngineMetrics) -> bool:
    return after.kv_use is not None and before.kv_use is not None and after.kv_use <= before.kv_use


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names[:3])
