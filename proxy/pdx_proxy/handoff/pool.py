"""The pool family: P saves its KV in a pool, and D, which gets the request unchanged, looks it up there.

P keeps nothing for a D. D computes what it does not find. The gateway cannot see that; the engine counts it.
"""

import asyncio

from pdx_api.connectors.families import Pool
from pdx_proxy.balancing.load import Room
from pdx_proxy.engines.transfer_params import LegRefused
from pdx_proxy.handoff.prefill_first_legs import PrefillFirstLegs
from pdx_proxy.handoff.request import CacheHits, Handoff, Request
from pdx_proxy.handoff.settlements import Settlements
from pdx_proxy.http.upstream.failures import EngineFailure


async def hand_off(settlements: Settlements, room: Room, request: Request) -> Handoff:
    """Run P's leg to its end, then D's until its answer is open; raises HandoffFailure or LegRefused.

    D's leg is the client's request, so a refusal of D goes to the client.
    """
    engines, legs = settlements.engines, PrefillFirstLegs(settlements, room, request)
    family, snapshot = legs.prefill_leg.endpoint.family, engines.snapshot
    assert isinstance(family, Pool), "P and D share a pool"
    try:
        await legs.finish_prefill(None)
        hits = CacheHits()
        hits.read(request.path, legs.prefill_answer)
        finished = engines.clock()
        if family.saved_after:
            await asyncio.sleep(family.saved_after)
        legs.replace_decode(snapshot)
        await legs.open_answer()
    except EngineFailure as failure:
        raise legs.fail(failure) from failure
    except LegRefused:
        legs.end(None)
        raise
    except (asyncio.CancelledError, Exception):
        legs.abandon()
        raise
    request.timeline.handoff = engines.clock() - finished
    return Handoff(legs.decode_leg, legs.prefill_leg.endpoint, hits)
