"""What the families have in common that await P before D is asked: serial and pool."""

import asyncio
from typing import Final

from pdx_api.connectors.families import KVParams
from pdx_proxy.balancing.pick import stand_in
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.engines.leg import Leg
from pdx_proxy.engines.transfer_params import LegRefused, transfer_params
from pdx_proxy.handoff.base import HandoffFailure
from pdx_proxy.handoff.serving_state import ServingState
from pdx_proxy.handoff.settlement import Settlements
from pdx_proxy.http.upstream.failures import BadAnswer, EngineFailure, Reason
from pdx_proxy.payload.request import Request, prefill_body
from pdx_proxy.telemetry.counters import Phase

_PREFILL: Final = Phase.PREFILL.value


async def finish_prefill(
    serving: ServingState,
    settlements: Settlements,
    leg: Leg,
    decode: Endpoint,
    params: KVParams | None,
    request: Request,
) -> KVParams | None:
    """P's leg to its end; what it answers for D. Raises HandoffFailure or LegRefused.

    `params` are the leg's own; without them P keeps nothing for a D. The leg stays the caller's to end.
    """
    body = prefill_body(request.body, params)
    try:
        await leg.connect()
        serving.send_prefill(leg, request, body, serving.engines.new_id())
        answered = transfer_params(leg.endpoint, await leg.whole(serving.engines.deadlines.prefill))
    except EngineFailure as failure:
        if not (isinstance(failure, BadAnswer) and failure.reason is Reason.STATUS):
            serving.engines.suspect(leg.endpoint, failure)
        raise HandoffFailure(leg.endpoint, failure, begun=leg.begun) from failure
    except LegRefused:
        raise
    except (asyncio.CancelledError, Exception):  # mostly because nobody waits any more
        settlements.stop_prefill(leg.detach(), decode, request, keeps=params is not None)
        raise
    leg.give_back()
    timeline = request.timeline
    timeline.prefill = serving.engines.clock() - timeline.sent
    serving.counters.phases[_PREFILL].observe(timeline.prefill)
    return answered


def stand_in_leg(serving: ServingState, then: Snapshot, leg: Leg, request: Request) -> Leg:
    """D's leg, as long as `then` is in force; afterwards that of its stand-in.

    A D that has begun to leave while P prefilled gets no leg any more.
    """
    if serving.engines.snapshot is then:
        return leg
    leg.end()
    return serving.engines.leg(
        stand_in(serving.engines.snapshot, serving.engines.load.of, leg.endpoint, turn=0), request.until
    )
