"""What the families have in common that await P before D is asked: serial and pool."""

import asyncio
from typing import Final

from pdx_api.connectors.families import KVParams
from pdx_proxy.balancing.pick import stand_in
from pdx_proxy.endpoints.snapshot import Endpoint, Snapshot
from pdx_proxy.engines.backend import Backend
from pdx_proxy.engines.call import Call
from pdx_proxy.engines.leg import Leg
from pdx_proxy.handoff.base import HandoffFailure, LegRefused, transfer_params
from pdx_proxy.handoff.settlement import Settlements
from pdx_proxy.http.upstream.failures import BadAnswer, EngineFailure, Reason
from pdx_proxy.payload.body import prefill_body
from pdx_proxy.payload.request import Request
from pdx_proxy.telemetry.counters import Phase

_PREFILL: Final = Phase.PREFILL.value


async def finish_prefill(
    backend: Backend, settlements: Settlements, leg: Leg, decode: Endpoint, params: KVParams | None, call: Call
) -> KVParams | None:
    """P's leg to its end; what it answers for D. Raises HandoffFailure or LegRefused.

    `params` are the leg's own; without them P keeps nothing for a D. The leg stays the caller's to end.
    """
    body = prefill_body(call.request.body, params)
    try:
        await leg.connect()
        backend.send_prefill(leg, call, body, backend.new_id())
        answered = transfer_params(leg.endpoint, await leg.whole(backend.deadlines.prefill))
    except EngineFailure as failure:
        if not (isinstance(failure, BadAnswer) and failure.reason is Reason.STATUS):
            backend.suspect(leg.endpoint, failure)
        raise HandoffFailure(leg.endpoint, failure, begun=leg.sent) from failure
    except LegRefused:
        raise
    except (asyncio.CancelledError, Exception):  # mostly because nobody waits any more
        settlements.stop_prefill(leg.detach(), decode, call.request, keeps=params is not None)
        raise
    leg.give_back()
    timeline = call.timeline
    timeline.prefill = backend.clock() - timeline.sent
    backend.counters.phases[_PREFILL].observe(timeline.prefill)
    return answered


def stand_in_leg(backend: Backend, then: Snapshot, leg: Leg, request: Request) -> Leg:
    """D's leg, as long as `then` is in force; afterwards that of its stand-in.

    A D that has begun to leave while P prefilled gets no leg any more.
    """
    if backend.snapshot is then:
        return leg
    leg.end()
    return backend.leg(stand_in(backend.snapshot, backend.load.of, leg.endpoint, turn=0), request.deadline)
