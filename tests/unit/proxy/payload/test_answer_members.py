"""What D would refuse is not split: the rules, beside vLLM's own request models."""

import json
import subprocess
import sys
from collections.abc import Generator
from itertools import product
from typing import Any, Final, cast

import pytest

from pdx_proxy.payload.answer_members import SHAPING
from pdx_proxy.payload.body import LARGE_BYTES, Body, read_body, read_large_body
from pdx_proxy.payload.decisions import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from pdx_proxy.payload.features import PromptReader
from pdx_sim import SimSettings
from pdx_sim.api.members import ChatMembers, CompletionMembers
from pdx_sim.api.request import APIError, read_completion

_HI: Final = [{"role": "user", "content": "hi"}]
BASE: Final[dict[str, dict[str, Any]]] = {
    COMPLETIONS: {"model": "m", "prompt": "hi"},
    CHAT: {"model": "m", "messages": _HI},
    MESSAGES: {"model": "m", "messages": _HI, "max_tokens": 2000},
    RESPONSES: {"model": "m", "input": "hi"},
}
_VALUES: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, 1, 2, 5, 16, 17, 20, 21, -1, 1000, 1.5, 2.0, 10**14, "", "x", "5", "true"),
    *([], ["x"], [""], ["x", ""], [5], [5, -1], ["5"], ["a", "b", "c", "d", "e"], [None], [[1]], [1.5]),
    *({}, {"include_usage": True}, {"include_usage": None}, {"include_usage": "x"}, {"include_usage": 1}),
    *({"json": {"type": "object"}}, {"json": 5}, {"regex": "a+"}, {"choice": ["a"]}, {"choice": "a"}, {"choice": []}),
    *({"json": {}, "regex": "a"}, {"json_object": True}, {"json_object": 1}, {"grammar": "root ::= 'a'"}, {"x": 1}),
    *({"max_pattern_size": 3, "min_count": 3}, {"max_pattern_size": 3}, {"min_pattern_size": 2}, {"min_count": "x"}),
    *({"type": "enabled", "budget_tokens": 1024}, {"type": "enabled", "budget_tokens": 5}, {"type": "enabled"}),
    *({"type": "disabled"}, {"type": "adaptive"}, {"type": "other"}, ["reasoning.encrypted_content"]),
)
_TOGETHER: Final[tuple[dict[str, Any], ...]] = (
    *(
        {"stream": stream, "stream_options": given}
        for stream, given in product((True, False), ({}, {"include_usage": True}))
    ),
    *({"min_tokens": least, "max_tokens": most} for least, most in product((0, 3, 9), (1, 3, 9, None))),
    *({"min_tokens": least, "max_completion_tokens": most} for least, most in product((0, 3, 17), (3, None))),
    *({"logprobs": given, "top_logprobs": top} for given, top in product((True, False, None, 3), (0, 3, 21, -1, None))),
    *({"logprobs": given, "logprob_token_ids": [1, 2]} for given in (True, None, 2, 3)),
)
BODIES: Final = [
    (path, {**BASE[path], **extra})
    for path, names in SHAPING.items()
    for extra in (*({name: value} for name, value in product(sorted({*names, "thinking"}), _VALUES)), *_TOGETHER)
]
_ASK_VLLM: Final = """
import json, sys
from types import SimpleNamespace
from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
MODELS = {"/v1/completions": CompletionRequest, "/v1/chat/completions": ChatCompletionRequest,
          "/v1/messages": AnthropicMessagesRequest, "/v1/responses": ResponsesRequest}
CONFIG = SimpleNamespace(max_logprobs=20, get_vocab_size=lambda: 32000)
for path, body in json.load(sys.stdin):
    try:
        request = MODELS[path].model_validate(body)
        if path != "/v1/messages":
            name = {"/v1/completions": "max_tokens", "/v1/responses": "max_output_tokens"}.get(path)
            most = getattr(request, name) if name else request.max_completion_tokens
            if path == "/v1/chat/completions" and most is None:
                most = request.max_tokens
            params = request.to_sampling_params(4000 if most is None else most, {})
            params._validate_logprobs(CONFIG)
        print(json.dumps(True))
    except Exception as error:
        print(json.dumps(False))
"""


def _splits(path: str, body: dict[str, Any]) -> bool:
    return read_body(json.dumps(body).encode(), "application/json", path, PromptReader()).decisions.splits


