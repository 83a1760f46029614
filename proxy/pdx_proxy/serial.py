"""The serial family: P is called and awaited, what it answers goes to D, and D pulls.

Invariant: once P has finished, exactly one of these happens: D's leg takes its parameters, or they are given to
aftercare for release.
"""

import asyncio
from typing import Final

from pdx_api.connectors.families import KVParams, Serial
from pdx_proxy.aftercare import Aftercare
from pdx_proxy.backend import Backend
from pdx_proxy.counters import Phase
from pdx_proxy.endpoints import Endpoint
from pdx_proxy.failures import BadAnswer, EngineFailure, Reason, RequestExpired
from pdx_proxy.handoff import UNHEARD, Handoff, HandoffFailure, LegRefused, blame, transfer_params
from pdx_proxy.leg import Leg
from pdx_proxy.pick import stand_in
from pdx_proxy.request import Request, decode_body, prefill_body

_PREFILL: Final = Phase.PREFILL.value


async def hand_off(
    backend: Backend, aftercare: Aftercare, family: Serial, pair: tuple[Endpoint, Endpoint], request: Request
) -> Handoff:
    """Run both legs until D's answer is open; raises HandoffFailure or LegRefused."""
    prefill, decode = pair
    prefill_leg = backend.leg(prefill, request.until)
    # D is counted from its choice on, or all that is chosen during a prefill would be sent to the same one.
    decode_leg = backend.leg(decode, request.until)
    snapshot = backend.snapshot
    try:
        params = await _prefill(backend, aftercare, family, prefill_leg, decode, request)
        finished = backend.clock()
        request.trail.prefill = prefill_seconds = finished - request.trail.sent
        backend.counters.phases[_PREFILL].observe(prefill_seconds)
        if backend.snapshot is not snapshot:  # a D that has begun to leave meanwhile gets no leg any more
            decode_leg.end()
            decode = stand_in(backend.snapshot, backend.load.of, decode, turn=0)
            decode_leg = backend.leg(decode, request.until)
            pair = (prefill, decode)
        await _decode(backend, aftercare, pair, decode_leg, params, request)
    except BaseException:
        decode_leg.end()
        raise
    finally:
        prefill_leg.end()
    if params is None:
        return Handoff(decode_leg)
    if decode_leg.answer.status != 200:
        unheard = UNHEARD in decode_leg.answer.body
        decode_leg.end()
        if unheard or not backend.knows(prefill, decode):
            aftercare.release(pair, params, request)
        else:
            backend.counters.let_go(prefill.name)
        raise LegRefused
    backend.counters.let_go(prefill.name)
    backend.acquaint(prefill, decode)
    return Handoff(decode_leg, prefill, prefill_seconds, backend.clock() - finished)


async def _prefill(
    backend: Backend, aftercare: Aftercare, family: Serial, leg: Leg, decode: Endpoint, request: Request
) -> KVParams | None:
    body = prefill_body(request.body, family.prefill_params)
    try:
        await leg.connect()
        request_id = backend.new_id()
        leg.send("POST", request.path, (*request.headers, ("X-Request-Id", request_id)), body)
        backend.sent_prefill(request.trail, leg.endpoint, request_id)
        answer = await leg.whole(backend.deadlines.prefill)
        params = transfer_params(leg.endpoint, answer)
    except (asyncio.CancelledError, RequestExpired):
        aftercare.stop_prefill(leg.detach(), decode, request)
        raise
    except EngineFailure as failure:
        if not (isinstance(failure, BadAnswer) and failure.reason is Reason.STATUS):
            backend.suspect(leg.endpoint, failure)
        raise HandoffFailure(leg.endpoint, failure, begun=leg.begun) from failure
    leg.give_back()
    if params is not None:
        backend.counters.hold(leg.endpoint.name)
    return params


async def _decode(
    backend: Backend,
    aftercare: Aftercare,
    pair: tuple[Endpoint, Endpoint],
    leg: Leg,
    params: KVParams | None,
    request: Request,
) -> None:
    prefill, decode = pair
    deadlines = backend.deadlines
    try:
        await leg.connect()
        body = decode_body(request.body, params)
        request_id = backend.new_id()
        leg.send("POST", request.path, (*request.headers, ("X-Request-Id", request_id)), body)
        request.trail.legs.append((decode.name, request_id))
        await leg.opened(deadlines.handoff if request.stream else deadlines.first_event)
    except EngineFailure as failure:
        leg.end()
        if params is not None:
            aftercare.release(pair, params, request, failure, begun=leg.begun)
            blame(backend, prefill, decode, failure)
        elif not isinstance(failure, BadAnswer):
            backend.suspect(decode, failure)
        raise HandoffFailure(decode, failure) from failure
    except BaseException:  # mostly because nobody waits any more
        if params is None:
            leg.end()
        elif leg.begun:
            aftercare.leave_decode(leg.detach(), pair, params, request)
        else:
            leg.end()
            aftercare.release(pair, params, request)
        raise
