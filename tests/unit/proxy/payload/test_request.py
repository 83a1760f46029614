"""Which requests can be split."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdx_proxy.payload.body import read_body
from tests.unit.proxy.payload.bodies import BODIES, CHAT, JSON, TEXT

SPLIT: list[tuple[str, dict[str, Any], bool]] = [
    (TEXT, {"prompt": "a"}, True),
    (TEXT, {"prompt": ""}, False),
    (TEXT, {}, False),
    (TEXT, {"prompt": None}, False),
    (TEXT, {"prompt": 5}, False),
    (TEXT, {"prompt": []}, False),
    (TEXT, {"prompt": [1, 2]}, True),
    (TEXT, {"prompt": ["a"]}, True),
    (TEXT, {"prompt": ["a", "b"]}, False),
    (TEXT, {"prompt": [[1, 2]]}, True),
    (TEXT, {"prompt": [[1], [2]]}, False),
    (TEXT, {"prompt": "a", "prompt_embeds": "x"}, False),
    (TEXT, {"prompt": "a", "n": 1}, True),
    (TEXT, {"prompt": "a", "n": None}, False),
    (TEXT, {"prompt": "a", "n": 2}, False),
    (TEXT, {"prompt": "a", "n": "1"}, True),
    (TEXT, {"prompt": "a", "n": 0}, False),
    (TEXT, {"prompt": "a", "best_of": 2}, False),
    (TEXT, {"prompt": "a", "use_beam_search": True}, False),
    (TEXT, {"prompt": "a", "echo": True}, False),
    (TEXT, {"prompt": "a", "echo": False}, True),
    (TEXT, {"prompt": "a", "prompt_logprobs": 0}, False),
    (TEXT, {"prompt": "a", "prompt_logprobs": None}, True),
    (CHAT, {"messages": []}, True),
    (CHAT, {"messages": [], "n": 3}, False),
    (CHAT, {"messages": [], "prompt_logprobs": 1}, False),
]


def _splits(path: str, body: dict[str, Any], indent: int | None = None) -> bool:
    return read_body(json.dumps(body, indent=indent).encode(), JSON, path).decisions.splits


@pytest.mark.parametrize(("path", "body", "expected"), SPLIT)
def test_splits(path: str, body: dict[str, Any], expected: bool) -> None:
    assert _splits(path, body) is expected


@given(st.sampled_from([TEXT, CHAT]), BODIES)
def test_any_body_is_decided(path: str, body: dict[str, Any]) -> None:
    decisions = read_body(orjson.dumps(body), JSON, path).decisions
    assert {decisions.splits, decisions.stream} <= {True, False}


PROMPTS: list[tuple[Any, bool]] = [
    ("x" * 100, True),
    ("", False),
    ([1] * 100, True),
    ([-7, *[1] * 100], True),
    (["a" * 70], True),
    (["a" * 70, "b"], False),
    ([[1] * 70], True),
    ([[1] * 70, [2]], False),
    ({"a": "b" * 70}, False),
    ([1.5] * 100, False),
    ([True, False], True),
]


@pytest.mark.parametrize(("prompt", "expected"), PROMPTS)
def test_a_prompt_is_classified_by_its_kind(prompt: Any, expected: bool) -> None:
    assert _splits(TEXT, {"prompt": prompt}) is _splits(TEXT, {"prompt": prompt}, indent=1) is expected


SILENT = {
    "chat-hides": ("chat/completions", b'"include_reasoning":false', True),
    "chat-hides-as-text": ("chat/completions", b'"include_reasoning":"off"', True),
    "chat-shows": ("chat/completions", b'"include_reasoning":true', False),
    "chat": ("chat/completions", b'"n":1', False),
    "chat-tools": ("chat/completions", b'"tools":[{"type":"function"}]', True),
    "responses-hides": ("responses", b'"include_reasoning":0', True),
    "responses": ("responses", b'"temperature":0', False),
    "messages-thinking": ("messages", b'"thinking":{"type":"adaptive","display":"omitted"}', True),
    "messages-hides": ("messages", b'"include_reasoning":false', True),
    "messages": ("messages", b'"include_reasoning":null', False),
    "completions": ("completions", b'"include_reasoning":false', False),
}


@pytest.mark.parametrize("name", SILENT)
def test_streams_whose_engine_may_be_silent(name: str) -> None:
    path, member, silent = SILENT[name]
    for stream in (True, False):
        prompt = b"prompt" if path == "completions" else b"input"
        raw = b'{"%b":"a","stream":%b,"max_tokens":9,%b}' % (prompt, str(stream).lower().encode(), member)
        decisions = read_body(raw, "application/json", f"/v1/{path}").decisions
        assert decisions.stream is stream
        assert decisions.may_be_silent is (silent and stream)
        assert decisions.splits
