"""Policies as pure functions: the selected engine, and how far keys stay with their engine."""

import copy
import json
from collections import Counter
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdx_api.names import Policy, Role
from pdx_api.settings.gateway import Choosing
from pdx_proxy.balancing.chooser import Chooser
from pdx_proxy.balancing.load import Load
from pdx_proxy.balancing.load_reports import LoadReport, LoadReports
from pdx_proxy.balancing.policies import BOUND, FREE, affine, least, least_load, pressure, pressures
from pdx_proxy.config.settings import Address, EndpointSpec
from pdx_proxy.endpoints.endpoint import Endpoint, State
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.http.routes import Kind
from pdx_proxy.payload.body import Body, read_body
from pdx_proxy.telemetry.counters import Counters

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def endpoint(number: int, role: Role = Role.DECODE, revision: str = "a") -> Endpoint:
    return Endpoint(EndpointSpec(Address(f"10.0.0.{number}", 8000), role, revision), State.WARM)


def engines(count: int) -> list[Endpoint]:
    return [endpoint(number) for number in range(count)]


def by_number(loads: list[float]) -> dict[str, float]:
    return {each.name: load for each, load in zip(engines(len(loads)), loads, strict=True)}


LEAST = [
    ([5], 0, 0),
    ([1, 0, 2], 0, 1),
    ([1, 0, 2], 7, 1),
    ([1, 1, 1], 4, 1),
    ([0, 1, 0, 0], 0, 0),
    ([0, 1, 0, 0], 1, 2),
    ([0, 1, 0, 0], 5, 3),
    ([0.5, 0.25, 1], 3, 1),
]


@pytest.mark.parametrize(("loads", "cursor", "expected"), LEAST)
def test_least(loads: list[float], cursor: int, expected: int) -> None:
    pool, load = engines(len(loads)), by_number(loads)
    assert least(pool, lambda e: load[e.name], cursor) is pool[expected]


LEAST_LOAD: list[tuple[str, list[float], list[tuple[float, float, float] | None], list[int]]] = [
    ("nothing is known", [2, 1], [None, None], [1]),
    ("idle engines take turns", [0, 0], [(0, 0, 0), (0, 0, 0)], [0, 1]),
    ("what is counted here is not counted twice", [3, 3], [(3, 0, 0.2), (2, 1, 0.2)], [0]),
    ("another gateway's requests count", [1, 2], [(6, 0, 0.2), (2, 0, 0.2)], [1]),
    ("a queue counts", [4, 4], [(2, 2, 0.5), (4, 0, 0.5)], [1]),
    ("full KV counts", [4, 6], [(4, 0, 0.9), (6, 0, 0.2)], [1]),
    ("a little KV does not outweigh many requests", [2, 9], [(2, 0, 0.3), (9, 0, 0.1)], [0]),
    ("KV beyond all blocks is full", [1, 9], [(1, 0, 1.5), (9, 0, 0.1)], [1]),
    ("silence is no merit", [0, 0], [(0, 0, 0), None], [0, 1]),
    ("silence among the busy is as busy", [1, 1, 1], [(8, 2, 0.5), (6, 2, 0.5), None], [1]),
]


@pytest.mark.parametrize(("loads", "reported", "expected"), [c[1:] for c in LEAST_LOAD], ids=[c[0] for c in LEAST_LOAD])
def test_least_load(loads: list[float], reported: list[tuple[float, float, float] | None], expected: list[int]) -> None:
    pool, load = engines(len(loads)), by_number(loads)
    measures = {e.name: LoadReport(*each) for e, each in zip(pool, reported, strict=True) if each}
    by_name = pressures(pool, measures, lambda e: load[e.name])
    chosen = [least_load(pool, lambda e: load[e.name], cursor, by_name) for cursor in range(len(expected))]
    assert [pool.index(each) for each in chosen] == expected


def test_an_engine_that_is_to_get_less_shows_more_load_to_every_policy() -> None:
    pool = engines(2)
    weights = {pool[0].name: 0.1, pool[1].name: 1.0}

    def load(each: Endpoint) -> float:
        return 3 / weights[each.name]

    assert least(pool, load, 0) is pool[1]
    assert least_load(pool, load, 0, {}) is pool[1]
    assert all(affine(pool, load, key)[0] is pool[1] for key in range(20))


def test_pressure_is_never_negative() -> None:
    assert pressure(LoadReport(0, 0, 0.0), 9).external == 0
    assert pressure(LoadReport(0, 0, 0.0), 9).kv_cost == 1
    assert pressure(LoadReport(0, 0, 1.0), 0).kv_cost == 20


