"""Which pairs are due for a canary, what an answer proves, and what a failure comes from."""

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from pdx_api.names import Role
from pdx_api.verification import Cause, Finding, Verdict
from pdx_proxy.config.settings import Address, EndpointSpec
from pdx_proxy.endpoints.endpoint import Endpoint, State
from pdx_proxy.verification.verdict import (
    Answer,
    Evidence,
    Facts,
    Names,
    Pair,
    Record,
    Result,
    candidates,
    due,
    found,
    judge,
    likely_cause,
    read_answer,
    read_facts,
    recorded,
)

USUAL = 40.0
P, D = Role.PREFILL, Role.DECODE


def engine(role: Role, number: int, revision: str = "a", **fields: Any) -> Endpoint:
    spec = EndpointSpec(
        Address(f"10.0.{role is D:d}.{number}", 8000), role, revision, pod=f"{role}-{revision}-{number}"
    )
    return Endpoint(spec, **{"warm_up_state": State.WARM, "generation": 1, **fields})


def pool(prefill: int, decode: int, revision: str = "a") -> list[Endpoint]:
    return [engine(P, n, revision) for n in range(prefill)] + [engine(D, n, revision) for n in range(decode)]


def pairs_of(prefill: int, decode: int) -> list[Pair]:
    (pairs,) = candidates(pool(prefill, decode))
    return pairs


def names(pairs: list[Pair]) -> list[Names]:
    return [(p.name, d.name) for p, d in pairs]


def run(
    pairs: list[Pair], until: float, records: dict[Names, Record], bad: frozenset[Names] = frozenset()
) -> Counter[Names]:
    """Look once a second and try at once what is due; how often each pair was tried."""
    tries: Counter[Names] = Counter()
    now = max((record.at for record in records.values()), default=0.0)
    while now < until:
        for pair in due(pairs, records, now, USUAL):
            key = (pair[0].name, pair[1].name)
            tries[key] += 1
            result = Result.RECOMPUTED if key in bad else Result.MOVED
            records[key] = recorded(pair, result, records.get(key), now, "seen", Cause.PORTS)
        now += 1.0
    return tries


def test_pairs_are_of_one_revision_and_of_engines_that_could_do_it() -> None:
    aggregated = replace(engine(D, 9), spec=replace(engine(D, 9).spec, role=Role.AGGREGATED))
    others = [
        *pool(1, 1, "b"),
        engine(P, 5, "c"),
        engine(D, 5, warm_up_state=State.COLD),
        engine(P, 6, warm_up_state=State.COLD),
        engine(P, 7, warm_up_state=State.COLD, reason="its hand-off failed"),
        aggregated,
    ]
    first, second = candidates([*pool(1, 1), *others])
    assert names(first) == [("prefill-a-0", "decode-a-0"), ("prefill-a-7", "decode-a-0")]
    assert names(second) == [("prefill-b-0", "decode-b-0")]


@pytest.mark.parametrize(("prefill", "decode"), [(1, 1), (2, 2), (4, 4), (1, 16)])
def test_of_a_small_pool_every_pair_is_due_at_once(prefill: int, decode: int) -> None:
    pairs = pairs_of(prefill, decode)
    assert sorted(names(due(pairs, {}, 0.0, USUAL))) == sorted(names(pairs))


@pytest.mark.parametrize(("prefill", "decode"), [(8, 8), (3, 17), (17, 2), (64, 64)])
def test_of_a_large_pool_every_engine_is_in_one(prefill: int, decode: int) -> None:
    chosen = names(due(pairs_of(prefill, decode), {}, 0.0, USUAL))
    assert len(chosen) == max(prefill, decode)
    assert Counter(name for pair in chosen for name in pair) >= Counter(e.name for e in pool(prefill, decode))


@pytest.mark.parametrize(("prefill", "decode"), [(1, 1), (2, 2), (3, 5), (8, 8)])
def test_every_pair_has_its_turn_and_no_engine_more_than_its_share(prefill: int, decode: int) -> None:
    pairs = pairs_of(prefill, decode)
    records: dict[Names, Record] = {}
    run(pairs, 1.0, records)
    rounds = 2 * max(prefill, decode) + 2
    tries = run(pairs, 1.0 + rounds * (USUAL + 1), records)
    assert set(tries) == {(p.name, d.name) for p, d in pairs}
    by_engine = Counter[str]()
    for pair, count in tries.items():
        by_engine.update(dict.fromkeys(pair, count))
    larger = P if prefill >= decode else D
    assert max(count for name, count in by_engine.items() if name.startswith(larger)) <= rounds + 1


