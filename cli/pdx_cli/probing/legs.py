"""Sends the legs of hand-offs, and frees the blocks of those that failed."""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import urlsplit

from pdx_api.connectors.families import AtBootstrap, Family, Identity, Pool, Pull, Push
from pdx_api.names import Order, Role
from pdx_cli.probing.causes import Reason
from pdx_cli.probing.engines import UnusableError
from pdx_cli.probing.judgement import decode_state, handed_over, may_be_held
from pdx_cli.probing.question import Question
from pdx_cli.probing.trial import Leg, Problem, Trial, said_by
from pdx_cli.sources.client import Answer, AnswerError, Client, is_silent
from pdx_proxy.handoff.failures import REFUSED_MAX_TOKENS
from pdx_proxy.handoff.settle import Free, Substitute, settle
from pdx_proxy.handoff.situation import Decode, Notifier, Prefill, Situation, kind_of
from pdx_proxy.payload.apis import COMPLETIONS_API
from pdx_proxy.payload.body import body_of, prefill_body, settling_body

PATH: Final = "/v1/completions"
_BOOTSTRAP_SECONDS: Final = 5.0
_RELEASE_SECONDS: Final = 5.0
_HEAD_START: Final = 0.3
"""Seconds that D's leg precedes P's in order DecodeFirst."""
_NOTICE_SECONDS: Final = 1.0
"""How long D's notice to P takes at most, after D's leg is closed."""
_FOR_CLIENTS: Final = "remote_prefill_cached_tokens"
"""A D that receives it reports it as its usage, instead of the tokens from P."""
_NOT_BEGUN: Final = 503
_UNREAD: Final = (Decode.NOT_SENT, Decode.REFUSED_BY_SERVER)