AFFINE = [
    ("no other", [99], True),
    ("idle", [0, 0, 0], True),
    ("few of its own", [FREE - 1, 0, 0], True),
    ("all alike", [8, 8, 8], True),
    ("at the bound", [5, 4, 2], False),
    ("below the bound", [4.9, 4.1, 2], True),
]


@pytest.mark.parametrize(("loads", "kept"), [case[1:] for case in AFFINE], ids=[case[0] for case in AFFINE])
def test_affine(loads: list[float], kept: bool) -> None:
    """The first load belongs to the engine that owns the key."""
    pool, key = engines(len(loads)), 4711
    own, _ = affine(pool, lambda _: 0, key)
    order = [own, *(e for e in pool if e is not own)]
    load = {e.name: each for e, each in zip(order, loads, strict=True)}
    found, was_kept = affine(pool, lambda e: load[e.name], key)
    assert (found is own, was_kept) == (kept, kept)


KEYS = st.integers(0, 2**32 - 1)
LOADS = st.lists(st.integers(0, 40) | st.floats(0, 40), min_size=1, max_size=20)


@given(LOADS, KEYS)
def test_affinity_never_goes_beyond_the_bound(loads: list[float], key: int) -> None:
    pool, load = engines(len(loads)), by_number(loads)
    found, kept = affine(pool, lambda e: load[e.name], key)
    own, _ = affine(pool, lambda _: 0, key)
    assert kept == (found is own)
    assert len(pool) == 1 or load[found.name] < max(FREE, BOUND * (sum(loads) + 1) / len(pool))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=200), st.integers(1, 12))
def test_however_keys_are_spread_no_engine_has_much_more_than_its_share(keys: list[int], count: int) -> None:
    pool, load = engines(count), Load()
    for sent, key in enumerate(keys, 1):
        load.acquire(affine(pool, load.of, key)[0])
        most = max(load.of(e) for e in pool)
        assert most <= max(FREE, BOUND * sent / count + 1)


@given(st.lists(st.integers(0, 200), min_size=2, max_size=20, unique=True), st.lists(KEYS, max_size=40), st.data())
def test_an_engine_that_comes_or_goes_moves_only_its_own_keys(
    numbers: list[int], keys: list[int], data: st.DataObject
) -> None:
    pool = [endpoint(number) for number in numbers]
    gone = data.draw(st.sampled_from(pool))
    left = [e for e in data.draw(st.permutations(pool)) if e is not gone]
    for key in keys:
        before, _ = affine(pool, lambda _: 0, key)
        after, _ = affine(left, lambda _: 0, key)
        assert before is after or before is gone


@pytest.mark.parametrize("count", [2, 3, 8, 64])
def test_keys_are_spread_evenly(count: int) -> None:
    pool, each = engines(count), 400
    shares = Counter(affine(pool, lambda _: 0, key * 2654435761 % 2**32)[0].name for key in range(count * each))
    assert len(shares) == count
    assert min(shares.values()) > each * 0.75
    assert max(shares.values()) < each * 1.25


def test_a_key_belongs_to_the_same_engine_in_every_gateway() -> None:
    """A hash that is salted per process would fail here."""
    assert [affine(engines(8), lambda _: 0, key)[0].name[7:8] for key in range(0, 80, 10)] == list("20454152")


# the chooser

POOL = [*(endpoint(n, Role.PREFILL) for n in range(10, 14)), *(endpoint(n) for n in range(20, 24))]


EMPTY = Body()


def request(body: Body = EMPTY, session: str = "") -> Body:
    joined = copy.copy(body)
    joined.join(session)
    return joined


def chooser(prefill: Policy = Policy.LEAST_REQUESTS, decode: Policy = Policy.LEAST_REQUESTS, above: int = 0) -> Chooser:
    return Chooser(
        Choosing(prefill_policy=prefill, decode_policy=decode, disaggregate_above_tokens=above), Load(), Counters()
    )


def chosen(by: Chooser, sent: Body, rounds: int = 4) -> tuple[set[str], set[str]]:
    """The P's and D's that a request goes to in some rounds."""
    snapshot = Snapshot.of(POOL)
    choices = [by.choose(snapshot, sent, split=True, avoid=(), cursor=cursor) for cursor in range(rounds)]
    found = [choice for choice in choices if choice]
    assert len(found) == rounds
    return {c.prefill.name for c in found if c.prefill}, {c.decode.name for c in found}


