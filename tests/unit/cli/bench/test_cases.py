"""Eight cases whose answers are certain, on simulated engines: the verdict, the ratio and the bottleneck.

One seed each, with a quarter or half of the requests, is quick enough for every run. `make soak` runs ten
seeds with all requests.
"""

from dataclasses import dataclass, replace
from typing import Any

import pytest

from pdx_cli.bench.analysis.arms import Arm
from pdx_cli.bench.analysis.bottleneck import Bottleneck
from pdx_cli.bench.analysis.steps import Slo
from pdx_cli.bench.analysis.verdict import Kind
from tests.unit.cli.bench.simulated import Case, Lengths

pytestmark = pytest.mark.timeout(900)
SEEDS = 10
RUNS = [
    pytest.param(0, True, id="quick"),
    *(pytest.param(seed, False, marks=pytest.mark.soak, id=f"{seed}") for seed in range(SEEDS)),
]
BUSY = (("step_sequence_seconds", 5e-4),)
"""Sequences cost more than in the profile, so that fewer requests saturate an engine."""
SLOW_LINK = (*BUSY, ("engine_gigabytes_per_second", 2.0))


def aggregated(chunk: int) -> Arm:
    return Arm(f"aggregated 4, chunks of {chunk}", aggregated=4, chunk=chunk)


def split(prefill: int, decode: int, above: int = 0) -> Arm:
    name = f"P:D {prefill}:{decode}{f' above {above}' if above else ''}"
    return Arm(name, split=True, prefill=prefill, decode=decode, above=above)


def equal(prompt: int, output: int) -> Lengths:
    return Lengths(((1.0, prompt, output),))


@dataclass(frozen=True)
class Expected:
    case: Case
    kind: Kind
    winner: str
    limits: tuple[tuple[str, Bottleneck], ...]
    """Arm -> its bottleneck."""
    parts: tuple[str, ...]
    """What the verdict contains."""

    def run_case(self, *, quick: bool) -> Case:
        """The case, if it is to be quick with a quarter of the requests, but at least 100; with half if they differ."""
        least = self.case.requests // (4 if len(self.case.lengths.choices) == 1 else 2)
        return replace(self.case, requests=max(100, least)) if quick else self.case


def usual(*arms: Arm, lengths: Lengths, **more: Any) -> Case:
    """A case with the usual objectives, rate and requests."""
    fields = {"slo": Slo(2.0, 0.03), "start": 2.0, "requests": 400, "changes": BUSY, **more}
    return Case(arms, lengths, **fields)


CASES = {
    "P undersized": Expected(
        usual(aggregated(512), split(1, 3), split(2, 2), lengths=equal(4000, 150)),
        Kind.PAYS,
        "P:D 2:2",
        (("P:D 1:3", Bottleneck.PREFILL),),
        ("at P:D 2:2, not at 1:3", "At P:D 1:3, the prefill engines are short"),
    ),
    "D undersized": Expected(
        usual(aggregated(512), split(3, 1), split(2, 2), lengths=equal(3000, 200)),
        Kind.PAYS,
        "P:D 2:2",
        (("P:D 3:1", Bottleneck.DECODE),),
        ("at P:D 2:2, not at 3:1", "At P:D 3:1, the decode engines are short"),
    ),
    "slow link": Expected(
        usual(aggregated(512), split(2, 2), lengths=equal(4000, 150), changes=SLOW_LINK),
        Kind.DOES_NOT_PAY,
        "aggregated 4, chunks of 512",
        (("P:D 2:2", Bottleneck.TRANSFER),),
        ("At P:D 2:2, the transfer of KV is the limit", "a faster link"),
    ),
    "a gateway with a CPU quota": Expected(
        usual(aggregated(512), split(2, 2), lengths=equal(4000, 150), start=1.0, gateway_seconds=0.4),
        Kind.DOES_NOT_PAY,
        "aggregated 4, chunks of 512",
        (("P:D 2:2", Bottleneck.GATEWAY), ("aggregated 4, chunks of 512", Bottleneck.GATEWAY)),
        ("the gateway, or the network before it, is the limit", "more CPU or workers for the gateway"),
    ),
    "prompts too short": Expected(
        usual(
            *(aggregated(512), split(1, 3), split(2, 2)),
            lengths=equal(128, 200),
            start=5.0,
            requests=600,
            changes=(("step_sequence_seconds", 1e-3),),
        ),
        Kind.DOES_NOT_PAY,
        "aggregated 4, chunks of 512",
        (("P:D 1:3", Bottleneck.DECODE),),
        ("The prompts are too short: the prefill engines are busy", "or longer prompts"),
    ),
    "only long prompts pay": Expected(
        usual(
            *(aggregated(512), split(1, 3), split(1, 3, above=1024)),
            lengths=Lengths(((0.91, 500, 100), (0.09, 12_000, 100))),
            slo=Slo(2.2, 0.03),
            requests=1600,  # as few as 9 % are long: with fewer requests, the queue of P is not typical for every seed
        ),
        Kind.PAYS,
        "P:D 1:3 above 1024",
        (("P:D 1:3", Bottleneck.PREFILL),),
        ("Below 1024 prompt tokens it does not: write spec.routing.disaggregateAboveTokens: 1024",),
    ),
    "interference that chunking cures": Expected(
        usual(aggregated(4096), aggregated(512), split(2, 2), lengths=equal(8000, 30), slo=Slo(5.0, 0.0605)),
        Kind.DOES_NOT_PAY,
        "aggregated 4, chunks of 512",
        (("aggregated 4, chunks of 4096", Bottleneck.INTERFERENCE),),
        ("chunks of 512 tokens are best",),
    ),
    "equal": Expected(
        usual(aggregated(512), split(2, 2), lengths=equal(2000, 300)),
        Kind.NO_DIFFERENCE,
        "",
        (),
        ("No measurable difference",),
    ),
}


@pytest.mark.parametrize(("seed", "quick"), RUNS)
@pytest.mark.parametrize("name", CASES)
def test_the_verdict(name: str, seed: int, *, quick: bool) -> None:
    expected = CASES[name]
    verdict, results = expected.run_case(quick=quick).verdict(seed)
    assert verdict.kind is expected.kind, verdict
    assert verdict.winner == expected.winner, verdict
    for arm, limit in expected.limits:
        assert results[arm].bottleneck is limit, (arm, verdict)
    for part in expected.parts:
        assert part in str(verdict)
    assert "{" not in str(verdict)
