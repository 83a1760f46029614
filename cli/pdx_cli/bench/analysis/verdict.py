"""The verdict: whether splitting pays, by how much, at which ratio, and what would change that. Numbers in, text out.

A difference counts only if it is larger than the spread of the repeats. Pure.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pdx_cli.bench.analysis.arms import ArmResult
from pdx_cli.bench.analysis.bottleneck import Bottleneck
from pdx_cli.bench.analysis.conditions import changes
from pdx_cli.bench.analysis.search import PRECISION
from pdx_cli.bench.analysis.steps import Slo

_RESOLUTION: Final = PRECISION - 1
"""Least difference, as a share: the search ends when two rates are so near."""


class Kind(StrEnum):
    """What the comparison has shown."""

    PAYS = "pays"
    DOES_NOT_PAY = "does not pay"
    NO_DIFFERENCE = "no measurable difference"
    INVALID = "invalid"
    """The result says nothing about splitting."""
    ONE_SIDED = "one sided"
    """Only arms that split were measured, or only arms that do not."""
    NOTHING_GOOD = "nothing good"
    """No arm met the SLO at any rate."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a comparison."""

    kind: Kind
    sentences: tuple[str, ...]
    winner: str = ""
    """Name of the best arm; empty unless one is measurably better."""
    factor: float = 1.0
    """Goodput of the best arm that splits, over that of the best that does not."""

    def __str__(self) -> str:
        return " ".join(self.sentences)


def measurably_more(one: ArmResult, other: ArmResult) -> bool:
    """Whether the first goodput is greater by more than the spreads of both, which add as independent errors do."""
    noise = max(math.hypot(one.spread, other.spread), _RESOLUTION * one.goodput)
    return one.goodput - other.goodput > noise


def judge(results: Sequence[ArmResult], slo: Slo) -> Verdict:
    """Compare the arms."""
    caveats = tuple(_caveats(results))
    usable = [each for each in results if each.is_valid]
    whole = _best([each for each in usable if not each.arm.split])
    split = _best([each for each in usable if each.arm.split])
    if len(usable) < len(results) and (whole is None or split is None):
        return Verdict(Kind.INVALID, caveats)
    if whole is None or split is None:
        return Verdict(Kind.ONE_SIDED, (*_one_sided(whole or split), *caveats))
    if not whole.goodput and not split.goodput:
        return Verdict(Kind.NOTHING_GOOD, (f"No arm serves 90 % of the requests within {slo}, at any rate.", *caveats))
    if any(each.shares_cores for each in usable):
        return Verdict(Kind.INVALID, caveats, factor=_factor(split, whole))
    return _compared(split, whole, usable, slo, caveats)


def _compared(
    split: ArmResult, whole: ArmResult, usable: Sequence[ArmResult], slo: Slo, caveats: tuple[str, ...]
) -> Verdict:
    factor = _factor(split, whole)
    numbers = f"{_rate(split)} against {_rate(whole)}"
    if measurably_more(split, whole):
        others = _other_ratios(split, whole, usable)
        text = f"Splitting pays: {_times(split, whole)} good requests ({numbers}) at {split.arm.name}{others}."
        found = [text, *_threshold(split, usable)]
        kind, winner = Kind.PAYS, split
    elif measurably_more(whole, split):
        text = f"Splitting does not pay: {whole.arm.name} serves {_times(whole, split)} the good requests ({numbers})."
        found = [text, *_why_not(split, whole)]
        kind, winner = Kind.DOES_NOT_PAY, whole
    else:
        spread = max(split.spread, whole.spread)
        text = f"No measurable difference: {numbers}; the repeats of one arm differ by up to {spread:.2g} req/s."
        return Verdict(Kind.NO_DIFFERENCE, (text, *_short_ratios(usable, split), *caveats), factor=factor)
    found += [*_short_ratios(usable, split), *_chunk(whole, usable)]
    if conditions := changes(winner, whole if winner is split else split, slo):
        found.append(f"What would change it: {'; '.join(conditions)}.")
    return Verdict(kind, (*found, *caveats), winner.arm.name, factor)


def _best(results: Sequence[ArmResult]) -> ArmResult | None:
    return max(results, key=lambda each: each.goodput, default=None)


def _factor(split: ArmResult, whole: ArmResult) -> float:
    return split.goodput / whole.goodput if whole.goodput else float("inf")


def _times(more: ArmResult, less: ArmResult) -> str:
    return f"x{more.goodput / less.goodput:.2f}" if less.goodput else "all of"


def _rate(result: ArmResult) -> str:
    return f"{result.goodput:.3g} ± {result.spread / 2:.2g} req/s"


