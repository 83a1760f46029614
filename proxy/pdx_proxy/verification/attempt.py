"""One transfer probe: send it through a pair, compare with D alone if required, and gather evidence if it failed."""

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.engines.attribution import may_be_kv
from pdx_proxy.engines.probe import Probe, hand_over, page_of, serve
from pdx_proxy.engines.transfer_params import NO_PARAMS
from pdx_proxy.engines.upstreams import Engines
from pdx_proxy.http.upstream.failures import BadAnswer, DeadlineExceeded, EngineFailure
from pdx_proxy.verification.diagnosis import Evidence, Facts, announced_host, read_facts
from pdx_proxy.verification.prompts import Prompts
from pdx_proxy.verification.record import Pair, Result
from pdx_proxy.verification.verdict import Answer, describe, judge, read_answer

LEG_SECONDS: Final = 15.0
"""Deadline of each leg. A pair whose D answers alone within it, but not over KV, is broken."""
_PARAMETERS: Final[Mapping[str, Any]] = {"max_tokens": 4, "temperature": 0, "logprobs": 5}
_PAGES: Final = ("/version", "/v1/models", "/metrics")


@dataclass(slots=True)
class Attempt:
    """What one transfer probe has shown."""

    result: Result = Result.BUSY
    seen: str = ""
    evidence: Evidence | None = None
    tokens: int = 0
    answered: set[str] = field(default_factory=set)
    """Names of the engines that answered, be it with an error."""
    silent: str = ""
    """Name of the engine that did not answer; empty if there is none."""
    remote_tokens: int = 0
    """Prompt tokens that D did not compute."""
    compared: bool = False
    """KV moved, and D's answer was compared with its answer alone."""
    seconds: dict[str, float] = field(default_factory=dict)
    """By phase: prefill, handoff (from P's answer to the end of D's), alone (D's answer without P)."""


class AttemptRunner:
    """Sends transfer probes. They use the control side's connections, so none is counted as a client's request."""

    def __init__(self, engines: Engines, prompts: Prompts) -> None:
        self._engines = engines
        self._prompts = prompts

    async def run(self, pair: Pair, must_compare: Callable[[], bool], attempt: Attempt) -> None:
        """Send one transfer probe through the pair and fill in `attempt`."""
        prefill, decode = pair
        body = {"prompt": self._prompts.prompt_for(pair, self._engines.clock()), **_PARAMETERS}
        try:
            probe = await hand_over(self._engines, prefill, decode, body, LEG_SECONDS)
        except EngineFailure as failure:
            if failure.local:
                attempt.seen = f"the gateway is at its own limits: {failure}"
                return
            attempt.answered |= _answered(pair, failure)
            await self._examine_failure(pair, body, failure, attempt)
            attempt.silent = "" if failure.endpoint in attempt.answered else failure.endpoint
            return
        attempt.answered |= {prefill.name, decode.name}
        attempt.seconds |= {"prefill": probe.prefill_seconds, "handoff": probe.handoff_seconds}
        split = read_answer(probe.answer.body)
        if split is None:
            attempt.seen = "the decode engine's answer is not one of vLLM"
            return
        attempt.tokens, attempt.remote_tokens = split.prompt_tokens, split.cached or 0
        alone = await self._answer_alone(decode, body, attempt) if must_compare() else None
        attempt.result = judge(split, alone)
        attempt.seen = describe(attempt.result, split)
        attempt.compared = attempt.result is Result.MOVED and alone is not None
        if attempt.result in (Result.RECOMPUTED, Result.WRONG_TEXT):
            attempt.evidence = await self._gather(pair, attempt.result, probe)

    async def _examine_failure(
        self, pair: Pair, body: Mapping[str, Any], failure: EngineFailure, attempt: Attempt
    ) -> None:
        prefill, decode = pair
        attempt.seen = f"the hand-off failed at {failure}"
        if isinstance(failure, BadAnswer) and 400 <= failure.status < 500:
            if failure.status == 400:
                self._prompts.shorten(prefill.revision, body["prompt"])
        elif failure.endpoint == prefill.name:
            await self._examine_prefill_failure(prefill, body, failure, attempt)
        elif may_be_kv(failure) and await self._answer_alone(decode, body, attempt) is not None:
            attempt.answered.add(decode.name)
            attempt.result = Result.FAILED
            evidence = await self._gather(pair, Result.FAILED, None)
            attempt.evidence = replace(evidence, answered=isinstance(failure, BadAnswer))

    async def _examine_prefill_failure(
        self, prefill: Endpoint, body: Mapping[str, Any], failure: EngineFailure, attempt: Attempt
    ) -> None:
        """A failure of P proves something only if P has no connector. A P that hangs gets no second request."""
        if failure.detail == NO_PARAMS:
            attempt.result, attempt.seen = Result.FAILED, "the prefill engine answers without kv_transfer_params"
            attempt.evidence = Evidence(Result.FAILED, no_params=True)
        elif not isinstance(failure, DeadlineExceeded) and await self._answer_alone(prefill, body) is not None:
            attempt.answered.add(prefill.name)
            facts = await self._facts(prefill)  # P has computed a prompt, so they tell whether it has a connector
            if facts.connector is False:
                attempt.result, attempt.evidence = Result.FAILED, Evidence(Result.FAILED, facts)

    async def _answer_alone(
        self, engine: Endpoint, body: Mapping[str, Any], attempt: Attempt | None = None
    ) -> Answer | None:
        """Return an engine's answer to the whole request, or None; its time goes into `attempt`.

        The cache salt keeps D's prefix cache out of it, which may hold the KV that came from P.
        """
        began = self._engines.clock()
        try:
            answer = await serve(self._engines, engine, {**body, "cache_salt": os.urandom(8).hex()}, LEG_SECONDS)
        except EngineFailure as failure:
            if attempt is not None and isinstance(failure, BadAnswer):
                attempt.answered.add(engine.name)
            return None
        if attempt is not None:
            attempt.seconds["alone"] = self._engines.clock() - began
        return read_answer(answer.body)

    async def _gather(self, pair: Pair, result: Result, probe: Probe | None) -> Evidence:
        prefill, decode = await asyncio.gather(*map(self._facts, pair))
        if probe is None:
            return Evidence(result, prefill, decode)
        return Evidence(result, prefill, decode, announced_host(pair[0].family, probe.identity, probe.decode_params))

    async def _facts(self, endpoint: Endpoint) -> Facts:
        return read_facts(*[await page_of(self._engines, endpoint, path, LEG_SECONDS) for path in _PAGES])


def _answered(pair: Pair, failure: EngineFailure) -> set[str]:
    """Return the engines that answered before the failure, or with it: P comes before D."""
    prefill, decode = pair
    before = {prefill.name} if failure.endpoint == decode.name else set()
    return before | {failure.endpoint} if isinstance(failure, BadAnswer) else before
