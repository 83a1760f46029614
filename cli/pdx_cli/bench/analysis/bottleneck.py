"""What limits an arm: the part whose time grows when the rate exceeds the goodput. Pure."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

from pdx_cli.bench.analysis.phases import TO_FIRST_TOKEN, TOLERANCE_SECONDS, TOLERANCE_SHARE, Phase
from pdx_cli.bench.analysis.search import GOAL
from pdx_cli.bench.analysis.steps import StepResult


class Bottleneck(StrEnum):
    """What limits the goodput."""

    PREFILL = "prefill compute"
    DECODE = "decode compute"
    TRANSFER = "transfer"
    ENGINES = "the engines' compute"
    """Of an aggregated arm: prompts wait."""
    INTERFERENCE = "prefills in the steps of decodes"
    """Of an aggregated arm: TPOT is missed."""
    GATEWAY = "gateway or network"
    CLIENT = "load generator"
    NONE = "nothing"
    """No rate was too high."""
    UNCLEAR = "unclear"
    """Nothing reports phases."""


_ENGINES: Final[Mapping[Bottleneck, tuple[Phase, ...]]] = {
    Bottleneck.PREFILL: (Phase.QUEUE, Phase.PREFILL),
    Bottleneck.TRANSFER: (Phase.TRANSFER,),
    Bottleneck.DECODE: (Phase.DECODE_QUEUE, Phase.FIRST_STEP),
}
_GATEWAY: Final = (Phase.GATEWAY, Phase.OUTSIDE)


_BUSY: Final = 0.7
"""Share of the time from which a P that computes counts as full: the gateway queues for it, and not for a D."""


def bottleneck(steps: Sequence[StepResult], prefills: int) -> Bottleneck:
    """Return what limits an arm, by its step just above the goodput and by its calmest step.

    `prefills`: how many P's it has; 0: it is aggregated.
    """
    busy = min((step for step in steps if step.share < GOAL), key=lambda step: step.rate, default=None)
    if busy is None:
        return Bottleneck.NONE
    if not busy.is_valid:
        return Bottleneck.CLIENT
    if not busy.phases:
        return Bottleneck.UNCLEAR
    calm = min((step for step in steps if step.phases), key=lambda step: step.rate)
    late = busy.ttft_misses >= busy.tpot_misses
    if _is_gateway(calm, busy, late=late):
        return Bottleneck.GATEWAY
    if late:
        return _slowest(calm, busy, prefills) if prefills else Bottleneck.ENGINES
    return Bottleneck.DECODE if prefills else Bottleneck.INTERFERENCE


def _is_gateway(calm: StepResult, busy: StepResult, *, late: bool) -> bool:
    """Whether what the gateway and the network take has grown, and by more than what any engine takes.

    The gateway's queue counts for the engines: it holds what they have no room for. Where TPOT is missed, each token
    must have lost about a token's time on the way, and the first token no less.
    """
    grown = _grown(calm, busy, _GATEWAY)
    least = _measurable(busy) if late else max(TOLERANCE_SECONDS, busy.tpot.p50)
    engines = max(_grown(calm, busy, parts) for parts in _ENGINES.values())
    return grown > least and grown > engines + _grown(calm, busy, (Phase.GATEWAY_QUEUE,))


def _slowest(calm: StepResult, busy: StepResult, prefills: int) -> Bottleneck:
    """The engines, or the link between them, whose time has grown most, the gateway's queue for them included."""
    grown = {part: _grown(calm, busy, phases) for part, phases in _ENGINES.items()}
    if busy.rate * calm.phases.get(Phase.PREFILL, 0.0) >= _BUSY * prefills:
        full = Bottleneck.PREFILL
    elif grown[Bottleneck.TRANSFER] > max(grown[Bottleneck.DECODE], _measurable(busy)):
        full = Bottleneck.TRANSFER
    else:
        full = Bottleneck.DECODE
    grown[full] += _grown(calm, busy, (Phase.GATEWAY_QUEUE,))
    return max(grown, key=lambda part: grown[part])


def _measurable(step: StepResult) -> float:
    """Seconds of TTFT that are more than the tolerance of the measurement."""
    return max(TOLERANCE_SECONDS, TOLERANCE_SHARE * sum(step.phases.get(phase, 0.0) for phase in TO_FIRST_TOKEN))


def _grown(calm: StepResult, busy: StepResult, parts: tuple[Phase, ...]) -> float:
    """By how many seconds parts have grown; where nothing has, as between two similar rates, how long they take."""
    changes: Mapping[str, float] = {
        phase: busy.phases.get(phase, 0.0) - calm.phases.get(phase, 0.0) for phase in TO_FIRST_TOKEN
    }
    found = changes if max(changes.values()) > _measurable(busy) else busy.phases
    return sum(found.get(part, 0.0) for part in parts)