def _other_ratios(split: ArmResult, whole: ArmResult, usable: Sequence[ArmResult]) -> str:
    """The ratios at which splitting is not measurably better than the best aggregated arm."""
    others = [
        each.arm.ratio
        for each in usable
        if each.arm.split and each.arm.ratio != split.arm.ratio and not measurably_more(each, whole)
    ]
    return f", not at {' or '.join(dict.fromkeys(others))}" if others else ""


def _threshold(split: ArmResult, usable: Sequence[ArmResult]) -> Iterator[str]:
    """From arms that split only long prompts, and their counterparts of the same ratio that split all."""
    above = split.arm.above
    all_split = [each for each in usable if each.arm.split and each.arm.ratio == split.arm.ratio and not each.arm.above]
    if above and all_split and measurably_more(split, all_split[0]):
        yield (
            f"Below {above} prompt tokens it does not: write spec.routing.disaggregateAboveTokens: {above} "
            f"(splitting every prompt: {_rate(all_split[0])})."
        )


def _chunk(whole: ArmResult, usable: Sequence[ArmResult]) -> Iterator[str]:
    """Whether the chunks decide how good the aggregated arm is."""
    worse = [each for each in usable if not each.arm.split and measurably_more(whole, each)]
    if worse and whole.arm.chunk is not None:
        steps, flag = "", ""
        if whole.arm.interval:
            steps = f" every {whole.arm.interval} steps"
            flag = f" and --prefill-schedule-interval {whole.arm.interval} in spec.aggregated.args"
        yield (
            f"Among the aggregated arms, chunks of {whole.arm.chunk} tokens{steps} are best "
            f"(spec.aggregated.chunkedPrefill.maxBatchedTokens{flag}; {worse[0].arm.name}: {_rate(worse[0])})."
        )


_SHORT: Final = {
    Bottleneck.PREFILL: "the prefill engines are short",
    Bottleneck.DECODE: "the decode engines are short",
    Bottleneck.TRANSFER: "the transfer of KV is the limit",
    Bottleneck.GATEWAY: "the gateway, or the network before it, is the limit",
}


def _short_ratios(usable: Sequence[ArmResult], split: ArmResult) -> Iterator[str]:
    """What limits each arm that splits."""
    for each in usable:
        if each.arm.split and each.bottleneck in _SHORT and (each is split or each.arm.ratio != split.arm.ratio):
            yield f"At {each.arm.name}, {_SHORT[each.bottleneck]}."


def _why_not(split: ArmResult, whole: ArmResult) -> Iterator[str]:
    best = split.best
    if best is None:
        yield f"{split.arm.name} serves 90 % within the SLO at no rate."
        return
    prefill = best.phases.get("prefill")
    if split.bottleneck is Bottleneck.DECODE and prefill is not None and split.arm.prefill:
        busy = min(1.0, best.rate * prefill / split.arm.prefill)
        if busy < _IDLE:
            yield f"The prompts are too short: the prefill engines are busy for about {100 * busy:.0f} % of the time."


_IDLE: Final = 0.6
"""Share of the time below which a P that is not the bottleneck counts as idle."""


def _one_sided(result: ArmResult | None) -> Iterator[str]:
    if result is None:
        return
    if not any(step.count for step in result.steps):
        yield f"{result.arm.name} had no request that counts: raise --rate, or lengthen --duration."
        return
    at_what = f"serves {_rate(result)} within the SLO" if result.goodput else "meets the SLO at no measured rate"
    limits = {Bottleneck.NONE: "; no measured rate was too high", Bottleneck.UNCLEAR: ""}
    yield f"{result.arm.name} {at_what}{limits.get(result.bottleneck, f'; {result.bottleneck} is the limit')}."
    yield "Whether splitting pays needs both arms: use --compare."


def _caveats(results: Sequence[ArmResult]) -> Iterator[str]:
    late = [each.arm.name for each in results if not all(step.is_valid for step in each.steps)]
    if late:
        names = " and ".join(late)
        yield f"Invalid: the load generator was the limit for {names}; run it on a machine with free cores."
    if missing := [each for each in results if not each.goodputs]:
        yield (
            "; ".join(f"{each.arm.name} was not measured: {each.problem or 'it was interrupted'}" for each in missing)
            + "."
        )
    for reason in dict.fromkeys(each.shares_cores for each in results if each.shares_cores):
        yield f"This says nothing about splitting: {reason}."
    if partial := [each for each in results if each.goodputs and each.problem]:
        yield "; ".join(f"{each.arm.name}: {each.problem}" for each in partial) + "."
