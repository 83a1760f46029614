"""The pull family: P answers with its KV parameters, they go to D, and D reads the KV from P.

Invariant: once P has finished, exactly one of these happens: D's leg uses its parameters, or they are released.
"""

import asyncio

from pdx_api.connectors.families import Pull
from pdx_proxy.balancing.load import Room
from pdx_proxy.engines.transfer_params import LegRefused
from pdx_proxy.handoff.prefill_first_legs import PrefillFirstLegs
from pdx_proxy.handoff.request import CacheHits, Handoff, Request
from pdx_proxy.handoff.settlements import Settlements
from pdx_proxy.http.upstream.failures import EngineFailure


async def hand_off(settlements: Settlements, room: Room, request: Request) -> Handoff:
    """Run both legs until D's answer is open; raises HandoffFailure or LegRefused."""
    engines, watch = settlements.engines, settlements.serving.pulls
    legs = PrefillFirstLegs(settlements, room, request)
    family, snapshot = legs.prefill_leg.endpoint.family, engines.snapshot
    assert isinstance(family, Pull), "P and D are wired for a pull"
    try:
        params = await legs.finish_prefill(family.prefill_params)
        finished = engines.clock()
        legs.replace_decode(snapshot)
        answer = await legs.open_answer(watch, finished)
    except EngineFailure as failure:
        raise legs.fail(failure) from failure
    except LegRefused:
        legs.end(None)
        raise
    except (asyncio.CancelledError, Exception):
        legs.abandon()
        raise
    if params is None:
        return Handoff(legs.decode_leg)
    if answer.status != 200 or answer.refused:
        legs.refuse()
        raise LegRefused
    request.timeline.handoff = engines.clock() - finished
    legs.succeed(late=request.timeline.handoff > watch.due and not request.shows_output)
    hits: CacheHits | None = None
    if legs.decode_leg.endpoint.counts_received:
        hits = CacheHits()
        hits.read(request.path, legs.prefill_answer)
    return Handoff(legs.decode_leg, legs.prefill_leg.endpoint, hits)
