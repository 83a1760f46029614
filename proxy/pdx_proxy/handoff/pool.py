"""The pool family: P saves what it computes, and D, asked with the whole request, looks it up.

Nothing is kept for a D, so a hand-off that nobody wants any more is settled by stopping P, or, where that would harm
its engine, by leaving it to finish. What D does not find it computes; the gateway does not see that, the engine counts
it.
"""

import asyncio

from pdx_api.connectors.families import Pool
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.engines.leg import Leg
from pdx_proxy.handoff.base import Handoff, HandoffFailure
from pdx_proxy.handoff.prefill_first import finish_prefill, stand_in_leg
from pdx_proxy.handoff.serving_state import ServingState
from pdx_proxy.handoff.settlement import Settlements
from pdx_proxy.http.upstream.failures import BadAnswer, EngineFailure
from pdx_proxy.payload.request import Request, decode_body


async def hand_off(
    serving: ServingState, settlements: Settlements, family: Pool, pair: tuple[Endpoint, Endpoint], request: Request
) -> Handoff:
    """Run P's leg to its end, then D's until its answer is open; raises HandoffFailure or LegRefused.

    D's leg is the request as the client wrote it, so a refusal of D's is the client's.
    """
    prefill, decode = pair
    prefill_leg = serving.engines.leg(prefill, request.until)
    # D is counted from its choice on, or all that is chosen during a prefill would be sent to the same one.
    decode_leg = serving.engines.leg(decode, request.until)
    snapshot = serving.engines.snapshot
    try:
        await finish_prefill(serving, settlements, prefill_leg, decode, None, request)
        finished = serving.engines.clock()
        if family.saved_after:
            await asyncio.sleep(family.saved_after)
        decode_leg = stand_in_leg(serving, snapshot, decode_leg, request)
        await _decode(serving, decode_leg, request)
    except BaseException:
        decode_leg.end()
        raise
    finally:
        prefill_leg.end()
    return Handoff(decode_leg, prefill, request.timeline.prefill, serving.engines.clock() - finished)


async def _decode(serving: ServingState, leg: Leg, request: Request) -> None:
    """D may have to compute the prompt, so its first event has as long as a whole request's."""
    try:
        await leg.connect()
        serving.send(leg, request, decode_body(request.body, None), serving.engines.new_id())
        await leg.opened(serving.engines.deadlines.first_event)
    except EngineFailure as failure:
        if not isinstance(failure, BadAnswer):
            serving.engines.suspect(leg.endpoint, failure)
        raise HandoffFailure(leg.endpoint, failure) from failure
