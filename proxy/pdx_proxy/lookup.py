"""The pool family: P saves what it computes, and D, asked with the whole request, looks it up.

Nothing is kept for a D, so a hand-off that nobody wants any more is settled by stopping P. What D does not find it
computes; the gateway does not see that, the engine counts it.
"""

import asyncio

from pdx_api.connectors.families import Pool
from pdx_proxy.aftercare import Aftercare
from pdx_proxy.backend import Backend
from pdx_proxy.counters import Phase, Settlement
from pdx_proxy.endpoints import Endpoint
from pdx_proxy.failures import BadAnswer, EngineFailure, Reason, RequestExpired
from pdx_proxy.handoff import Handoff, HandoffFailure, transfer_params
from pdx_proxy.leg import Leg
from pdx_proxy.pick import stand_in
from pdx_proxy.request import Request, decode_body, prefill_body


async def hand_off(
    backend: Backend, aftercare: Aftercare, family: Pool, pair: tuple[Endpoint, Endpoint], request: Request
) -> Handoff:
    """Run P's leg to its end, then D's until its answer is open; raises HandoffFailure or LegRefused.

    D's leg is the request as the client wrote it, so a refusal of D's is the client's.
    """
    prefill, decode = pair
    prefill_leg = backend.leg(prefill, request.until)
    # D is counted from its choice on, or all that is chosen during a prefill would be sent to the same one.
    decode_leg = backend.leg(decode, request.until)
    snapshot = backend.snapshot
    try:
        await _prefill(backend, aftercare, prefill_leg, request)
        finished = backend.clock()
        request.trail.prefill = prefill_seconds = finished - request.trail.sent
        backend.counters.phases[Phase.PREFILL].observe(prefill_seconds)
        if family.saved_after:
            await asyncio.sleep(family.saved_after)
        if backend.snapshot is not snapshot:  # a D that has begun to leave meanwhile gets no leg any more
            decode_leg.end()
            decode_leg = backend.leg(stand_in(backend.snapshot, backend.load.of, decode, turn=0), request.until)
        await _decode(backend, decode_leg, request)
    except BaseException:
        decode_leg.end()
        raise
    finally:
        prefill_leg.end()
    return Handoff(decode_leg, prefill, prefill_seconds, backend.clock() - finished)


async def _prefill(backend: Backend, aftercare: Aftercare, leg: Leg, request: Request) -> None:
    try:
        await leg.connect()
        body = prefill_body(request.body, None)
        request_id = backend.new_id()
        leg.send("POST", request.path, (*request.headers, ("X-Request-Id", request_id)), body)
        backend.sent_prefill(request.trail, leg.endpoint, request_id)
        transfer_params(leg.endpoint, await leg.whole(backend.deadlines.prefill))
    except (asyncio.CancelledError, RequestExpired):
        if leg.begun:
            aftercare.count(Settlement.PREFILL_STOPPED)
        raise
    except EngineFailure as failure:
        if not (isinstance(failure, BadAnswer) and failure.reason is Reason.STATUS):
            backend.suspect(leg.endpoint, failure)
        raise HandoffFailure(leg.endpoint, failure, begun=leg.begun) from failure
    leg.give_back()


async def _decode(backend: Backend, leg: Leg, request: Request) -> None:
    """D may have to compute the prompt, so its first event has as long as a whole request's."""
    try:
        await leg.connect()
        body = decode_body(request.body, None)
        request_id = backend.new_id()
        leg.send("POST", request.path, (*request.headers, ("X-Request-Id", request_id)), body)
        request.trail.legs.append((leg.endpoint.name, request_id))
        await leg.opened(backend.deadlines.first_event)
    except EngineFailure as failure:
        if not isinstance(failure, BadAnswer):
            backend.suspect(leg.endpoint, failure)
        raise HandoffFailure(leg.endpoint, failure) from failure
