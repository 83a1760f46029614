"""Which requests can be split."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdx_proxy.payload.body import read_body
from pdx_proxy.payload.request import can_split
from tests.unit.proxy.payload.test_body import BODIES, JSON

TEXT = "/v1/completions"
CHAT = "/v1/chat/completions"
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
    (TEXT, {"prompt": "a", "n": None}, True),
    (TEXT, {"prompt": "a", "n": 2}, False),
    (TEXT, {"prompt": "a", "n": "1"}, False),
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


@pytest.mark.parametrize(("path", "body", "expected"), SPLIT)
def test_can_split(path: str, body: dict[str, Any], expected: bool) -> None:
    assert can_split(path, body) is expected


@given(st.sampled_from([TEXT, CHAT]), BODIES)
def test_can_split_accepts_any_body(path: str, body: dict[str, Any]) -> None:
    assert can_split(path, body) in (True, False)


PROMPTS = [
    "x" * 100,
    "",
    [1] * 100,
    [-7, *[1] * 100],
    ["a" * 70],
    ["a" * 70, "b"],
    [[1] * 70],
    [[1] * 70, [2]],
    {"a": "b" * 70},
]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_a_long_prompt_is_classified_by_its_kind(prompt: Any) -> None:
    for raw in (orjson.dumps({"prompt": prompt}), json.dumps({"prompt": prompt}, indent=1).encode()):
        assert can_split(TEXT, read_body(raw, JSON).fields) is can_split(TEXT, {"prompt": prompt})