def test_each_engine_is_tried_within_the_usual_time() -> None:
    pairs = pairs_of(8, 8)
    records: dict[Names, Record] = {}
    for end in range(200):
        run(pairs, float(end), records)
        if end > 1:
            for e in {e.name for pair in pairs for e in pair}:
                assert end - max(r.at for key, r in records.items() if e in key) <= USUAL + 1


def test_what_is_broken_is_tried_sooner_and_what_is_mended_at_its_next_try() -> None:
    pairs = pairs_of(1, 1)
    key = (pairs[0][0].name, pairs[0][1].name)
    records: dict[Names, Record] = {}
    tries = run(pairs, 200.0, records, frozenset({key}))
    assert tries[key] == 7, "at 0, 10, 30, 70, 110, 150, 190"
    assert records[key].verdict is Verdict.BROKEN
    run(pairs, 232.0, records)
    assert records[key].verdict is Verdict.VERIFIED


def test_an_engine_that_was_warmed_anew_is_due_at_once() -> None:
    pairs = pairs_of(1, 1)
    records: dict[Names, Record] = {}
    run(pairs, 1.0, records)
    assert due(pairs, records, 2.0, USUAL) == []
    again = [(pairs[0][0], replace(pairs[0][1], generation=2))]
    assert due(again, records, 2.0, USUAL) == again


def answer(cached: int | None, *tokens: str, prompt: int = 300, tops: tuple[dict[str, float], ...] = ()) -> Answer:
    return Answer(prompt, cached, tokens or ("a", "b"), tops)


NEAR = ({"a": -1.0, "x": -1.3},)
FAR = ({"a": -1.0, "x": -3.0},)


@pytest.mark.parametrize(
    ("said", "alone", "result"),
    [
        (answer(300), answer(0), Result.MOVED),
        (answer(299), None, Result.MOVED),
        (answer(256), answer(0), Result.MOVED),
        (answer(149), answer(0), Result.RECOMPUTED),
        (answer(0), None, Result.RECOMPUTED),
        (answer(None), answer(None), Result.UNTOLD),
        (answer(300, "x", "b"), answer(0, "a", "b"), Result.WRONG_TEXT),
        (answer(300, "x", "b"), answer(0, "a", "b", tops=FAR), Result.WRONG_TEXT),
        (answer(300, "x", "q"), answer(0, "a", "b", tops=NEAR), Result.MOVED),
        (answer(300, "a", "x"), answer(0, "a", "b", tops=NEAR), Result.WRONG_TEXT),
        (answer(300, "a"), answer(0, "a", "b"), Result.MOVED),
    ],
)
def test_what_an_answer_proves(said: Answer, alone: Answer | None, result: Result) -> None:
    assert judge(said, alone) is result


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


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"choices": [], "usage": {}}', completion(prompt_tokens="many")])
def test_anything_else_is_no_answer(body: bytes) -> None:
    assert read_answer(body) is None


MODELS = b'{"data": [{"id": "served", "root": "org/model"}]}'
METRICS = b'x\nvllm:cache_config_info{block_hash="a",block_size="16",cache_dtype="auto",engine="0"} 1.0\n'


def counted(prompts: float, asked: float | None) -> bytes:
    """What an engine of two data-parallel ranks says, of which only the second has worked."""
    page = f'vllm:prompt_tokens_total{{engine="0"}} 0.0\nvllm:prompt_tokens_total{{engine="1"}} {prompts}\n'
    name = "vllm:external_prefix_cache_queries"
    if asked is not None:
        page += (
            f'{name}_total{{engine="0"}} 0.0\n{name}_total{{engine="1"}} {asked}\n{name}_created{{engine="1"}} 1.7e9\n'
        )
    return page.encode()


@pytest.mark.parametrize(
    ("page", "connector"),
    [
        (counted(300.0, 300.0), True),
        (counted(1.5e6, 12.0), True),
        (counted(300.0, 0.0), False),
        (counted(0.0, 0.0), None),
        (counted(300.0, None), None),
        (METRICS, None),
    ],
)
def test_whether_an_engine_has_a_connector(page: bytes, connector: bool | None) -> None:
    assert read_facts(b"", b"", page).connector is connector


def test_what_an_engine_says_of_itself_is_read() -> None:
    assert read_facts(b'{"version": "0.32.0"}', MODELS, METRICS) == Facts("0.32.0", "org/model", 16)
    assert read_facts(b"", b"{}", b"<html>") == Facts()


SELF = Facts("1", "m", 16)
OWN = {"remote_host": "10.0.0.0"}


