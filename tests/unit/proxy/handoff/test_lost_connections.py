"""P's connection is lost after P has finished, while D waits: D's wait ends only if P has died."""

from dataclasses import replace
from typing import Final

import pytest

from tests.unit.proxy.handoff.situations import Answers, Script, Wiring
from tests.unit.proxy.handoff.test_silence import PUSHES, SILENT
from tests.unit.proxy.handoff.virtual_time import run_virtually
from tests.unit.proxy.handoff.world import run

_DECODES: Final = {"first-event-after-the-close": (3.0, Answers.OK), "first-event-before-it": (0.1, Answers.OK)}


def _script(wiring: Wiring, stream: bool, decode: tuple[float, Answers]) -> Script:
    return replace(SILENT, wiring=wiring, stream=stream, decode=decode, dies_after=0.5)


@pytest.mark.parametrize("decode", _DECODES.values(), ids=_DECODES)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("wiring", PUSHES, ids=lambda wiring: wiring.name)
def test_a_p_that_only_closes_its_connection_lives(wiring: Wiring, stream: bool, decode: tuple[float, Answers]) -> None:
    script = _script(wiring, stream, decode)
    notes = run_virtually(run(script, closes_only=True))
    assert any(note.endswith("p closes") for note in notes)
    assert any(note.endswith("result: 200, split") for note in notes), notes
    served = run_virtually(run(replace(script, dies_after=None)))
    assert [note for note in notes if not note.endswith("p closes")] == served


@pytest.mark.parametrize("wiring", PUSHES, ids=lambda wiring: wiring.name)
def test_a_p_that_has_died_ends_the_wait(wiring: Wiring) -> None:
    notes = run_virtually(run(_script(wiring, True, (3.0, Answers.OK))))
    (result,) = (note for note in notes if "result: " in note)
    assert result.startswith("1.5")
    assert "LostConnection" in result
