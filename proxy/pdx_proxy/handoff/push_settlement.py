"""Settlement of a push that ended early: what happens to P's leg and to the blocks of both engines.

The result depends on what D does at the end of the attempt (`DecodeEnd`) and on how the family settles.
"""

import asyncio
from enum import Enum
from typing import Final

from pdx_api.connectors.families import KVParams
from pdx_proxy.engines.leg import Leg
from pdx_proxy.handoff.push_prefill import PushPrefill
from pdx_proxy.handoff.push_transfer import PUSH_SECONDS, PushTransfer
from pdx_proxy.handoff.result import FULL, has_answered, reached_engine
from pdx_proxy.http.upstream.failures import BadAnswer, ConnectFailure, DeadlineExceeded, EngineFailure
from pdx_proxy.telemetry.counters import Settlement


class DecodeEnd(Enum):
    """What D does at the end of an attempt in which it did not load the KV."""

    REFUSED = "refused"
    """D's engine refused the leg. In families that settle by P's leg, D has notified P."""
    REFUSED_BY_HTTP = "refused by http"
    """D's HTTP server refused the leg, so D's engine never received it."""
    ABSENT = "absent"
    """D does not wait: its leg was not sent, or it answered that it failed."""
    LOST = "lost"
    """The connection to D was lost. D may still wait."""
    WAITS = "waits"
    """D waits for the push."""


_REFUSED: Final = (DecodeEnd.REFUSED, DecodeEnd.REFUSED_BY_HTTP)
_MAY_WAIT: Final = (DecodeEnd.LOST, DecodeEnd.WAITS)


def end_of_refusal(body: bytes) -> DecodeEnd:
    """Classify a 4xx of D by its body."""
    return DecodeEnd.REFUSED if reached_engine(body) else DecodeEnd.REFUSED_BY_HTTP


def end_of_failure(failure: EngineFailure) -> DecodeEnd:
    """Classify a failure of D's leg."""
    if has_answered(failure, (FULL,)):
        return DecodeEnd.REFUSED
    if isinstance(failure, DeadlineExceeded):
        return DecodeEnd.WAITS
    return DecodeEnd.ABSENT if isinstance(failure, BadAnswer | ConnectFailure) else DecodeEnd.LOST


def finish(transfer: PushTransfer, prefill: PushPrefill, decode_leg: Leg) -> None:
    """The request was abandoned while D had its leg: let P finish, then close D."""
    transfer.settlements.settle(_finish(transfer, prefill, decode_leg), transfer.call)


def unwind(transfer: PushTransfer, prefill: PushPrefill, decode_leg: Leg, end: DecodeEnd) -> None:
    """Abandon the hand-off: D will not load the KV. Stop P only if D cannot be waiting for it."""
    settlements = transfer.settlements
    prefill.conclude()
    if prefill.task is None:
        prefill.leg.end()
        if transfer.by_prefill_leg and end is DecodeEnd.REFUSED:
            settlements.settle(transfer.substitute_prefill(None, refused=True), transfer.call)
        return
    since = prefill.transfer_since
    if end not in _REFUSED and since is not None and transfer.engines.clock() - since > PUSH_SECONDS:
        prefill.unpin()
        settlements.count(Settlement.FINISHED)  # D had the KV, so no blocks are left to free
        return
    stop_prefill = end not in _MAY_WAIT and not (transfer.by_prefill_leg and decode_leg.sent)
    work = _unwind(transfer, prefill, prefill.task, end, stop_prefill=stop_prefill)
    settlements.settle(work, transfer.call)


def after_prefill_failure(
    transfer: PushTransfer, prefill: PushPrefill, decode_leg: Leg, failure: EngineFailure
) -> None:
    """P has failed: release D's blocks, by the leg that is being sent again or by a substitute."""
    if prefill.resending:
        decode_leg.clear_interruption()
        finish(transfer, prefill, decode_leg)
        return
    prefill.unpin(expires=isinstance(failure, DeadlineExceeded))
    if decode_leg.sent:
        transfer.settlements.settle(_close_decode(transfer, failure, decode_leg.detach()), transfer.call)
    else:
        decode_leg.end()