@pytest.mark.parametrize(
    ("evidence", "cause"),
    [
        (Evidence(Result.FAILED, connector_off=True), Cause.NO_CONNECTOR),
        (Evidence(Result.RECOMPUTED, SELF, replace(SELF, connector=False), OWN), Cause.NO_CONNECTOR),
        (Evidence(Result.FAILED, replace(SELF, connector=False), SELF), Cause.NO_CONNECTOR),
        (Evidence(Result.RECOMPUTED, replace(SELF, connector=True), replace(SELF, connector=True), OWN), Cause.PORTS),
        (Evidence(Result.RECOMPUTED, SELF, replace(SELF, version="2"), OWN), Cause.VERSION),
        (Evidence(Result.RECOMPUTED, SELF, replace(SELF, model="n"), OWN), Cause.MODEL),
        (Evidence(Result.RECOMPUTED, SELF, replace(SELF, block_size=32), OWN), Cause.BLOCK_SIZE),
        (Evidence(Result.WRONG_TEXT, SELF, SELF, OWN), Cause.WRONG_KV),
        (Evidence(Result.RECOMPUTED, SELF, SELF, {"remote_host": "10.9.9.9"}), Cause.SIDE_CHANNEL_HOST),
        (Evidence(Result.RECOMPUTED, SELF, SELF, {"remote_host": "a-name"}), Cause.PORTS),
        (Evidence(Result.FAILED, SELF, SELF, OWN), Cause.PORTS),
        (Evidence(Result.FAILED), Cause.PORTS),
        (Evidence(Result.FAILED, SELF, Facts()), Cause.PORTS),
    ],
)
def test_the_likely_cause(evidence: Evidence, cause: Cause) -> None:
    assert likely_cause(pairs_of(1, 1)[0], evidence) is cause


def test_which_engine_runs_without_a_connector() -> None:
    off = Facts(connector=False)
    assert Evidence(Result.RECOMPUTED, SELF, off).unconnected == "D runs without a KV connector"
    assert Evidence(Result.FAILED, connector_off=True).unconnected == "P runs without a KV connector"
    assert Evidence(Result.RECOMPUTED, off, off).unconnected == "P and D run without a KV connector"
    assert Evidence(Result.RECOMPUTED, Facts(connector=True), SELF).unconnected == ""


def verdicts(*results: Result) -> list[Verdict]:
    """What is known after each of these results, one after the other."""
    pair, record = pairs_of(1, 1)[0], None
    known = []
    for now, result in enumerate(results):
        record = recorded(pair, result, record, float(now))
        known.append(record.verdict)
    return known


def test_what_proves_nothing_changes_nothing() -> None:
    well, unknown, broken = Verdict.VERIFIED, Verdict.UNKNOWN, Verdict.BROKEN
    assert verdicts(Result.BUSY, Result.MOVED, Result.BUSY) == [unknown, well, well]
    assert verdicts(Result.FAILED, Result.BUSY) == [broken, broken]
    assert verdicts(Result.MOVED, Result.WRONG_TEXT, Result.WRONG_TEXT) == [well, well, broken]
    assert verdicts(Result.MOVED, Result.WRONG_TEXT, Result.MOVED) == [well, well, well]
    assert verdicts(Result.MOVED, Result.UNTOLD) == [well, unknown]


def test_everything_is_verified_when_every_engine_is_and_stays_so_when_one_is_added() -> None:
    revisions = [pairs_of(2, 2)]
    keys = names(revisions[0])
    well = {key: Record((1, 1), 0.0, Result.MOVED, Verdict.VERIFIED) for key in keys}
    assert found([], {}, None).verdict is Verdict.UNKNOWN
    assert found(revisions, {}, None).verdict is Verdict.UNKNOWN
    half = {keys[0]: well[keys[0]]}
    assert found(revisions, half, None).verdict is Verdict.UNKNOWN, "two engines were not tried"
    diagonal = {key: well[key] for key in (keys[0], keys[3])}
    assert found(revisions, diagonal, None) == Finding(Verdict.VERIFIED, pairs=2, possible=4)
    assert found(revisions, well, None) == Finding(Verdict.VERIFIED, pairs=4, possible=4)
    more = [pairs_of(3, 2)]
    assert found(more, well, found(revisions, well, None)) == Finding(Verdict.VERIFIED, pairs=3, possible=6)


def test_one_broken_pair_is_named() -> None:
    revisions = [pairs_of(2, 2)]
    keys = names(revisions[0])
    records = {key: Record((1, 1), 0.0, Result.MOVED, Verdict.VERIFIED) for key in keys}
    records[keys[2]] = Record((1, 1), 1.0, Result.RECOMPUTED, Verdict.BROKEN, "seen", Cause.MODEL, 1)
    finding = found(revisions, records, None)
    assert (finding.verdict, finding.possible, finding.broken_pairs) == (Verdict.BROKEN, 4, 1)
    (broken,) = finding.broken
    assert (broken.prefill, broken.decode, broken.cause) == (*keys[2], Cause.MODEL)
    assert broken.sentence.startswith(f"{keys[2][0]} to {keys[2][1]}: seen; the two were started with different model")