@dataclass(frozen=True, slots=True)
class Legs:
    """Sends requests for one model to both engines."""

    client: Client
    question: Question
    model: str
    prefill_ranks: int
    """If P has several, each of its legs goes to the first: identities are of one rank."""
    clock: Callable[[], float]
    new_id: Callable[[], str]

    async def send(
        self, role: Role, body: Mapping[str, Any], request_id: str | None = None, seconds: float | None = None
    ) -> Leg:
        """Send one request; its failure is part of what is returned."""
        began = self.clock()
        body, headers = {"model": self.model, **body}, {"X-Request-Id": request_id or self.new_id()}
        if role is Role.PREFILL and self.prefill_ranks > 1:
            headers["X-data-parallel-rank"] = "0"
        url, limit = f"{self.question.url(role)}{PATH}", seconds or self.question.seconds
        try:
            answer: Answer = await self.client.post(url, body, seconds=limit, headers=headers)
        except AnswerError as error:
            return Leg(self.clock() - began, failure=error)
        found = answer.body if isinstance(answer.body, dict) else {}
        return Leg(self.clock() - began, found)

    async def prefill_first(self, body: Mapping[str, Any]) -> Trial:
        """Send P's leg, and D's when P has answered. It works in every order of a connector.

        Raises UnusableError if P's identity cannot be read, because its port does not answer.
        """
        family, trial = self.question.family, Trial(self.new_id())
        if isinstance(family, Push) and isinstance(family.identity, AtBootstrap):
            trial = await self._identified(trial, family.identity)
            if trial.problem is not None:
                return trial
        trial = replace(trial, prefill=await self._prefill(family, body, trial.request_id))
        trial = handed_over(self.question, trial)
        if trial.problem is not None:
            return trial
        if isinstance(family, Pool):
            await asyncio.sleep(family.saved_after)
        try:
            return replace(trial, decode=await self._decode(body, trial))
        except asyncio.CancelledError:
            await self.release(trial)
            raise

    async def in_order(self, body: Mapping[str, Any], identity: Identity) -> Trial:
        """Push in the order itself: D's leg first, or both at once. P's identity must be known.

        A cancellation waits for the legs: a D that waits for a P that is stopped would keep its blocks.
        """
        task = asyncio.create_task(self._in_order(body, identity))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await self.release(await task)
            raise

    async def _in_order(self, body: Mapping[str, Any], identity: Identity) -> Trial:
        family = self.question.family
        assert isinstance(family, Push)
        request_id = self.new_id()
        trial = Trial(request_id, params=family.decode_params(request_id, identity), identity=identity)
        decode = asyncio.create_task(self._decode(body, trial))
        try:
            if self.question.order is Order.DECODE_FIRST:
                await asyncio.wait({decode}, timeout=_HEAD_START)
            prefill = await self._prefill(family, body, request_id)
            if prefill.failure is not None and prefill.failure.status == _NOT_BEGUN:
                prefill = await self._prefill(family, body, request_id)  # D waits for it
            trial = replace(trial, prefill=prefill)
            if prefill.failure is not None:
                seen = f"the prefill engine failed while the decode engine waited: {said_by(prefill.failure)}"
                return replace(trial, problem=Problem(Reason.PREFILL_FAILS, seen))
            return replace(trial, decode=await decode)
        finally:
            decode.cancel()

    async def alone(self, body: Mapping[str, Any], salt: str) -> Leg:
        """Send D the whole request. The salt keeps its prefix cache out of it, which may hold the KV that came."""
        return await self.send(Role.DECODE, {**body, "cache_salt": salt})

    async def release(self, trial: Trial) -> None:
        """Free what P may hold for D, as a gateway does (docs/settling.md). A cancellation waits for it.

        Sends nothing if nothing can free it.
        """
        if may_be_held(trial):
            task = asyncio.create_task(self._release(trial))
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError:
                await task
                raise

    async def _release(self, trial: Trial) -> None:
        family = self._actual(trial)
        if isinstance(family, Pool) or not trial.params:
            return
        state = decode_state(trial)
        # A D that has not read the KV can read it. Any other gets a leg that it refuses, which reads nothing.
        notifier = Notifier.NOBODY if state in _UNREAD else Notifier.PAIR
        situation = Situation(kind_of(family), False, Prefill.FINISHED, state, notifier)
        step = settle(situation)
        if isinstance(step, Free):
            tokens = REFUSED_MAX_TOKENS if step is Free.BY_REFUSED_LEG else 1
            await self._settling(Role.DECODE, trial, trial.params, tokens)
        elif isinstance(step, Substitute) and isinstance(family, Push):
            await asyncio.sleep(_NOTICE_SECONDS if step.after_notice else 0.0)
            await self._settling(Role.PREFILL, trial, family.prefill_params(trial.request_id), 1)

    def _actual(self, trial: Trial) -> Family:
        """Return the family in which P answered, which may be another than the asked one."""
        order = self.question.order_of(trial.params.get("transfer_mode"))
        return self.question.family if order is None else self.question.connector.family(order)

    async def _settling(self, role: Role, trial: Trial, params: Mapping[str, Any], tokens: int) -> None:
        body = json.loads(settling_body(COMPLETIONS_API, params, tokens, self.new_id()))
        await self.send(role, body, trial.request_id, _RELEASE_SECONDS)

    async def _prefill(self, family: Family, body: Mapping[str, Any], request_id: str) -> Leg:
        params = family.prefill_params if isinstance(family, Pull) else None
        if isinstance(family, Push):
            params = family.prefill_params(request_id)
        shaped = prefill_body(body_of(dict(body)), params)
        assert isinstance(shaped, bytes), "a small body is joined"
        return await self.send(Role.PREFILL, json.loads(shaped), request_id)

    async def _decode(self, body: Mapping[str, Any], trial: Trial) -> Leg:
        params = {name: value for name, value in trial.params.items() if name != _FOR_CLIENTS}
        own = {"kv_transfer_params": params} if params else {}
        return await self.send(Role.DECODE, {**body, **own}, trial.request_id)

    async def _identified(self, trial: Trial, source: AtBootstrap) -> Trial:
        """Read P's identity from its own port."""
        host = urlsplit(self.question.prefill).hostname or ""
        port = self.question.identity_port or self.question.connector.port_names[source.port]
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            document = await self.client.json(f"http://{address}{source.path}", seconds=_BOOTSTRAP_SECONDS)
            return replace(trial, identity=source.read(document, host, port, 0))
        except (AnswerError, LookupError, TypeError, ValueError) as error:
            if isinstance(error, AnswerError) and is_silent(error):
                remedy = f"correct --identity-port, or --connector if it has no {source.port}"
                raise UnusableError(Role.PREFILL, f"its {source.port} {error}; {remedy}") from error
            why = f"{error}" if isinstance(error, AnswerError) else f"http://{address}{source.path} names no identity"
            seen = f"the prefill engine's {source.port} does not answer as one of {self.question.connector.name}: {why}"
            return replace(trial, problem=Problem(Reason.OTHER_CONNECTOR, seen))
