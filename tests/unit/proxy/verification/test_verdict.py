"""What an answer proves about a pair, and the finding about all pairs."""

import json
from dataclasses import replace
from typing import Any

import pytest

from pdx_api.verification import Cause, Finding, Verdict
from pdx_proxy.endpoints.endpoint import Names, State
from pdx_proxy.verification.record import Record, Result, names_of
from pdx_proxy.verification.verdict import (
    UNANSWERED_PROBES,
    Answer,
    Unanswered,
    count_unanswered,
    doubt,
    finding_of,
    judge,
    next_record,
    present_verdict,
    read_answer,
)
from tests.unit.proxy.verification.pools import names, pairs_of


def answer(cached: int | None, *tokens: str, prompt: int = 300, tops: tuple[dict[str, float], ...] = ()) -> Answer:
    return Answer(prompt, cached, tokens or ("a", "b"), tops)


NEAR = ({"a": -1.0, "x": -1.3},)
FAR = ({"a": -1.0, "x": -3.0},)


@pytest.mark.parametrize(
    ("split", "alone", "result"),
    [
        (answer(300), answer(0), Result.MOVED),
        (answer(299), None, Result.MOVED),
        (answer(256), answer(0), Result.MOVED),
        (answer(149), answer(0), Result.RECOMPUTED),
        (answer(0), None, Result.RECOMPUTED),
        (answer(None), answer(None), Result.NOT_REPORTED),
        (answer(300, "x", "b"), answer(0, "a", "b"), Result.WRONG_TEXT),
        (answer(300, "x", "b"), answer(0, "a", "b", tops=FAR), Result.WRONG_TEXT),
        (answer(300, "x", "q"), answer(0, "a", "b", tops=NEAR), Result.MOVED),
        (answer(300, "a", "x"), answer(0, "a", "b", tops=NEAR), Result.WRONG_TEXT),
        (answer(300, "a"), answer(0, "a", "b"), Result.MOVED),
    ],
)
def test_what_an_answer_proves(split: Answer, alone: Answer | None, result: Result) -> None:
    assert judge(split, alone) is result


def completion(**usage: Any) -> bytes:
    logprobs = {"tokens": [" a", " b"], "top_logprobs": [{" a": -0.5, " c": -0.7}, None]}
    choice = {"text": " a b", "logprobs": logprobs}
    return json.dumps({"choices": [choice], "usage": {"prompt_tokens": 7, **usage}}).encode()


def test_an_answer_of_vllm_is_read() -> None:
    read = read_answer(completion(prompt_tokens_details={"cached_tokens": 6}))
    assert read == Answer(7, 6, (" a", " b"), ({" a": -0.5, " c": -0.7}, {}))
    assert read_answer(completion(prompt_tokens_details=None)) == Answer(
        7, None, (" a", " b"), read.tops if read else ()
    )
    plain = b'{"choices": [{"text": "t", "logprobs": null}], "usage": {"prompt_tokens": 3}}'
    assert read_answer(plain) == Answer(3, None, ("t",))


TEXT_AS_LOGPROB = (
    b'{"choices": [{"text": "t", "logprobs": {"tokens": ["t"], "top_logprobs": [{"t": "high"}]}}],'
    b' "usage": {"prompt_tokens": 3}}'
)


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", b'{"choices": [], "usage": {}}', completion(prompt_tokens="many"), TEXT_AS_LOGPROB],
)
def test_anything_else_is_rejected(body: bytes) -> None:
    assert read_answer(body) is None


def verdicts(*results: Result) -> list[Verdict]:
    """The verdict after each of these results."""
    pair, record = pairs_of(1, 1)[0], None
    verdicts = []
    for now, result in enumerate(results):
        record = next_record(pair, result, record, float(now))
        verdicts.append(record.verdict)
    return verdicts


def test_a_result_that_proves_nothing_changes_nothing() -> None:
    well, unresults, broken = Verdict.VERIFIED, Verdict.UNKNOWN, Verdict.BROKEN
    assert verdicts(Result.BUSY, Result.MOVED, Result.BUSY) == [unresults, well, well]
    assert verdicts(Result.FAILED, Result.BUSY) == [broken, broken]
    assert verdicts(Result.MOVED, Result.WRONG_TEXT, Result.WRONG_TEXT) == [well, well, broken]
    assert verdicts(Result.MOVED, Result.WRONG_TEXT, Result.MOVED) == [well, well, well]
    assert verdicts(Result.MOVED, Result.NOT_REPORTED) == [well, unresults]


def test_verified_once_every_engine_is_covered() -> None:
    revisions = [pairs_of(2, 2)]
    keys = names(revisions[0])
    well = {key: Record((1, 1), 0.0, Result.MOVED, Verdict.VERIFIED) for key in keys}
    assert finding_of([], {}, None).verdict is Verdict.UNKNOWN
    assert finding_of(revisions, {}, None).verdict is Verdict.UNKNOWN
    half = {keys[0]: well[keys[0]]}
    assert finding_of(revisions, half, None).verdict is Verdict.UNKNOWN, "two engines were not probed"
    diagonal = {key: well[key] for key in (keys[0], keys[3])}
    assert finding_of(revisions, diagonal, None) == Finding(Verdict.VERIFIED, pairs=2, possible=4)
    assert finding_of(revisions, well, None) == Finding(Verdict.VERIFIED, pairs=4, possible=4)
    more = [pairs_of(3, 2)]
    assert finding_of(more, well, finding_of(revisions, well, None)) == Finding(Verdict.VERIFIED, pairs=3, possible=6)


