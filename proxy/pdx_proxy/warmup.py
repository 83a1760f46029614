"""Warm-up: an engine is picked only after it has served once, and a P only after its KV has reached a D.

The first forward pass of an engine has its traps: a D whose very first work is decoding over KV from outside can die.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import orjson

from pdx_api.connectors import CONNECTORS
from pdx_api.connectors.families import KVParams, Rendezvous
from pdx_api.names import Role
from pdx_proxy.backend import Backend
from pdx_proxy.endpoints import Endpoint, Snapshot, State, pairing
from pdx_proxy.failures import BadAnswer, DeadlineExceeded, EngineFailure, Reason
from pdx_proxy.handoff import LegRefused, identity_of, transfer_params
from pdx_proxy.request import body_of, prefill_body
from pdx_proxy.settings import EndpointSpec

_PATH: Final = "/v1/completions"
_BODY: Final[Mapping[str, Any]] = {"prompt": "A first short prompt warms an engine up.", "max_tokens": 2}
_FIRST_PAUSE: Final = 0.2
_LONGEST_PAUSE: Final = 2.0

Publish = Callable[[Snapshot], None]


class Warmer:
    """Owner of what is known of the endpoints: warms what is cold and publishes a snapshot at every change."""

    def __init__(self, backend: Backend, specs: Iterable[EndpointSpec], publish: Publish) -> None:
        self._backend = backend
        self._endpoints = {spec.name: Endpoint(spec) for spec in specs}
        self._publish = publish
        self._acquainted: frozenset[tuple[str, int, str, int]] = frozenset()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()

    @property
    def snapshot(self) -> Snapshot:
        """The view in force."""
        return Snapshot.of(self._endpoints.values(), self._acquainted)

    def start(self) -> None:
        """Begin to warm every endpoint."""
        for name in self._endpoints:
            self._warm_in_background(name)

    async def stop(self) -> None:
        """End all warming."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def suspect(self, name: str, start: int, reason: str) -> None:
        """An endpoint may have died or restarted: warm it anew, unless that has happened since."""
        endpoint = self._endpoints.get(name)
        if endpoint is not None and endpoint.warm and endpoint.start == start:
            self._put(replace(endpoint, state=State.COLD, identity=None, reason=reason))
            self._warm_in_background(name)

    def _warm_in_background(self, name: str) -> None:
        self._tasks[name] = asyncio.get_running_loop().create_task(self._warm_until_warm(name))

    async def _warm_until_warm(self, name: str) -> None:
        pause = _FIRST_PAUSE
        while not (endpoint := self._endpoints[name]).warm:
            try:
                warmed = await self._warm(endpoint)
            except EngineFailure as failure:
                self._put(replace(endpoint, state=State.COLD, reason=str(failure)))
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
            else:
                self._put(warmed)

    async def _warm(self, endpoint: Endpoint) -> Endpoint:
        start = endpoint.start + 1
        if endpoint.role is not Role.PREFILL:
            await self._serve(endpoint, _BODY)
            return replace(endpoint, state=State.WARM, start=start, reason=None)
        decode = await self._await_decode(endpoint)
        try:
            params = await self._hand_over(endpoint, decode)
        except EngineFailure as failure:
            if failure.endpoint == decode.name and not isinstance(failure, BadAnswer | DeadlineExceeded):
                self.suspect(decode.name, decode.start, str(failure))
            raise
        family = CONNECTORS[endpoint.connector].family(endpoint.order)
        identity = identity_of(endpoint, family, params) if isinstance(family, Rendezvous) else None
        warmed = replace(endpoint, state=State.WARM, identity=identity, start=start, reason=None)
        self._acquainted |= {pairing(warmed, decode)}
        return warmed

    async def _await_decode(self, prefill: Endpoint) -> Endpoint:
        """A warm D of P's revision. While there is none, P is warmed alone, so that it is ready sooner then."""
        alone = False
        while True:
            decodes = [d for d in self.snapshot.decode if d.revision == prefill.revision]
            if decodes:
                return decodes[0]
            if not alone:
                await self._serve(prefill, _BODY)
                alone = True
                continue
            self._put(replace(prefill, state=State.WARMING, reason="waits for a warm decode engine of its revision"))
            await self._changed.wait()

    async def _hand_over(self, prefill: Endpoint, decode: Endpoint) -> KVParams:
        """One whole P-first pair, so that nothing stays parked on P. Works in every order of a connector."""
        family = CONNECTORS[prefill.connector].family(prefill.order)
        request_id = self._backend.new_id()
        prefill_leg = self._backend.leg(prefill)
        try:
            await prefill_leg.connect()
            body = prefill_body(body_of(_BODY), family.prefill_params)
            prefill_leg.send("POST", _PATH, (("X-Request-Id", request_id),), body)
            answer = await prefill_leg.whole(self._backend.deadlines.warm_up)
            params = transfer_params(prefill, answer)
        except LegRefused:
            raise _failed(prefill, f"refused the warm-up: {prefill_leg.answer.body[:200]!r}") from None
        finally:
            prefill_leg.end()
        if params is None:
            raise _failed(prefill, "answered without kv_transfer_params: is its KV connector on?")
        await self._serve(decode, {**_BODY, "max_tokens": 1, "kv_transfer_params": params}, request_id)
        return params

    async def _serve(self, endpoint: Endpoint, body: Mapping[str, Any], request_id: str | None = None) -> None:
        leg = self._backend.leg(endpoint)
        try:
            await leg.connect()
            headers = (("X-Request-Id", request_id or self._backend.new_id()),)
            leg.send("POST", _PATH, headers, orjson.dumps(body))
            answer = await leg.opened(self._backend.deadlines.warm_up)
            if answer.status != 200:
                raise _failed(endpoint, f"answered {answer.status} to the warm-up: {answer.body[:200]!r}")
        finally:
            leg.end()

    def _put(self, endpoint: Endpoint) -> None:
        if self._endpoints[endpoint.name] == endpoint:
            return
        self._endpoints[endpoint.name] = endpoint
        starts = {(e.name, e.start) for e in self._endpoints.values()}
        self._acquainted = frozenset(key for key in self._acquainted if {key[:2], key[2:]} <= starts)
        self._changed.set()
        self._changed = asyncio.Event()
        self._publish(self.snapshot)


def _failed(endpoint: Endpoint, detail: str) -> BadAnswer:
    return BadAnswer(endpoint.name, detail, Reason.STATUS, 502, b"")