def ask_vllm() -> list[bool]:
    """Whether vLLM's models accept each body of `BODIES`."""
    run = subprocess.run(
        [sys.executable, "-c", _ASK_VLLM], input=json.dumps(BODIES), capture_output=True, text=True, check=True
    )
    return [json.loads(line) for line in run.stdout.splitlines() if line in ("true", "false")]


@pytest.fixture(scope="module")
def verdicts() -> list[bool]:
    return ask_vllm()


def test_nothing_is_split_that_vllm_refuses(verdicts: list[bool]) -> None:
    """Nearly everything else is: values such as `"5"` and `2.0`, which vLLM converts, are read by D alone."""
    assert len(verdicts) == len(BODIES) >= 500
    judged = [(body, accepts, _splits(path, body)) for (path, body), accepts in zip(BODIES, verdicts, strict=True)]
    assert [body for body, accepts, splits in judged if splits and not accepts] == []
    whole = [body for body, accepts, splits in judged if accepts and not splits]
    assert len(whole) <= verdicts.count(True) * 0.35


def test_the_simulator_refuses_what_vllm_refuses(verdicts: list[bool]) -> None:
    """By the members that it reads. vLLM's models accept any length, which its server compares with the model's."""
    settings, judged = SimSettings(model="m", max_model_len=8000), 0
    read = {COMPLETIONS: CompletionMembers.model_fields.keys(), CHAT: ChatMembers.model_fields.keys()}
    for (path, body), accepts in zip(BODIES, verdicts, strict=True):
        given = body.keys() - BASE[path].keys()
        if path not in read or not given <= read[path] or 10**14 in body.values():
            continue
        try:
            read_completion(body, path, None, settings)
        except APIError:
            assert not accepts, body
        else:
            assert accepts, body
        judged += 1
    assert judged > 900


@pytest.mark.parametrize(
    ("path", "given"),
    [
        (COMPLETIONS, {"max_tokens": 5, "stop": ["a", "b"], "stream": True, "stream_options": {"include_usage": True}}),
        (COMPLETIONS, {"logprobs": 5, "min_tokens": 3, "ignore_eos": True, "stop_token_ids": [1]}),
        (COMPLETIONS, {"max_tokens": None, "stop": None, "logprobs": None, "stream": False, "stream_options": None}),
        (COMPLETIONS, {"structured_outputs": {"regex": "a+"}, "return_token_ids": True}),
        (CHAT, {"max_completion_tokens": 5, "logprobs": True, "top_logprobs": 20, "min_tokens": 5}),
        (CHAT, {"max_tokens": 5, "stop": "a", "structured_outputs": {"json": {"type": "object"}}}),
        (CHAT, {"logprobs": False, "top_logprobs": 0, "min_tokens": 100}),
        (MESSAGES, {"stop_sequences": ["a"], "stream": True, "thinking": {"type": "enabled", "budget_tokens": 1024}}),
        (MESSAGES, {"stop_sequences": [], "thinking": None}),
        (RESPONSES, {"max_output_tokens": 5, "store": False, "include": ["reasoning.encrypted_content"]}),
        (RESPONSES, {"store": None, "top_logprobs": 3, "stop": ["a"], "structured_outputs": {"choice": ["a", "b"]}}),
    ],
)
def test_what_clients_usually_send_is_split(path: str, given: dict[str, Any]) -> None:
    assert _splits(path, {**BASE[path], **given})


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_a_large_body_is_judged_alike(path: str) -> None:
    """It is read in slices, and its members are views."""
    text = "x" * (LARGE_BYTES + 1)
    large = {
        **BASE[path],
        **({"prompt": text} if path == COMPLETIONS else {"messages": [{"role": "user", "content": text}]}),
    }
    for given, splits in (
        ({"max_tokens": 5, "stop": ["a"]}, True),
        ({"stop": 5}, False),
        ({"min_tokens": 9, "max_tokens": 3}, False),
    ):
        reader = read_large_body(json.dumps({**large, **given}).encode(), "application/json", path)
        assert _end(reader).decisions.splits is splits, given


def _end(reader: Generator[int, None, Body]) -> Body:
    """What it returns."""
    while True:
        try:
            next(reader)
        except StopIteration as end:
            return cast("Body", end.value)