def test_each_role_has_its_own_policy() -> None:
    by = chooser(Policy.PREFIX_AFFINITY, Policy.SESSION_AFFINITY)
    reader = by.prompt_reader
    assert reader is not None
    same = request(read_body(b'{"prompt":"once upon a time"}', "application/json", COMPLETIONS, reader), "me")
    prefills, decodes = chosen(by, same)
    assert (len(prefills), len(decodes)) == (1, 1)
    elsewhere = [
        request(read_body(b'{"prompt":"no %d"}' % n, "application/json", COMPLETIONS, reader), f"you {n}")
        for n in range(30)
    ]
    assert {tuple(chosen(by, each, 1)[0]) for each in elsewhere} == {(e.name,) for e in POOL[:4]}
    assert {tuple(chosen(by, each, 1)[1]) for each in elsewhere} == {(e.name,) for e in POOL[4:]}


@pytest.mark.parametrize("policy", [Policy.PREFIX_AFFINITY, Policy.SESSION_AFFINITY])
def test_without_a_key_the_least_requests_decide(policy: Policy) -> None:
    prefills, decodes = chosen(chooser(policy, policy), request())
    assert (len(prefills), len(decodes)) == (4, 4)


def test_a_chooser_reads_prompts_only_for_policies_that_need_them() -> None:
    assert chooser().prompt_reader is None
    assert chooser(Policy.LEAST_LOAD, Policy.SESSION_AFFINITY).prompt_reader is None


DECIDING = [
    (Policy.EXPECTED_WAIT, "", Policy.LEAST_ITL),
    (Policy.LEAST_ITL, "", Policy.LEAST_ITL),
    (Policy.LEAST_REQUESTS, "", Policy.LEAST_REQUESTS),
    (Policy.LEAST_LOAD, "", Policy.LEAST_REQUESTS),
    (Policy.PREFIX_AFFINITY, "", Policy.LEAST_REQUESTS),
    (Policy.SESSION_AFFINITY, "", Policy.LEAST_REQUESTS),
    (Policy.SESSION_AFFINITY, "me", Policy.SESSION_AFFINITY),
]


@pytest.mark.parametrize(("policy", "session", "deciding"), DECIDING)
def test_a_choice_names_the_policy_that_decided(policy: Policy, session: str, deciding: Policy) -> None:
    counters, sent, snapshot = Counters(), request(session=session), Snapshot.of(POOL)
    by = Chooser(Choosing(prefill_policy=Policy.LEAST_ITL, decode_policy=policy), Load(), counters)
    choice = by.choose(snapshot, sent, split=True, avoid=(), cursor=0)
    assert choice is not None
    assert (choice.policy.name, choice.prefill_policy.name) == (deciding, Policy.LEAST_REQUESTS)
    by.count(choice, sent, split=True, first=True)
    assert {name: count for name, count in counters.choices["decode"].items() if count} == {deciding: 1}
    assert {name: count for name, count in counters.choices["prefill"].items() if count} == {Policy.LEAST_REQUESTS: 1}


def test_load_decides_once_it_is_reported() -> None:
    by, snapshot = chooser(Policy.LEAST_LOAD, Policy.LEAST_LOAD), Snapshot.of(POOL)
    by.apply_load(snapshot, LoadReports())
    choice = by.choose(snapshot, request(), split=True, avoid=(), cursor=0)
    assert choice is not None
    assert (choice.policy.name, choice.prefill_policy.name) == (Policy.LEAST_LOAD, Policy.LEAST_LOAD)


def test_load_reports_are_compared_with_the_load_once() -> None:
    load = Load()
    by = Chooser(Choosing(decode_policy=Policy.LEAST_LOAD), load, Counters())
    pool = engines(2)
    busy = {pool[0].name: LoadReport(4, 0, 0.0), pool[1].name: LoadReport(0, 0, 0.0)}
    snapshot = Snapshot.of(pool)
    by.apply_load(snapshot, LoadReports(busy))

    def choose() -> Endpoint:
        choice = by.choose(snapshot, request(), split=False, avoid=(), cursor=0)
        assert choice is not None
        return choice.decode

    for _ in range(4):
        assert choose() is pool[1]
        load.acquire(pool[1])
    assert choose() is pool[0], "the load reported was not this gateway's, then or now"
    by.apply_load(snapshot, LoadReports({e.name: LoadReport(4, 0, 0.0) for e in pool}))
    assert choose() is pool[0]
    load.acquire(pool[0])
    assert choose() is pool[1], "the second engine's four are this gateway's own"


