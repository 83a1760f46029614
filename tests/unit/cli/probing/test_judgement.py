"""Why KV does not move, from what both engines answered and report."""

import json
from dataclasses import replace
from typing import Any, Final

import pytest

from pdx_api.connectors import choose
from pdx_api.names import Order
from pdx_api.vllm_metrics import EngineMetrics
from pdx_cli.probing.causes import ADVICE, Reason
from pdx_cli.probing.engines import EngineFacts, ranks_of
from pdx_cli.probing.judgement import handed_over, problem_of
from pdx_cli.probing.question import Question
from pdx_cli.probing.trial import Counted, Leg, Trial, said_by
from pdx_cli.sources.client import AnswerError
from pdx_proxy.verification.diagnosis import Facts
from tests.documents import ROOT

FACTS: Final = Facts("0.32.0", "/models/m", 16, True)
NIXL: Final = EngineMetrics(failed_transfers=0.0, has_nixl=True)
ENGINE: Final = EngineFacts("http://10.0.0.1:8000", ("m",), 4096, 1, FACTS, NIXL)
PARAMS: Final = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[1, 2]],
    "remote_engine_id": "e",
    "remote_request_id": "r",
    "remote_host": "10.0.0.1",
    "remote_port": 5600,
    "transfer_mode": "pull",
}


def question(order: Order = Order.PREFILL_FIRST, prefill: str = "http://10.0.0.1:8000") -> Question:
    connector, order = choose("NIXL", order)
    return Question(prefill, "http://10.0.0.2:8000", connector, order)


def answered(cached: int | None = 0, **more: Any) -> Leg:
    """An answer of 300 prompt tokens."""
    details = None if cached is None else {"cached_tokens": cached}
    usage = {"prompt_tokens": 300, "prompt_tokens_details": details}
    return Leg(0.1, {"choices": [{"text": "x", "finish_reason": "length"}], "usage": usage, **more})


def failed(status: int | None, cause: Exception | None = None, body: str = "") -> Leg:
    error = AnswerError("http://10.0.0.2:8000/v1/completions did not answer within 30 s", status, body)
    error.__cause__ = cause
    return Leg(0.1, failure=error)


def reason(trial: Trial, p: Facts = FACTS, d: Facts = FACTS, url: str = "http://10.0.0.1:8000") -> Reason | None:
    found = problem_of(question(prefill=url), trial, replace(ENGINE, facts=p), replace(ENGINE, facts=d))
    return None if found is None else found.reason


RECOMPUTED: Final = Trial("id", answered(), answered(0), PARAMS)


@pytest.mark.parametrize(
    ("d", "expected"),
    [
        (replace(FACTS, version="0.31.0"), Reason.VERSION),
        (replace(FACTS, model="/models/other"), Reason.MODEL),
        (replace(FACTS, block_size=32), Reason.BLOCK_SIZE),
        (replace(FACTS, connector=False), Reason.NO_CONNECTOR),
        (FACTS, Reason.PORTS),
    ],
)
def test_facts_that_differ(d: Facts, expected: Reason) -> None:
    assert reason(RECOMPUTED, d=d) is expected


def test_prefill_announces_another_address() -> None:
    elsewhere = replace(RECOMPUTED, params={**PARAMS, "remote_host": "10.9.9.9"})
    assert reason(elsewhere) is Reason.SIDE_CHANNEL_HOST
    assert reason(elsewhere, url="http://127.0.0.1:8000") is Reason.PORTS, "a forwarded port"


@pytest.mark.parametrize(
    ("connector", "host", "named"),
    [("Mooncake", "127.0.0.1", True), ("Mooncake", "10.0.0.1", False), ("NIXL", "127.0.0.1", False)],
)
def test_an_address_that_is_no_other_machine(connector: str, host: str, named: bool) -> None:
    """Only with Mooncake is the host of --prefill that at which D looks for P."""
    asked = Question(f"http://{host}:8000", "http://127.0.0.1:8001", *choose(connector, Order.PREFILL_FIRST))
    facts = replace(ENGINE, metrics=EngineMetrics()) if connector == "Mooncake" else ENGINE
    found = problem_of(asked, RECOMPUTED, facts, facts)
    assert found is not None
    assert found.reason is Reason.PORTS
    clause = "127.0.0.1 of --prefill, where it reaches the prefill engine only on the same machine"
    assert found.seen.endswith(clause) is named


