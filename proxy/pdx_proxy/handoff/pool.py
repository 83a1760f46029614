"""The pool family: P saves its KV in a pool, and D, which gets the request unchanged, looks it up there.

P keeps nothing for a D. A hand-off that ends early is settled by stopping P or, where that would harm its engine, by
letting P finish. D computes what it does not find. The gateway cannot see that; the engine counts it.
"""

import asyncio

from pdx_api.connectors.families import Pool
from pdx_proxy.balancing.load import Room
from pdx_proxy.engines.leg import Leg
from pdx_proxy.handoff.call import Call
from pdx_proxy.handoff.prefill_first import current_decode_leg, finish_prefill
from pdx_proxy.handoff.result import Handoff, HandoffFailure
from pdx_proxy.handoff.settlement import Settlements
from pdx_proxy.handoff.worker_state import WorkerState
from pdx_proxy.http.upstream.failures import BadAnswer, EngineFailure
from pdx_proxy.payload.body import decode_body


async def hand_off(serving: WorkerState, settlements: Settlements, family: Pool, room: Room, call: Call) -> Handoff:
    """Run P's leg to its end, then D's until its answer is open; raises HandoffFailure or LegRefused.

    D's leg is the client's request, so a refusal of D goes to the client.
    """
    request, engines = call.request, serving.engines
    prefill_leg = serving.prefill_leg(room.take_prefill(), request, request.deadline)
    # D's load counts from now on. Otherwise all requests of one prefill's duration would select the same D.
    decode_leg = engines.leg_in(room.take_decode(), request.deadline)
    prefill, decode = prefill_leg.endpoint, decode_leg.endpoint
    snapshot = engines.snapshot
    try:
        await finish_prefill(serving, settlements, prefill_leg, decode, None, call)
        finished = engines.clock()
        if family.saved_after:
            await asyncio.sleep(family.saved_after)
        decode_leg = current_decode_leg(engines, snapshot, decode_leg, request)
        await _decode(serving, decode_leg, call)
    except BaseException:
        decode_leg.end()
        raise
    finally:
        prefill_leg.end()
    return Handoff(decode_leg, prefill, call.timeline.prefill, engines.clock() - finished)


async def _decode(serving: WorkerState, leg: Leg, call: Call) -> None:
    """Run D's leg. D may have to compute the prompt, so its first event has the deadline of a whole request."""
    engines = serving.engines
    try:
        await leg.connect()
        serving.send(leg, call, decode_body(call.request.body, None), engines.new_id())
        await leg.first_event(engines.deadlines.answer(stream=call.request.stream))
    except EngineFailure as failure:
        if not isinstance(failure, BadAnswer):
            engines.observer.suspect(leg.endpoint, failure)
        raise HandoffFailure(leg.endpoint, failure) from failure
