"""An estimate of ratio and of the aggregated alternative, from live metrics alone, without a second arm. Pure.

One P prefills 1 / (seconds of a prefill) requests per second while it is busy, and a D with b sequences generates
b / (seconds of a step) tokens. Rates that match give the ratio. Of an aggregated engine, prefills take the share
rate * seconds of a prefill, and every decode of that time waits for them: TPOT grows by 1 / (1 - share).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from pdx_cli.bench.analysis.arms import Arm
from pdx_cli.bench.analysis.counters import EngineTotals, moved_share
from pdx_cli.bench.analysis.steps import Slo

LABEL = "Estimate from live metrics, not a measurement; `pdx bench --compare` measures."
_LEAST_REQUESTS = 20


@dataclass(frozen=True, slots=True)
class Live:
    """What a deployment did in an interval."""

    arm: Arm
    seconds: float
    prefill: EngineTotals
    """Of the P's, or of the aggregated engines."""
    decode: EngineTotals
    running: float
    """Mean requests that ran on each D, or on each aggregated engine."""


def advise(live: Live, slo: Slo) -> Iterator[str]:
    """Yield the sentences of the estimate."""
    yield LABEL
    engines = live.decode if live.arm.split else live.prefill
    requests = engines.prefill.count
    if requests < _LEAST_REQUESTS or live.seconds <= 0:
        seen = f"Only {requests:.0f} requests ended in {live.seconds:.0f} s"
        yield f"{seen}; wait for more traffic, or use a longer --duration."
        return
    rate = requests / live.seconds
    prompt = engines.prompt_tokens / requests
    answer = engines.generated_tokens / requests
    yield f"Seen: {rate:.2g} req/s, prompts of {prompt:.0f} tokens and answers of {answer:.0f} on average."
    yield from _split(live, rate, answer, slo) if live.arm.split else _whole(live, rate, answer, slo)


def _split(live: Live, rate: float, answer: float, slo: Slo) -> Iterator[str]:
    arm = live.arm
    prefill = live.prefill.prefill.mean or 0.0
    step = _step_seconds(live.decode, answer)
    busy = rate * prefill / arm.prefill
    took = f"({1000 * prefill:.0f} ms a prompt)"
    yield f"The prefill engines were busy for {100 * min(1.0, busy):.0f} % of the time {took}."
    share = moved_share(live.decode)
    if share is not None and share < 0.9:
        rest = "the decode engines computed the rest. Run `pdx doctor` first."
        yield f"Only {100 * share:.0f} % of the prompt tokens moved; {rest}"
    needed_d = rate * answer * step / max(1.0, live.running) if step else 0.0
    needed_p = rate * prefill
    if needed_p and needed_d:
        total = arm.prefill + arm.decode
        p = min(total - 1, max(1, round(total * needed_p / (needed_p + needed_d))))
        note = "as it is" if p == arm.prefill else f"instead of {arm.ratio}"
        yield f"Rates match at about prefill:decode {p}:{total - p}, {note}."
    yield from _interference(rate, prefill, step, arm.prefill + arm.decode, slo, "Aggregated on the same engines")


def _whole(live: Live, rate: float, answer: float, slo: Slo) -> Iterator[str]:
    prefill = live.prefill.prefill.mean or 0.0
    step = _step_seconds(live.prefill, answer)
    engines = max(1, live.arm.aggregated)
    share = min(0.99, rate * prefill / engines)
    yield f"Prefills take {100 * share:.0f} % of the engines' time ({1000 * prefill:.0f} ms a prompt)."
    alone = step * (1 - share)
    verdict = "keeps" if alone <= slo.tpot else "misses"
    yield f"Split, TPOT would be about {1000 * alone:.0f} ms instead of {1000 * step:.0f} ms and {verdict} the SLO."
    if engines > 1:
        p = min(engines - 1, max(1, round(engines * share)))
        yield f"Rates would match at about prefill:decode {p}:{engines - p}."
    if share < _LITTLE:
        yield "Prefills take little of the time, so splitting would change little."


_LITTLE = 0.1


def _interference(rate: float, prefill: float, step: float, engines: int, slo: Slo, who: str) -> Iterator[str]:
    share = rate * prefill / engines
    if share >= 1 or not step:
        yield f"{who}, prefills alone would take all of the time."
        return
    tpot = step / (1 - share)
    verdict = "keeps" if tpot <= slo.tpot else "misses"
    yield f"{who}, TPOT would be about {1000 * tpot:.0f} ms instead of {1000 * step:.0f} ms and {verdict} the SLO."


def _step_seconds(engines: EngineTotals, answer: float) -> float:
    """Seconds for each token: the time after the first token, over the tokens after it."""
    if answer <= 1 or engines.latency.mean is None:
        return 0.0
    before = (engines.queue.mean or 0.0) + (engines.prefill.mean or 0.0)
    return max(0.0, engines.latency.mean - before) / (answer - 1)