@pytest.mark.parametrize(
    ("leg", "matches", "expected"),
    [
        (failed(None, TimeoutError()), True, Reason.PORTS),
        (failed(500), True, Reason.PORTS),
        (failed(503), True, Reason.DECODE_FAILS),
        (failed(None, ConnectionResetError()), True, Reason.DECODE_FAILS),
        (Leg(0.1, {"choices": [{"finish_reason": "abort"}]}), True, Reason.DECODE_FAILS),
        (failed(500), False, Reason.HANDOFF),
    ],
    ids=["silent", "500", "full", "lost", "abort", "500-of-an-unknown-mode"],
)
def test_decode_fails(leg: Leg, matches: bool, expected: Reason) -> None:
    assert reason(Trial("id", answered(), leg, PARAMS, matches=matches)) is expected


@pytest.mark.parametrize(
    ("cached", "counted", "expected"),
    [
        (300, Counted(300, busy=False), None),
        (300, None, None),
        (None, Counted(300, busy=False), None),
        (300, Counted(900, busy=True), None),
        (300, Counted(0, busy=False), Reason.PORTS),
        (0, Counted(900, busy=True), Reason.PORTS),
        (None, Counted(900, busy=True), Reason.NOT_REPORTED),
        (None, None, Reason.NOT_REPORTED),
    ],
)
def test_what_decode_shows(cached: int | None, counted: Counted | None, expected: Reason | None) -> None:
    """Both the answer and the metrics of an idle D must show that KV came."""
    trial = Trial("id", answered(), answered(cached), PARAMS, counted=counted)
    assert reason(trial) is expected


@pytest.mark.parametrize(
    ("order", "answer", "expected"),
    [
        (Order.PREFILL_FIRST, answered(kv_transfer_params=PARAMS), None),
        (Order.CONCURRENT, answered(kv_transfer_params={**PARAMS, "transfer_mode": "push"}), None),
        (Order.PREFILL_FIRST, answered(kv_transfer_params=None), Reason.NO_CONNECTOR),
        (Order.PREFILL_FIRST, answered(kv_transfer_params={**PARAMS, "transfer_mode": "push"}), Reason.OTHER_ORDER),
        (Order.CONCURRENT, answered(kv_transfer_params=PARAMS), Reason.OTHER_ORDER),
        (Order.PREFILL_FIRST, answered(kv_transfer_params={**PARAMS, "remote_port": 0}), Reason.OTHER_CONNECTOR),
        (Order.CONCURRENT, answered(kv_transfer_params={"remote_engine_id": "e"}), Reason.OTHER_CONNECTOR),
        (Order.PREFILL_FIRST, failed(500), Reason.PREFILL_FAILS),
        (Order.PREFILL_FIRST, Leg(0.1, {}), Reason.PREFILL_FAILS),
        (Order.PREFILL_FIRST, Leg(0.1, {"choices": [{"finish_reason": "abort"}]}), Reason.PREFILL_FAILS),
    ],
    ids=["right", "right-push", "none", "push", "pull", "a-fault", "no-identity", "500", "not-vllm", "abort"],
)
def test_what_prefill_hands_over(order: Order, answer: Leg, expected: Reason | None) -> None:
    found = handed_over(question(order), Trial("id", answer))
    assert (None if found.problem is None else found.problem.reason) is expected
    if expected is None:
        assert found.params["remote_engine_id"] == "e"
        assert found.matches


def test_prefill_without_parameters_runs_another_connector() -> None:
    trial = handed_over(question(), Trial("id", answered(kv_transfer_params=None)))
    assert reason(trial) is Reason.OTHER_CONNECTOR
    assert reason(trial, p=replace(FACTS, connector=False)) is Reason.NO_CONNECTOR


def test_an_engines_own_text() -> None:
    error = {"error": {"message": "it  broke", "code": 500}}
    assert said_by(AnswerError("…", 500, json.dumps(error))) == "answered 500: it broke"
    assert said_by(AnswerError("…", 502, "<html>")) == "answered 502: <html>"
    assert said_by(AnswerError("…", 500)) == "answered 500"


def test_ranks() -> None:
    page = 'vllm:a{engine="0"} 1\nvllm:a{engine="1"} 1\nvllm:b{engine="1"} 1\n'
    assert (ranks_of(page), ranks_of("")) == (2, 1)


def test_every_reason_has_its_advice_and_its_place_in_the_page() -> None:
    assert set(ADVICE) == set(Reason) - {Reason.UNUSABLE}
    page = (ROOT / "docs/how-to/probe.md").read_text(encoding="utf-8")
    assert [each for each in Reason if f"`{each}`" not in page] == []
