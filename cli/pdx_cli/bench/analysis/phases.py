"""Where the time to the first token went, as mean seconds of each phase that add up to what the client measured. Pure.

The client measures the whole, the gateway its own phases (header `server-timing`, or the histograms of its metrics),
and engines what is within their legs. Means add up, whatever the distributions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from pdx_cli.bench.analysis.counters import EngineTotals, GatewayTotals
from pdx_cli.bench.load.records import Record
from pdx_cli.bench.statistics import mean


class Phase(StrEnum):
    """A part of a request's time."""

    GATEWAY_QUEUE = "gateway_queue"
    """In the gateway's queue: an engine has no room."""
    QUEUE = "queue"
    """In the queue of P, or of the aggregated engine."""
    PREFILL = "prefill"
    """P computes the prompt."""
    TRANSFER = "transfer"
    """KV moves."""
    DECODE_QUEUE = "decode_queue"
    """The rest of the hand-off: above all, D has no room yet."""
    FIRST_STEP = "first_step"
    """D's first step; of a prompt that is not split, its prefill in D."""
    GATEWAY = "gateway"
    """Within the gateway and on its way to engines."""
    OUTSIDE = "outside"
    """Before the gateway has the request and after it has the first token: network, accept queue, client."""
    DECODE = "decode"
    """From the first token to the last; not a part of TTFT."""


TO_FIRST_TOKEN: Final = tuple(phase for phase in Phase if phase is not Phase.DECODE)
HAND_OFF: Final = (Phase.TRANSFER, Phase.DECODE_QUEUE)
TOLERANCE_SHARE: Final = 0.02
TOLERANCE_SECONDS: Final = 0.002
"""The gateway's phases and the client's TTFT may differ by one of these."""


@dataclass(frozen=True, slots=True)
class GatewayMeans:
    """Mean seconds by the gateway, over all requests: one without a phase counts as 0."""

    queue: float
    prefill: float
    handoff: float
    first: float
    """From the complete request to the first event."""
    split: float = 1.0
    """Share of the requests that had a P."""
    alone: float = 0.0
    """From the end of the queue to the first event, of requests that had none."""

    @property
    def decode(self) -> float:
        """D's part: from P's answer to the first event, and all of it without a P.

        In push orders D is called beside P, or before it, and its wait overlaps with the prefill.
        """
        return min(self.handoff, max(0.0, self.first - self.queue - self.prefill - self.alone)) + self.alone


def from_records(records: Sequence[Record]) -> GatewayMeans | None:
    """The means of the requests whose answers have `server-timing` with all phases; None if none has."""
    timed = [record.timing for record in records if record.failure is None and "first" in record.timing]
    if not timed:
        return None

    def of(name: str) -> float:
        return mean([each.get(name, 0.0) for each in timed])

    alone = [0.0 if "prefill" in each else each["first"] - each.get("queue", 0.0) for each in timed]
    split = mean([float("prefill" in each) for each in timed])
    return GatewayMeans(of("queue"), of("prefill"), of("handoff"), of("first"), split, mean(alone))


def from_totals(grown: GatewayTotals) -> GatewayMeans | None:
    """The means by the gateway's histograms; None if it has served no stream. A phase that few had counts for all."""
    first = grown.phases.get("first_token")
    if first is None or first.count <= 0:
        return None

    def of(name: str) -> float:
        return grown.phases[name].total / first.count if name in grown.phases else 0.0

    split = min(1.0, grown.phases["prefill"].count / first.count) if "prefill" in grown.phases else 0.0
    found = GatewayMeans(of("queue"), of("prefill"), of("handoff"), of("first_token"), split)
    rest = found.first - found.queue - of("to_prefill") - found.prefill - found.handoff
    return replace(found, alone=max(0.0, rest) if split < _ALL else 0.0)


_ALL: Final = 0.995
"""Share of requests with a P from which all count as split: a retry or a probe may be counted once more."""


def of_split(
    ttft: float, decode: float, gateway: GatewayMeans, prefill_engines: EngineTotals, decode_engines: EngineTotals
) -> dict[Phase, float]:
    """The phases of split requests. Without the engines' counters, their queues count to the leg."""
    queue_at_prefill = min((prefill_engines.queue.mean or 0.0) * gateway.split, gateway.prefill)
    latency = prefill_engines.latency.mean
    leg = min(latency * gateway.split if latency is not None else gateway.prefill, gateway.prefill)
    first_step = min(decode_engines.prefill.mean or 0.0, gateway.decode)
    moves = (decode_engines.transfer + prefill_engines.transfer).mean or 0.0
    transfer = min(moves * gateway.split, gateway.decode - first_step)
    parts = {
        Phase.GATEWAY_QUEUE: gateway.queue,
        Phase.QUEUE: queue_at_prefill,
        Phase.PREFILL: max(0.0, leg - queue_at_prefill),
        Phase.TRANSFER: transfer,
        Phase.DECODE_QUEUE: gateway.decode - first_step - transfer,
        Phase.FIRST_STEP: first_step,
    }
    return _completed(parts, ttft, decode, gateway.first)


def of_whole(ttft: float, decode: float, gateway: GatewayMeans, engines: EngineTotals) -> dict[Phase, float]:
    """The phases of requests that one engine serves."""
    left = gateway.first - gateway.queue
    waits = min(engines.queue.mean or 0.0, left)
    prefill = min(engines.prefill.mean or 0.0, left - waits)
    parts = {Phase.GATEWAY_QUEUE: gateway.queue, Phase.QUEUE: waits, Phase.PREFILL: prefill}
    return _completed(parts, ttft, decode, gateway.first)


def _completed(parts: Mapping[Phase, float], ttft: float, decode: float, first: float) -> dict[Phase, float]:
    rest = {Phase.GATEWAY: first - sum(parts.values()), Phase.OUTSIDE: ttft - first, Phase.DECODE: decode}
    return {phase: {**parts, **rest}.get(phase, 0.0) for phase in Phase}


def adds_up(phases: Mapping[str, float]) -> bool:
    """Whether what the gateway measured is what the client measured, within 2 % or 2 ms."""
    whole = sum(phases.get(phase, 0.0) for phase in TO_FIRST_TOKEN)
    return abs(phases.get(Phase.OUTSIDE, 0.0)) <= max(TOLERANCE_SECONDS, TOLERANCE_SHARE * whole)
