"""Where a prompt is prefilled under an SLO, as a table; limits of batches; shares of prefills."""

from math import exp

import pytest

from pdx_proxy.balancing.decode.placement import (
    Candidate,
    Place,
    PrefillShare,
    PrefillWait,
    Targets,
    batch_limit,
    place,
)

SLO = Targets(2.0, 0.05)


def candidate(
    wait: float, seconds: float | None = None, itl: float = 0.02, share: float = 0.0, *, idle: bool = False
) -> Candidate:
    """A D whose requests take 10 s."""
    prefills = PrefillShare()
    prefills.measure(10.0)
    if share:
        prefills.add(share * 10.0, 0.0)
    return Candidate(wait, wait if seconds is None else seconds, itl, prefills, idle)


@pytest.mark.parametrize(
    ("candidates", "wait", "own", "waited", "expected"),
    [
        pytest.param([candidate(0.5)], 0.4, 0.4, 0.0, None, id="P is sooner"),
        pytest.param([candidate(0.5)], 0.51, 0.4, 0.0, None, id="equal"),
        pytest.param([candidate(0.5)], 0.8, 0.4, 0.0, (0, Place.SOONER), id="D is sooner"),
        pytest.param([candidate(0.5)], 2.5, 0.4, 0.0, (0, Place.BURST), id="P would be late"),
        pytest.param([candidate(0.5)], 1.0, 0.4, 1.5, (0, Place.BURST), id="late after a wait in the queue"),
        pytest.param([candidate(0.5), candidate(0.3), candidate(0.4)], 2.5, 0.4, 0.0, (1, Place.BURST), id="the first"),
        pytest.param([], 9.0, 0.4, 0.0, None, id="no D has room"),
        pytest.param([candidate(1.9)], 2.1, 1.9, 0.0, (0, Place.SOONER), id="late by its own length, not by a wait"),
        pytest.param([candidate(2.5)], 3.5, 2.6, 0.0, (0, Place.SOONER), id="longer than the TTFT anywhere"),
        pytest.param([candidate(0.5, itl=0.046)], 9.0, 0.4, 0.0, None, id="its ITL uses the TPOT up"),
        pytest.param([candidate(0.5, share=0.6)], 9.0, 0.4, 0.0, None, id="its prefills use the TPOT up"),
        pytest.param([candidate(0.5, share=0.4)], 9.0, 0.4, 0.0, (0, Place.BURST), id="they leave room"),
        pytest.param([candidate(0.5, share=0.4)], 0.8, 0.4, 0.0, None, id="half of the room while P is in time"),
        pytest.param([candidate(6.0, share=0.0)], 9.0, 0.4, 0.0, None, id="a prefill of half a stream's time"),
        pytest.param([candidate(6.0, idle=True)], 9.0, 0.4, 0.0, (0, Place.BURST), id="no stream to slow down"),
        pytest.param([candidate(0.5, itl=0.046), candidate(0.9)], 9.0, 0.4, 0.0, (1, Place.BURST), id="who may"),
        pytest.param([candidate(3.0)], 9.0, 0.4, 0.0, (0, Place.BURST), id="late at D too, but the queue shrinks"),
    ],
)  # fmt: skip
def test_where_a_prompt_is_prefilled(
    candidates: list[Candidate], wait: float, own: float, waited: float, expected: tuple[int, Place] | None
) -> None:
    assert place(candidates, PrefillWait(wait, own), waited, SLO, 0.0) == expected


@pytest.mark.parametrize(
    ("base", "slope", "share", "expected"),
    [
        pytest.param(0.02, 0.0001, 0.0, 250.0, id="0.9 of the objective"),
        pytest.param(0.02, 0.0001, 0.2, 160.0, id="prefills take a share"),
        pytest.param(0.044, 0.001, 0.0, 4.0, id="never less than four"),
        pytest.param(0.02, 0.0001, 0.9, 4.0, id="prefills take nearly all"),
        pytest.param(0.0451, 0.0001, 0.0, None, id="too slow with any batch: a limit helps nobody"),
        pytest.param(0.02, 0.0, 0.0, None, id="its batch costs nothing"),
    ],
)
def test_the_largest_batch_that_keeps_the_tpot(base: float, slope: float, share: float, expected: float | None) -> None:
    found = batch_limit(base, slope, share, 0.05)
    assert found == (None if expected is None else pytest.approx(expected))


def test_prefills_of_the_past_count_less() -> None:
    share = PrefillShare()
    share.measure(4.0)
    share.add(2.0, 10.0)
    assert share.at(10.0) == pytest.approx(0.5)
    assert share.at(14.0) == pytest.approx(0.5 * exp(-1))
    share.add(1.0, 14.0)
    assert share.at(14.0) == pytest.approx(0.5 * exp(-1) + 0.25)


def test_a_steady_stream_of_prefills_is_its_share() -> None:
    share = PrefillShare()
    for tenth in range(1000):
        share.add(0.03, tenth / 10)
    assert share.at(99.9) == pytest.approx(0.3, rel=0.02)


def test_what_was_prefilled_between_two_reports() -> None:
    share = PrefillShare()
    share.add(3.0, 0.0)
    assert share.worked(3.0) == 0.0
    assert share.worked(2.2) == pytest.approx(0.8)
    share.add(1.0, 1.0)
    assert share.worked(0.0) == pytest.approx(3.2)


@pytest.mark.parametrize(("ttft", "tpot"), [(0.0, 0.0), (1.0, 0.0), (0.0, 0.05)])
def test_prompts_are_placed_only_with_both_objectives(ttft: float, tpot: float) -> None:
    assert not Targets(ttft, tpot).places
    assert SLO.places
