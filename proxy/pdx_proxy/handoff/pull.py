"""The serial family: P is called and awaited, what it answers goes to D, and D pulls.

Invariant: once P has finished, exactly one of these happens: D's leg takes its parameters, or they are given to
aftercare for release.
"""

import asyncio

from pdx_api.connectors.families import KVParams, Pull
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.engines.leg import Leg
from pdx_proxy.engines.transfer_params import LegRefused
from pdx_proxy.handoff.base import HTTP_BAD_REQUEST, Handoff, HandoffFailure, blame
from pdx_proxy.handoff.prefill_first import finish_prefill, stand_in_leg
from pdx_proxy.handoff.serving_state import ServingState
from pdx_proxy.handoff.settlement import Settlements
from pdx_proxy.http.upstream.failures import BadAnswer, EngineFailure
from pdx_proxy.payload.request import Request, decode_body


async def hand_off(
    serving: ServingState,
    settlements: Settlements,
    family: Pull,
    pair: tuple[Endpoint, Endpoint],
    request: Request,
) -> Handoff:
    """Run both legs until D's answer is open; raises HandoffFailure or LegRefused."""
    prefill, decode = pair
    prefill_leg = serving.engines.leg(prefill, request.until)
    # D is counted from its choice on, or all that is chosen during a prefill would be sent to the same one.
    decode_leg = serving.engines.leg(decode, request.until)
    snapshot = serving.engines.snapshot
    try:
        params = await finish_prefill(serving, settlements, prefill_leg, decode, family.prefill_params, request)
        if params is not None:
            serving.counters.hold(prefill.name)
        finished = serving.engines.clock()
        decode_leg = stand_in_leg(serving, snapshot, decode_leg, request)
        await _decode(serving, settlements, prefill, decode_leg, params, request)
    except BaseException:
        decode_leg.end()
        raise
    finally:
        prefill_leg.end()
    if params is None:
        return Handoff(decode_leg)
    decode = decode_leg.endpoint
    if decode_leg.answer.status != 200:
        unheard = HTTP_BAD_REQUEST in decode_leg.answer.body
        decode_leg.end()
        if unheard or not serving.has_handshake(prefill, decode):
            settlements.release((prefill, decode), params, request)
        else:
            serving.counters.let_go(prefill.name)
        raise LegRefused
    serving.counters.let_go(prefill.name)
    serving.mark_handshake(prefill, decode)
    return Handoff(decode_leg, prefill, request.timeline.prefill, serving.engines.clock() - finished)


async def _decode(
    serving: ServingState,
    settlements: Settlements,
    prefill: Endpoint,
    leg: Leg,
    params: KVParams | None,
    request: Request,
) -> None:
    decode, deadlines = leg.endpoint, serving.engines.deadlines
    pair = (prefill, decode)
    try:
        await leg.connect()
        serving.send(leg, request, decode_body(request.body, params), serving.engines.new_id())
        await leg.opened(deadlines.handoff if request.stream else deadlines.first_event)
    except EngineFailure as failure:
        leg.end()
        if params is not None:
            settlements.release(pair, params, request, failure, begun=leg.begun)
            blame(serving, prefill, decode, failure)
        elif not isinstance(failure, BadAnswer):
            serving.engines.suspect(decode, failure)
        raise HandoffFailure(decode, failure) from failure
    except (asyncio.CancelledError, Exception):  # mostly because nobody waits any more
        if params is None:
            leg.end()
        elif leg.begun:
            settlements.leave_decode(leg.detach(), pair, params, request)
        else:
            leg.end()
            settlements.release(pair, params, request)
        raise
