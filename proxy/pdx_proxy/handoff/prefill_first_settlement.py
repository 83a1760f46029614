"""Settlement in the families pull and pool: it stops P's leg, or makes a D release the KV that P has finished."""

from typing import Final

from pdx_api.connectors.families import KVParams, Pool
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.engines.leg import Leg
from pdx_proxy.engines.transfer_params import LegRefused, transfer_params
from pdx_proxy.handoff.call import Call
from pdx_proxy.handoff.result import REFUSED_MAX_TOKENS
from pdx_proxy.handoff.settlement import Settlements
from pdx_proxy.http.upstream.failures import BadAnswer, DeadlineExceeded, EngineBusy, EngineFailure
from pdx_proxy.payload.body import prefill_body, settling_body
from pdx_proxy.payload.request import Request
from pdx_proxy.telemetry.counters import Settlement

_LATE_ANSWER_SECONDS: Final = 1.0
"""How long to wait for an answer that was on its way when the client left."""
_INTAKE_SECONDS: Final = 0.5
"""How long a D may take to pass a request to its engine.

If the connection closes while D's HTTP server still reads or tokenizes the request, D's engine never receives it, and D
does not notify P.
"""
_FIRST_KV_SECONDS: Final = 1.0
"""How long the first KV from a P to a D may take, handshake included."""


def stop_prefill(settlements: Settlements, leg: Leg, decode: Endpoint, call: Call, *, keeps: bool) -> None:
    """The client left while P prefilled: stop P, if its connector allows that.

    `keeps`: P keeps KV for D if it finishes anyway. That KV is then released.
    """
    if not leg.sent:
        leg.end()
    elif keeps:
        settlements.settle(_stop_prefill(settlements, leg, decode, call.request), call)
    elif _may_stop(leg.endpoint):
        settlements.count(Settlement.PREFILL_STOPPED)
        leg.end()
    else:
        settlements.settle(_finish_prefill(settlements, leg), call)


def release(
    settlements: Settlements,
    pair: tuple[Endpoint, Endpoint],
    params: KVParams,
    call: Call,
    failure: EngineFailure | None = None,
    *,
    begun: bool = False,
) -> None:
    """Free the blocks of a finished P whose parameters no D leg uses.

    `failure` is the failure of the pair's D, if any. `begun`: that D may have read the blocks, or have notified P that
    it does not need them, as a busy D does that has a handshake with P. (Another worker may have made it.)
    """
    last = failure is not None and (isinstance(failure, EngineBusy) or not isinstance(failure, BadAnswer))
    work = _release(settlements, _releaser(settlements, pair, last=last), params, call.request, begun=begun)
    settlements.settle(settlements.while_pinned(pair[0], work), call)


def leave_decode(
    settlements: Settlements, leg: Leg, pair: tuple[Endpoint, Endpoint], params: KVParams, call: Call
) -> None:
    """The client left while D waited for the KV.

    If the pair has a handshake, D notifies P when its leg is closed, as soon as D's engine has received the leg.
    Without a handshake the notice would not reach P. Then another D that has a handshake with P notifies P; if there is
    none, D is closed after its KV has arrived.
    """
    prefill, _ = pair
    if settlements.serving.has_handshake(*pair):
        work = _close_when_open(leg, _INTAKE_SECONDS, Settlement.RELEASED)
    elif (releaser := _releaser(settlements, pair, last=False))[1]:
        leg.end()
        work = _release(settlements, releaser, params, call.request, begun=True)
    elif call.request.stream:
        work = _close_when_open(leg, settlements.engines.deadlines.settle, Settlement.LEASE)
    else:
        work = _close_when_open(leg, _FIRST_KV_SECONDS, Settlement.RELEASED)
    settlements.settle(settlements.while_pinned(prefill, work), call)


def _may_stop(prefill: Endpoint) -> bool:
    """Whether P may be stopped while it works."""
    family = prefill.family
    return not isinstance(family, Pool) or family.stops_prefill


async def _finish_prefill(settlements: Settlements, leg: Leg) -> Settlement:
    try:
        answer = await leg.whole(settlements.engines.deadlines.prefill)
    except EngineFailure:
        return Settlement.PREFILL_STOPPED
    finally:
        leg.end()
    return Settlement.FINISHED if answer.status == 200 else Settlement.PREFILL_STOPPED


async def _stop_prefill(settlements: Settlements, leg: Leg, decode: Endpoint, request: Request) -> Settlement:
    try:
        try:
            answer = await leg.whole(settlements.engines.deadlines.nearly_done)
        except DeadlineExceeded:
            leg.half_close()
            answer = await leg.whole(_LATE_ANSWER_SECONDS)
        params = transfer_params(leg.endpoint, answer, request.body.api)
    except (EngineFailure, LegRefused):
        return Settlement.PREFILL_STOPPED
    finally:
        leg.end()
    if params is None:
        return Settlement.PREFILL_STOPPED
    prefill = leg.endpoint
    settlements.serving.counters.pin(prefill.name)
    releaser = _releaser(settlements, (prefill, decode), last=False)
    return await settlements.while_pinned(prefill, _release(settlements, releaser, params, request, begun=False))


def _releaser(settlements: Settlements, pair: tuple[Endpoint, Endpoint], *, last: bool) -> tuple[Endpoint, bool]:
    """Select the D that frees P's blocks; return it and whether it has a handshake with P.

    `last`: the pair's own D is selected only if there is no other. It comes last, too, if it may no longer be selected.
    """
    prefill, decode = pair
    decodes = settlements.engines.snapshot.decode
    others = [d for d in decodes if d.revision == prefill.revision and d.name != decode.name]
    selectable = any(d.name == decode.name for d in decodes)
    candidates = others if last and others else [decode, *others] if selectable else [*others, decode]
    handshaken = next((d for d in candidates if settlements.serving.has_handshake(prefill, d)), None)
    return (handshaken or candidates[0], handshaken is not None)


async def _release(
    settlements: Settlements, releaser: tuple[Endpoint, bool], params: KVParams, request: Request, *, begun: bool
) -> Settlement:
    """Free P's blocks by a D leg.

    A leg that D refuses costs no work, but only a D that has a handshake with P can notify P (vLLM 0.32). Any other D
    gets a leg of one token instead. If the blocks may have been read already, no leg is sent: the blocks are free then,
    and a second read would return another request's KV.
    """
    decode, handshaken = releaser
    if handshaken:
        salt = settlements.engines.new_id()
        body = settling_body(request.body.api, params, REFUSED_MAX_TOKENS, salt)
        status = await settlements.call(decode, request, body, salt, settles=True)
        return Settlement.RELEASED if 400 <= status < 500 else Settlement.LEASE
    if begun:
        return Settlement.LEASE
    request_id = settlements.engines.new_id()
    status = await settlements.call(decode, request, prefill_body(request.body, params), request_id)
    return Settlement.RELEASED if status == 200 else Settlement.LEASE


async def _close_when_open(leg: Leg, seconds: float, otherwise: Settlement) -> Settlement:
    """Close D when its first event shows that it has the KV. After `seconds`, close it and return `otherwise`.

    Without a stream no event shows it: D is given time, and decodes meanwhile.
    """
    try:
        await leg.first_event(seconds)
    except DeadlineExceeded:
        return otherwise
    except EngineFailure:
        return Settlement.LEASE
    finally:
        leg.end()
    return Settlement.RELEASED
