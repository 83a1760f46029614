"""D generates for long and shows no output: the deadlines of hand-off and first event do not end its wait."""

from dataclasses import replace
from typing import Final

import pytest

from pdx_api.names import PrefillFailure
from tests.unit.proxy.handoff.situations import Answers, Handshake, Metrics, Script, Wiring
from tests.unit.proxy.handoff.virtual_time import run_virtually
from tests.unit.proxy.handoff.world import run

SILENT: Final = Script(
    Wiring.PUSH_DECODE_FIRST,
    stream=True,
    prefill=(1.0, Answers.OK),
    again=Answers.OK,
    decode=(40.0, Answers.OK),
    settling=Answers.OK,
    metrics=Metrics.IDLE,
    handshake=Handshake.NONE,
    dies_after=None,
    leaves_at=None,
    policy=PrefillFailure.RETRY,
    budget=True,
)
"""Longer than both deadlines, of 25 and 30 s."""
PUSHES: Final = [wiring for wiring in Wiring if "Storage" not in wiring and wiring not in (Wiring.PULL,)]
PUSHES.remove(Wiring.POOL_THAT_FINISHES)
OVERDUE: Final = "d DeadlineExceeded begun=True"


def _result(script: Script, *, hidden: bool, suspended: bool = False, watched: bool = False) -> str:
    notes = run_virtually(run(script, hidden=hidden, suspended=suspended, watched=watched))
    return next(note.partition("result: ")[2] for note in notes if "result: " in note)


@pytest.mark.parametrize("metrics", Metrics)
@pytest.mark.parametrize("wiring", Wiring)
def test_a_response_that_may_be_silent_is_not_late(wiring: Wiring, metrics: Metrics) -> None:
    """Also if D's metrics show that a request waits for KV, as long as the pair may move KV."""
    script = replace(SILENT, wiring=wiring, metrics=metrics)
    assert _result(script, hidden=True) == "200, split"
    assert _result(script, hidden=False).startswith(OVERDUE)


@pytest.mark.parametrize("metrics", Metrics)
@pytest.mark.parametrize("wiring", PUSHES, ids=lambda wiring: wiring.name)
def test_it_is_late_if_its_pair_moves_no_kv(wiring: Wiring, metrics: Metrics) -> None:
    """Unless D's metrics have shown that it has received its own."""
    found = _result(replace(SILENT, wiring=wiring, metrics=metrics), hidden=True, suspended=True)
    proven = metrics in (Metrics.IDLE, Metrics.DEFERRED_UNTIL_4)
    assert found == "200, split" if proven else found.startswith(OVERDUE)


@pytest.mark.parametrize("metrics", Metrics)
@pytest.mark.parametrize("hidden", [False, True], ids=["stream", "silent"])
def test_a_pull_is_late_only_while_d_waits_for_kv(hidden: bool, metrics: Metrics) -> None:
    """D also queues requests. A pair within which a hand-off has just failed may still move KV."""
    script = replace(SILENT, wiring=Wiring.PULL, metrics=metrics, decode=(28.0, Answers.OK))
    found = _result(script, hidden=hidden, suspended=True)
    assert found.startswith(OVERDUE) if metrics is Metrics.DEFERRED else found == "200, split"
    assert _result(script, hidden=hidden, suspended=True, watched=True) == "200, split"


@pytest.mark.parametrize("metrics", Metrics)
def test_a_slow_pull_has_its_pair_probed(metrics: Metrics) -> None:
    """Each second after the deadline of a hand-off, if D reports no transfers. D is queried once the KV is due."""
    script = replace(SILENT, wiring=Wiring.PULL, metrics=metrics, decode=(29.5, Answers.OK))
    notes = run_virtually(run(script))
    assert sum("SlowHandoff" in note for note in notes) == (5 if metrics is Metrics.DEFERRED else 0)
    queries = 0 if metrics is Metrics.SILENT else 1 if metrics in (Metrics.IDLE, Metrics.DEFERRED_UNTIL_4) else 20
    assert sum("answered metrics" in note for note in notes) == queries