def give_up(transfer: PushTransfer, prefill: PushPrefill, decode_leg: Leg) -> None:
    """P has finished, and D has shown no first event in time: it still queues the request, or the push failed."""
    assert prefill.task is not None, "P has finished"
    transfer.settlements.settle(_give_up(transfer, prefill, prefill.task, decode_leg.detach()), transfer.call)


async def _close_decode(transfer: PushTransfer, failure: Exception | None, decode_leg: Leg) -> Settlement:
    """Close D, whose P has failed. Only a D that has scheduled the request holds blocks."""
    try:
        queued = await transfer.decode_only_queues()
    finally:
        decode_leg.end()
    return await transfer.after_prefill_failure(failure, queued=queued)


async def _give_up(
    transfer: PushTransfer, prefill: PushPrefill, task: "asyncio.Task[KVParams | None]", decode_leg: Leg
) -> Settlement:
    settlement = Settlement.LEASE
    try:
        try:
            queued = await transfer.decode_only_queues()
        finally:
            decode_leg.end()
        params = await task
        if not queued or params is None:
            settlement = transfer.report_lost()
        elif transfer.by_prefill_leg:
            settlement = await transfer.after_notice()
        else:
            settlement = await transfer.free(params)
    finally:
        prefill.unpin(expires=settlement not in (Settlement.RELEASED, Settlement.FINISHED))
    return settlement


async def _finish(transfer: PushTransfer, prefill: PushPrefill, decode_leg: Leg) -> Settlement:
    settlement = Settlement.LEASE
    try:
        settlement = await _finish_prefill(transfer, prefill, decode_leg)
    finally:
        prefill.conclude()
        decode_leg.end()
        prefill.unpin(expires=settlement is Settlement.LEASE)
    return settlement


async def _finish_prefill(transfer: PushTransfer, prefill: PushPrefill, decode_leg: Leg) -> Settlement:
    task = prefill.task
    if task is None:
        if decode_leg.answer.status >= 400:
            prefill.leg.end()
            return await _after_refusal(transfer, prefill, decode_leg)
        task = prefill.start()
    params = await task
    if params is None:
        if decode_leg.answer.status >= 400:
            return await _after_refusal(transfer, prefill, decode_leg)
        return await _close_decode(transfer, prefill.failure, decode_leg)
    ended = await transfer.end_decode(decode_leg)
    if ended is not None:
        return ended
    if prefill.failure is not None:
        return Settlement.PREFILL_STOPPED if await transfer.decode_only_queues() else transfer.report_lost()
    return await transfer.free(params)


async def _after_refusal(transfer: PushTransfer, prefill: PushPrefill, decode_leg: Leg) -> Settlement:
    """D has answered an error, and P has not finished."""
    if transfer.by_prefill_leg and reached_engine(decode_leg.answer.body):
        return await transfer.substitute_prefill(prefill.failure, refused=True)
    return Settlement.FINISHED


async def _unwind(
    transfer: PushTransfer,
    prefill: PushPrefill,
    task: "asyncio.Task[KVParams | None]",
    end: DecodeEnd,
    *,
    stop_prefill: bool,
) -> Settlement:
    settlement = Settlement.LEASE
    try:
        if stop_prefill:
            await asyncio.wait([task], timeout=transfer.engines.deadlines.nearly_done)
            prefill.leg.half_close()
        params = await task
        settlement = await _settle_ended(transfer, prefill, params, end)
    finally:
        prefill.unpin(expires=settlement is Settlement.LEASE)
    return settlement


async def _settle_ended(
    transfer: PushTransfer, prefill: PushPrefill, params: KVParams | None, end: DecodeEnd
) -> Settlement:
    """Settle after P's leg has ended; `params` are P's if it has finished."""
    refused, waits = end is DecodeEnd.REFUSED, end is DecodeEnd.WAITS
    if params is None:
        if waits or refused:
            return await transfer.substitute_prefill(prefill.failure, refused=refused)
        return Settlement.PREFILL_STOPPED
    if transfer.by_prefill_leg and refused:
        return Settlement.RELEASED
    return Settlement.FINISHED if waits else await transfer.free(params)