def test_what_affinity_came_to_is_counted() -> None:
    load, counters = Load(), Counters()
    by = Chooser(Choosing(decode_policy=Policy.SESSION_AFFINITY), load, counters)
    ((own,), kept) = chosen(by, request(session="me"), 1)[1], counters.affinity["decode"]["kept"]
    load.legs[own] = 50
    assert chosen(by, request(session="me"), 1)[1] != {own}
    assert (kept, counters.affinity) == (1, {"prefill": {"kept": 0, "moved": 0}, "decode": {"kept": 1, "moved": 1}})


MAY_SPLIT: list[tuple[Kind, dict[str, Any], int, str | None]] = [
    (Kind.GENERATE, {"prompt": "a b c"}, 0, None),
    (Kind.GENERATE, {"prompt": "a b c"}, 100, "short"),
    (Kind.GENERATE, {"prompt": "many words " * 100}, 100, None),
    (Kind.GENERATE, {"prompt": [1] * 100}, 100, "short"),
    (Kind.GENERATE, {"prompt": [1] * 101}, 100, None),
    (Kind.GENERATE, {"prompt": "a b c", "n": 2}, 100, "parameters"),
    (Kind.WHOLE, {"prompt": "a b c"}, 0, "path"),
]


@pytest.mark.parametrize(("kind", "body", "above", "why"), MAY_SPLIT)
def test_what_is_not_split_is_counted_by_why(kind: Kind, body: dict[str, Any], above: int, why: str | None) -> None:
    counters = Counters()
    by = Chooser(Choosing(disaggregate_above_tokens=above), Load(), counters)
    read = read_body(orjson.dumps(body), "application/json", COMPLETIONS, by.prompt_reader)
    assert by.may_split(kind, read) is (why is None)
    assert {reason: count for reason, count in counters.not_split.items() if count} == ({why: 1} if why else {})


def test_a_missing_p_is_counted_at_the_first_attempt() -> None:
    counters = Counters()
    by = Chooser(Choosing(), Load(), counters)
    for pool in ([endpoint(1)], [endpoint(1, Role.AGGREGATED)], []):
        for split, first in ((True, True), (True, False), (False, True)):
            choice = by.choose(Snapshot.of(pool), request(), split=split, avoid=(), cursor=0)
            if choice is not None:
                by.count(choice, request(), split=split, first=first)
    assert {reason: count for reason, count in counters.not_split.items() if count} == {"no_prefill": 1}


# the key of a prompt


def key_of(body: Any) -> int | None:
    reader = chooser(Policy.PREFIX_AFFINITY).prompt_reader
    return read_body(json.dumps(body).encode(), "application/json", COMPLETIONS, reader).features.key


def chat(*rounds: str, system: str = "Be brief.") -> dict[str, Any]:
    roles = ("user", "assistant")
    talk = [{"role": roles[i % 2], "content": text} for i, text in enumerate(rounds)]
    return {"model": "m", "messages": [{"role": "system", "content": system}, *talk]}


LONG = "A long system prompt. " * 100
SAME_KEY: list[tuple[str, Any, Any, bool]] = [
    ("another parameter", {"prompt": "x", "seed": 1}, {"prompt": "x", "n": 2}, True),
    ("another prompt", {"prompt": "x"}, {"prompt": "y"}, False),
    ("an end beyond the key", {"prompt": LONG + "x"}, {"prompt": LONG + "y"}, True),
    ("token ids", {"prompt": [1, 2, 3]}, {"prompt": [1, 2, 4]}, False),
    ("token ids beyond the key", {"prompt": [7] * 999}, {"prompt": [7] * 1999}, True),
    ("a later turn", chat("hi"), chat("hi", "hello", "how are you?"), True),
    ("another question", chat("hi"), chat("ho"), False),
    ("another question behind a long system prompt", chat("hi", system=LONG), chat("ho", system=LONG), True),
    ("an end of a system prompt beyond the key", chat("hi", system=LONG + "x"), chat("hi", system=LONG + "y"), True),
    ("another system prompt", chat("hi"), chat("hi", system="Be long."), False),
    ("messages that no engine takes", {"messages": "x"}, {"messages": {"a": 1}}, False),
    ("a list of what are no messages", {"messages": [1, 2]}, {"messages": [1, 3]}, False),
    ("a response", {"input": "x"}, {"input": "x", "stream": True}, True),
]


@pytest.mark.parametrize(("one", "other", "same"), [c[1:] for c in SAME_KEY], ids=[c[0] for c in SAME_KEY])
def test_the_key_of_a_prompt(one: Any, other: Any, same: bool) -> None:
    assert key_of(one) is not None
    assert (key_of(one) == key_of(other)) is same


def test_a_body_without_a_prompt_has_no_key() -> None:
    assert key_of({"model": "m"}) is None
