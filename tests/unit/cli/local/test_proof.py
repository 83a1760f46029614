"""The judgement whether KV moved, its lines, and how the numbers are read."""

from dataclasses import replace
from typing import Any

import pytest

from pdx_api.names import Mode
from pdx_cli.local.evidence import _timing, external_tokens
from pdx_cli.local.proof import EngineAddress, Evidence, judge

PREFILL = EngineAddress("prefill-0", "127.0.0.1:8101")
DECODE = EngineAddress("decode-0", "127.0.0.1:8102")

MOVED = Evidence(
    mode=Mode.DISAGGREGATED,
    wiring="PrefillFirst (NIXL)",
    prefill=PREFILL,
    decode=DECODE,
    single=PREFILL,
    prefill_ms=41.23,
    handoff_ms=9.84,
    total_ms=310.5,
    prompt_tokens=612,
    external_tokens=612,
    answer_tokens=24,
    text="ba de",
    single_text="ba de",
)
POOL = replace(MOVED, mode=Mode.AGGREGATED, prefill=None, prefill_ms=None, handoff_ms=None, external_tokens=0)


@pytest.mark.parametrize(
    ("evidence", "changes", "verdict"),
    [
        (MOVED, {}, "KV moved: yes"),
        (MOVED, {"external_tokens": 551}, "KV moved: yes"),
        (
            MOVED,
            {"external_tokens": 550},
            "KV moved: not proven: only 550 of 612 prompt tokens came through the connector",
        ),
        (
            MOVED,
            {"external_tokens": 0, "prefill": None},
            "KV moved: not proven: only 0 of 612 prompt tokens came through the connector",
        ),
        (
            MOVED,
            {"external_tokens": 1224},
            "KV moved: not proven: 1224 tokens came through the connector for a prompt of 612: other requests ran too",
        ),
        (MOVED, {"single_text": "ba no"}, "KV moved: not proven: the text differs from a single engine's"),
        (MOVED, {"answer_tokens": 0}, "KV moved: not proven: the answer has no token to compare"),
        (POOL, {}, "KV moved: none, as expected in mode Aggregated"),
        (
            POOL,
            {"single_text": "no"},
            "KV moved: none, as expected in mode Aggregated; not proven: the text differs from a single engine's",
        ),
        (
            POOL,
            {"external_tokens": 5},
            "KV moved: none, as expected in mode Aggregated; not proven: "
            "5 tokens came through a connector, but mode Aggregated has none",
        ),
    ],
)
def test_verdict(evidence: Evidence, changes: dict[str, Any], verdict: str) -> None:
    proof = judge(replace(evidence, **changes))
    assert proof.lines[-1] == verdict
    assert proof.proven is ("not proven" not in verdict)


def test_lines() -> None:
    assert str(judge(MOVED)) == (
        "Proof\n"
        "  order      PrefillFirst (NIXL)\n"
        "  prefill    prefill-0     127.0.0.1:8101   41.2 ms\n"
        "  hand-off   9.8 ms to decode's first event\n"
        "  decode     decode-0      127.0.0.1:8102\n"
        "  KV         612 of 612 prompt tokens came through the connector\n"
        "  text       equal to a single engine's (prefill-0, 24 tokens)\n"
        "  total      310.5 ms for 612 + 24 tokens\n"
        "KV moved: yes"
    )


def test_a_different_text_is_reported() -> None:
    assert "  text       NOT equal to a single engine's" in str(judge(replace(MOVED, text="other")))


def test_only_external_tokens_are_counted() -> None:
    metrics = (
        "# HELP vllm:prompt_tokens_by_source_total Number of prompt tokens by source.\n"
        "# TYPE vllm:prompt_tokens_by_source_total counter\n"
        'vllm:prompt_tokens_by_source_total{engine="0",source="local_compute"} 9.0\n'
        'vllm:prompt_tokens_by_source_total{engine="0",source="external_kv_transfer"} 600.0\n'
        'vllm:prompt_tokens_by_source_total{engine="1",source="external_kv_transfer"} 12.0\n'
        'vllm:prompt_tokens_by_source_created{engine="1",source="external_kv_transfer"} 1.7e9\n'
    )
    assert external_tokens(metrics) == 612
    assert external_tokens("") == 0


@pytest.mark.parametrize(
    ("header", "phases"),
    [
        ("prefill;dur=12.3, handoff;dur=4.5", {"prefill": 12.3, "handoff": 4.5}),
        ("decode;dur=7", {"decode": 7.0}),
        ("", {}),
    ],
)
def test_phases(header: str, phases: dict[str, float]) -> None:
    assert _timing({"server-timing": header}) == phases
