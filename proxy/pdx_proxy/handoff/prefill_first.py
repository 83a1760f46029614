"""The steps that the families pull and pool share: P finishes before D gets its leg."""

import asyncio
from typing import Final

from pdx_api.connectors.families import KVParams
from pdx_proxy.balancing.pick import replacement_decode
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.engines.leg import Leg
from pdx_proxy.engines.transfer_params import LegRefused, transfer_params
from pdx_proxy.engines.upstreams import Engines
from pdx_proxy.handoff.call import Call
from pdx_proxy.handoff.prefill_first_settlement import stop_prefill
from pdx_proxy.handoff.result import HandoffFailure
from pdx_proxy.handoff.settlement import Settlements
from pdx_proxy.handoff.worker_state import WorkerState
from pdx_proxy.http.upstream.failures import BadAnswer, EngineFailure, Reason
from pdx_proxy.payload.body import prefill_body
from pdx_proxy.payload.request import Request
from pdx_proxy.telemetry.counters import Phase

_PREFILL: Final = Phase.PREFILL.value


async def finish_prefill(
    serving: WorkerState, settlements: Settlements, leg: Leg, decode: Endpoint, params: KVParams | None, call: Call
) -> KVParams | None:
    """Run P's leg to its end; return its parameters for D. Raises HandoffFailure or LegRefused.

    `params` are the parameters of P's leg. Without them P keeps nothing for a D. The caller must end the leg.
    """
    body = prefill_body(call.request.body, params)
    load = serving.engines.load
    load.begin_prefill(decode)
    try:
        await leg.connect()
        record = serving.send_prefill(leg, call, body, serving.engines.new_id())
        answer = await leg.whole(serving.engines.deadlines.prefill)
        answered = transfer_params(leg.endpoint, answer, call.request.body.api)
    except EngineFailure as failure:
        if not (isinstance(failure, BadAnswer) and failure.reason is Reason.STATUS):
            serving.engines.observer.suspect(leg.endpoint, failure)
        raise HandoffFailure(leg.endpoint, failure, begun=leg.sent) from failure
    except LegRefused:
        raise
    except (asyncio.CancelledError, Exception):  # mostly because the client has left
        stop_prefill(settlements, leg.detach(), decode, call, keeps=params is not None)
        raise
    finally:
        load.end_prefill(decode)
    leg.end()  # P has room for another request, although its blocks are pinned until D has read them
    timeline = call.timeline
    record.ended = serving.engines.clock()
    timeline.prefill = record.ended - timeline.sent
    serving.counters.phases[_PREFILL].observe(timeline.prefill)
    return answered


def current_decode_leg(engines: Engines, before: Snapshot, leg: Leg, request: Request) -> Leg:
    """Return D's leg, or, if the snapshot has changed since `before`, a leg to a replacement of the same revision.

    A D that began to terminate while P prefilled gets no leg.
    """
    if engines.snapshot is before:
        return leg
    leg.end()
    decode = replacement_decode(engines.snapshot, engines.load.of, leg.endpoint, cursor=0)
    return engines.leg(decode, request.deadline)
