"""The pull family: P answers with its KV parameters, they go to D, and D reads the KV from P.

Invariant: once P has finished, exactly one of these happens: D's leg uses its parameters, or they are released.
"""

import asyncio

from pdx_api.connectors.families import KVParams, Pull
from pdx_proxy.balancing.load import Room
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.engines.leg import Leg
from pdx_proxy.engines.transfer_params import LegRefused
from pdx_proxy.handoff.call import Call
from pdx_proxy.handoff.prefill_first import current_decode_leg, finish_prefill
from pdx_proxy.handoff.prefill_first_settlement import leave_decode, release
from pdx_proxy.handoff.result import Handoff, HandoffFailure, reached_engine
from pdx_proxy.handoff.settlement import Settlements
from pdx_proxy.handoff.worker_state import WorkerState
from pdx_proxy.http.upstream.failures import BadAnswer, EngineFailure
from pdx_proxy.payload.body import decode_body


async def hand_off(serving: WorkerState, settlements: Settlements, family: Pull, room: Room, call: Call) -> Handoff:
    """Run both legs until D's answer is open; raises HandoffFailure or LegRefused."""
    request, engines = call.request, serving.engines
    prefill_leg = serving.prefill_leg(room.take_prefill(), request, request.deadline)
    # D's load counts from now on. Otherwise all requests of one prefill's duration would select the same D.
    decode_leg = engines.leg_in(room.take_decode(), request.deadline)
    prefill, decode = prefill_leg.endpoint, decode_leg.endpoint
    snapshot = engines.snapshot
    try:
        params = await finish_prefill(serving, settlements, prefill_leg, decode, family.prefill_params, call)
        if params is not None:
            serving.counters.pin(prefill.name)
        finished = engines.clock()
        decode_leg = current_decode_leg(engines, snapshot, decode_leg, request)
        await _decode(serving, settlements, prefill, decode_leg, params, call)
    except BaseException:
        decode_leg.end()
        raise
    finally:
        prefill_leg.end()
    if params is None:
        return Handoff(decode_leg)
    decode = decode_leg.endpoint
    if decode_leg.answer.status != 200:
        reached = reached_engine(decode_leg.answer.body)
        decode_leg.end()
        if reached and serving.has_handshake(prefill, decode):
            serving.counters.unpin(prefill.name)  # D's engine has notified P
        else:
            release(settlements, (prefill, decode), params, call)
        raise LegRefused
    serving.counters.unpin(prefill.name)
    serving.mark_handshake(prefill, decode)
    engines.observer.handed_over(prefill)
    return Handoff(decode_leg, prefill, call.timeline.prefill, engines.clock() - finished)


async def _decode(
    serving: WorkerState, settlements: Settlements, prefill: Endpoint, leg: Leg, params: KVParams | None, call: Call
) -> None:
    """Run D's leg until its answer is open, or settle."""
    decode, engines, request = leg.endpoint, serving.engines, call.request
    pair = (prefill, decode)
    try:
        await leg.connect()
        leg.once = params is not None
        serving.send(leg, call, decode_body(request.body, params), engines.new_id())
        # D may queue the leg: its heartbeats renew P's lease meanwhile.
        await leg.first_event(engines.deadlines.answer(stream=request.stream))
    except EngineFailure as failure:
        leg.end()
        if params is not None:
            release(settlements, pair, params, call, failure, begun=leg.sent)
            engines.observer.decode_failed(prefill, decode, failure)
        elif not isinstance(failure, BadAnswer):
            engines.observer.suspect(decode, failure)
        raise HandoffFailure(decode, failure) from failure
    except (asyncio.CancelledError, Exception):  # mostly because the client has left
        if params is None:
            leg.end()
        elif leg.sent:
            leave_decode(settlements, leg.detach(), pair, params, call)
        else:
            leg.end()
            release(settlements, pair, params, call)
        raise