def test_one_broken_pair_is_named() -> None:
    revisions = [pairs_of(2, 2)]
    keys = names(revisions[0])
    records = {key: Record((1, 1), 0.0, Result.MOVED, Verdict.VERIFIED) for key in keys}
    records[keys[2]] = Record((1, 1), 1.0, Result.RECOMPUTED, Verdict.BROKEN, "seen", Cause.MODEL, 1)
    finding = finding_of(revisions, records, None)
    assert (finding.verdict, finding.possible, finding.broken_pairs) == (Verdict.BROKEN, 4, 1)
    (broken,) = finding.broken
    assert (broken.prefill, broken.decode, broken.cause) == (*keys[2], Cause.MODEL)
    assert broken.sentence.startswith(f"{keys[2][0]} to {keys[2][1]}: seen; the two were started with different model")


PAIR = pairs_of(1, 1)[0]
P, D = (engine.name for engine in PAIR)
VERIFIED = Record((1, 1), 0.0, Result.MOVED, Verdict.VERIFIED)
SILENT_P = ((), P)
BUSY_P = ((), "")
SILENT_D = ((P,), D)
ANSWERED = ((P, D), "")
N = UNANSWERED_PROBES


@pytest.mark.parametrize(
    ("probes", "why_not"),
    [
        ([SILENT_P] * (N - 1), ""),
        ([SILENT_P] * N, "the prefill engine has left 3 consecutive probes unanswered"),
        ([SILENT_D] * N, "the decode engine has left 3 consecutive probes unanswered"),
        ([BUSY_P] * 9, ""),
        ([SILENT_P] * N + [BUSY_P] * 9, "the prefill engine has left 3 consecutive probes unanswered"),
        ([SILENT_P] * 9 + [SILENT_D], ""),
        ([SILENT_P] * 9 + [ANSWERED], ""),
        ([SILENT_P, ANSWERED] * 9, ""),
    ],
    ids=["too few", "P", "D", "busy with other work", "silent, then busy", "P answers", "both answer", "in turn"],
)
def test_an_engine_that_answers_no_probe(probes: list[tuple[tuple[str, ...], str]], why_not: str) -> None:
    unanswered: Unanswered = {}
    for answered, silent in probes:
        unanswered = count_unanswered(unanswered, unanswered, PAIR, answered, silent)
    assert doubt(*PAIR, unanswered) == why_not
    assert present_verdict(VERIFIED, why_not) is (Verdict.UNKNOWN if why_not else Verdict.VERIFIED)


def test_probes_that_overlap_count_once() -> None:
    began: Unanswered = {}
    now = count_unanswered(began, began, PAIR, *SILENT_P)
    assert count_unanswered(now, began, PAIR, *SILENT_P) == now == {(P, 1): 1}
    assert count_unanswered(now, now, PAIR, *SILENT_P) == {(P, 1): 2}
    assert count_unanswered({}, {(P, 1): 5}, PAIR, *SILENT_P) == {(P, 1): 1}, "it has answered another one meanwhile"


def test_silence_before_a_restart_means_nothing() -> None:
    prefill, decode = PAIR
    assert doubt(replace(prefill, generation=2), decode, {(P, 1): 9}) == ""


@pytest.mark.parametrize("state", [State.SUSPECT, State.COLD, State.WARMING])
def test_a_pair_is_not_verified_while_an_engine_does_not_serve(state: State) -> None:
    prefill, decode = PAIR
    assert doubt(replace(prefill, warm_up_state=state), decode, {}) == "the prefill engine does not serve"
    assert doubt(prefill, replace(decode, warm_up_state=state), {}) == "the decode engine does not serve"
    assert doubt(None, decode, {}) == "the prefill engine is gone"
    broken = replace(VERIFIED, verdict=Verdict.BROKEN)
    assert present_verdict(broken, "the prefill engine does not serve") is Verdict.BROKEN


def test_doubts_about_all_pairs_change_the_finding_and_name_the_reason() -> None:
    one, silent = [[PAIR]], {names_of(PAIR): "the prefill engine has left 3 consecutive probes unanswered"}
    records = {names_of(PAIR): VERIFIED}
    before = finding_of(one, records, None)
    why = f"{P} to {D}: the prefill engine has left 3 consecutive probes unanswered"
    assert finding_of(one, records, before, silent) == Finding(Verdict.UNKNOWN, why, possible=1)
    assert finding_of(one, records, finding_of(one, records, before, silent)) == before


def test_doubts_about_one_of_several_engines_leave_the_finding() -> None:
    revisions = [pairs_of(2, 2)]
    keys = names(revisions[0])
    records = dict.fromkeys(keys, VERIFIED)
    doubts: dict[Names, str] = dict.fromkeys(keys[:2], "the prefill engine does not serve")
    before = finding_of(revisions, records, None)
    assert finding_of(revisions, records, before, doubts) == Finding(Verdict.VERIFIED, pairs=2, possible=4)
    assert finding_of(revisions, records, None, doubts).verdict is Verdict.UNKNOWN
