"""The push family: both legs carry one fresh transfer ID, and P writes KV into blocks that D has allocated.

Invariant: once D has its leg, a P leg runs to its end under the same ID, or D's blocks are counted as lost. That leg is
the first one or, where D notifies P and P has not begun, a substitute. If P is aborted, D waits without any timeout of
vLLM, or with one of minutes.
"""

import asyncio

from pdx_proxy.balancing.load import Room
from pdx_proxy.engines.transfer_params import LegRefused
from pdx_proxy.handoff.failures import KVOverdue, PrefillEnded
from pdx_proxy.handoff.push_legs import PushLegs
from pdx_proxy.handoff.request import Handoff, Request
from pdx_proxy.handoff.settlements import Settlements
from pdx_proxy.http.upstream.failures import EngineFailure


async def hand_off(settlements: Settlements, room: Room, request: Request) -> Handoff:
    """Run both legs until D's answer is open; raises HandoffFailure or LegRefused."""
    engines, legs = settlements.engines, PushLegs(settlements, room, request)
    began = engines.clock()
    try:
        await legs.begin()
        answer = await legs.decode_leg.first_event(engines.deadlines.answer(stream=request.shows_output))
    except PrefillEnded as ended:
        raise legs.fail_prefill(ended) from ended.failure
    except KVOverdue as overdue:
        raise legs.fail_late(overdue) from overdue.failure
    except EngineFailure as failure:
        raise legs.fail(failure) from failure
    except (asyncio.CancelledError, Exception):
        legs.abandon()
        raise
    if answer.status != 200 or answer.refused:
        legs.refuse()
        raise LegRefused
    legs.succeed()
    request.timeline.handoff = engines.clock() - began
    return Handoff(legs.decode_leg, legs.prefill.leg.endpoint, legs.prefill.hits)
