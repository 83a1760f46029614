"""Which conditions would change a verdict, computed from the two best arms, as clauses with numbers. Pure."""

from collections.abc import Iterator
from typing import Final

from pdx_cli.bench.analysis.arms import ArmResult
from pdx_cli.bench.analysis.bottleneck import Bottleneck
from pdx_cli.bench.analysis.phases import HAND_OFF, Phase
from pdx_cli.bench.analysis.search import GOAL
from pdx_cli.bench.analysis.steps import Slo, StepResult

_MOST: Final = 3.0
"""A looser SLO is named up to this factor; beyond it, a queue grew as long as the step lasted."""


def changes(winner: ArmResult, loser: ArmResult, slo: Slo) -> list[str]:
    """Return the clauses. Each follows from what was measured at a rate near the winner's goodput."""
    found = [*_looser_slo(winner, loser, slo)]
    if winner.arm.split:
        found += _slower_hand_off(winner, slo)
        found += _shorter_prompts(winner)
    else:
        found += _relief(loser)
    return found


def _looser_slo(winner: ArmResult, loser: ArmResult, slo: Slo) -> Iterator[str]:
    """From which SLO the loser would serve as many."""
    step = _nearest(loser, winner.goodput)
    if step is None or step.stopped:
        return
    permitted = (1 - GOAL) * step.count
    if step.tpot_misses > permitted >= step.ttft_misses and step.tpot.p90 <= _MOST * slo.tpot:
        yield f"a TPOT SLO above {1000 * step.tpot.p90:.0f} ms instead of {1000 * slo.tpot:g} ms"
    if step.ttft_misses > permitted >= step.tpot_misses and step.ttft.p90 <= _MOST * slo.ttft:
        yield f"a TTFT SLO above {step.ttft.p90:.2g} s instead of {slo.ttft:g} s"


def _slower_hand_off(winner: ArmResult, slo: Slo) -> Iterator[str]:
    step = winner.best
    if step is None or not step.phases or step.ttft.p90 > slo.ttft:
        return
    hand_off = sum(step.phases.get(phase, 0.0) for phase in HAND_OFF)
    yield f"a hand-off that takes more than {1000 * (hand_off + slo.ttft - step.ttft.p90):.0f} ms"


def _shorter_prompts(winner: ArmResult) -> Iterator[str]:
    """A prefill takes time in proportion to its prompt, most of a hand-off does not."""
    step = winner.best
    if step is None or not step.phases or winner.arm.above or not step.count:
        return
    prefill = step.phases.get(Phase.PREFILL, 0.0)
    hand_off = sum(step.phases.get(phase, 0.0) for phase in (*HAND_OFF, Phase.FIRST_STEP))
    length = step.prompt_tokens / max(1, step.count) * hand_off / prefill if prefill else 0.0
    if 1 <= length < step.prompt_tokens / step.count:
        yield f"prompts below about {length:.0f} tokens, whose hand-off would take as long as their prefill"


def _relief(loser: ArmResult) -> Iterator[str]:
    step = loser.best or min(loser.steps, key=lambda each: each.rate, default=None)
    moves = step.phases.get(Phase.TRANSFER, 0.0) if step else 0.0
    match loser.bottleneck:
        case Bottleneck.TRANSFER:
            yield f"a faster link (the KV of one request takes {1000 * moves:.0f} ms)"
        case Bottleneck.PREFILL:
            yield f"more prefill engines for each decode engine than {loser.arm.ratio}"
        case Bottleneck.DECODE:
            yield f"more decode engines for each prefill engine than {loser.arm.ratio}, or longer prompts"
        case Bottleneck.GATEWAY:
            yield "more CPU or workers for the gateway (spec.gateway.workers)"
        case _:
            return


def _nearest(result: ArmResult, rate: float) -> StepResult | None:
    """The step whose rate is nearest, within a tenth below and a third above."""
    near = [step for step in result.steps if 0.9 <= step.rate / rate <= 1.34] if rate else []
    return min(near, key=lambda step: abs(step.rate - rate), default=None)
