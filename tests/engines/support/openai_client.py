"""The `openai` client, unchanged, in front of the gateway: what vLLM answers is what the client gets."""

import io
import json
import re
from typing import Any

import aiohttp
import openai
import pytest

from tests.engines.conftest import Pair
from tests.engines.support.harness import MODEL, Gateway, make_prompt

MESSAGES: list[Any] = [{"role": "user", "content": make_prompt(9, 40)}]
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
    }
]

WEATHER = {"type": "function", "function": {"name": "weather"}}
CHAT_CASES = [
    pytest.param({}, id="plain"),
    pytest.param({"n": 3, "temperature": 0.7, "seed": 3}, id="n"),
    pytest.param({"logprobs": True, "top_logprobs": 2}, id="logprobs"),
    pytest.param({"tools": TOOLS, "tool_choice": "none"}, id="tools"),
    pytest.param({"tools": TOOLS, "tool_choice": WEATHER, "max_tokens": 64}, id="tool-call"),
    pytest.param({"stop": ["zz"], "seed": 5, "presence_penalty": 0.3}, id="sampling"),
    pytest.param({"max_completion_tokens": 7, "max_tokens": None}, id="max_completion_tokens"),
    pytest.param({"response_format": {"type": "json_object"}}, id="json"),
]

MISTAKES: list[Any] = [
    pytest.param("/v1/chat/completions", {"model": "nope", "messages": MESSAGES}, id="wrong-model"),
    pytest.param("/v1/completions", {"model": "nope", "prompt": "x", "stream": True}, id="wrong-model-stream"),
    pytest.param("/v1/chat/completions", {"model": MODEL}, id="no-messages"),
    pytest.param("/v1/chat/completions", {"model": MODEL, "messages": "text"}, id="messages-no-list"),
    pytest.param("/v1/completions", {"model": MODEL, "prompt": "x", "max_tokens": -1}, id="max-tokens-negative"),
    pytest.param("/v1/completions", {"model": MODEL, "prompt": "x", "max_tokens": 99999}, id="max-tokens-too-many"),
    pytest.param("/v1/completions", {"model": MODEL, "prompt": "x", "temperature": -3}, id="temperature"),
    pytest.param("/v1/completions", {"model": MODEL, "prompt": "x", "n": 0}, id="n-zero"),
    pytest.param("/v1/completions", {"model": MODEL, "prompt": "ab " * 700_000}, id="2-MB-prompt"),
    pytest.param(
        "/v1/chat/completions",
        {"model": MODEL, "messages": [{"role": "user", "content": "ab " * 700_000}]},
        id="2-MB-chat",
    ),
    pytest.param("/v1/completions", b'{"model": "tiny", "prompt": ', id="no-json"),
    pytest.param("/v1/completions", b"", id="empty"),
    pytest.param("/v1/completions", b"[1]", id="list"),
    pytest.param("/v1/completions", b'"text"', id="string"),
    pytest.param("/v1/completions", b"7", id="number"),
    pytest.param("/v1/completions", b'{"prompt": "x", "max_tokens": 1,}', id="trailing-comma"),
    pytest.param("/v1/embeddings", {"model": MODEL, "input": "x"}, id="embeddings-of-a-generator"),
    pytest.param("/v1/nothing", {}, id="unknown-path"),
]


class OpenAIClient:
    """The cases; a wiring's module inherits them and brings its `front` and `pair`."""

    @pytest.mark.parametrize("extra", CHAT_CASES)
    async def test_chat(self, client: openai.AsyncOpenAI, direct: openai.AsyncOpenAI, extra: dict[str, Any]) -> None:
        arguments = {"model": MODEL, "messages": MESSAGES, "max_tokens": 12, "temperature": 0, **extra}
        got = await client.chat.completions.create(**arguments)
        own = await direct.chat.completions.create(**arguments)
        assert [_choice(choice) for choice in own.choices] == [_choice(choice) for choice in got.choices]
        assert got.usage is not None
        assert own.usage is not None
        assert (own.usage.prompt_tokens, own.usage.completion_tokens) == (
            got.usage.prompt_tokens,
            got.usage.completion_tokens,
        )

    async def test_chat_stream_with_usage(self, client: openai.AsyncOpenAI, direct: openai.AsyncOpenAI) -> None:
        arguments: dict[str, Any] = {
            "model": MODEL,
            "messages": MESSAGES,
            "max_tokens": 12,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        got = [chunk async for chunk in await client.chat.completions.create(**arguments)]
        own = [chunk async for chunk in await direct.chat.completions.create(**arguments)]
        assert _streamed(own) == _streamed(got)
        assert got[-1].usage is not None
        assert got[-1].usage.completion_tokens == 12

    @pytest.mark.parametrize(
        "extra",
        [
            pytest.param({"prompt": make_prompt(10, 40)}, id="plain"),
            pytest.param({"prompt": make_prompt(10, 40), "n": 2, "temperature": 0.7, "seed": 3}, id="n"),
            pytest.param({"prompt": [make_prompt(10, 40), make_prompt(11, 40)]}, id="two-prompts"),
            pytest.param({"prompt": [5, 6, 7, 8] * 40}, id="tokens"),
            pytest.param({"prompt": make_prompt(10, 40), "logprobs": 2}, id="logprobs"),
            pytest.param({"prompt": make_prompt(10, 40), "echo": True}, id="echo"),
        ],
    )
    async def test_completion(
        self, client: openai.AsyncOpenAI, direct: openai.AsyncOpenAI, extra: dict[str, Any]
    ) -> None:
        arguments = {"model": MODEL, "max_tokens": 12, "temperature": 0, **extra}
        got = await client.completions.create(**arguments)
        own = await direct.completions.create(**arguments)
        assert [choice.text for choice in own.choices] == [choice.text for choice in got.choices]
        assert [choice.finish_reason for choice in own.choices] == [choice.finish_reason for choice in got.choices]

    async def test_completion_stream(self, client: openai.AsyncOpenAI, direct: openai.AsyncOpenAI) -> None:
        arguments: dict[str, Any] = {
            "model": MODEL,
            "prompt": make_prompt(12, 60),
            "max_tokens": 12,
            "temperature": 0,
            "stream": True,
        }
        got = [chunk.choices[0].text async for chunk in await client.completions.create(**arguments)]
        own = [chunk.choices[0].text async for chunk in await direct.completions.create(**arguments)]
        assert "".join(own) == "".join(got)

    async def test_models(self, client: openai.AsyncOpenAI) -> None:
        assert [model.id async for model in client.models.list()] == [MODEL]

    @pytest.mark.parametrize(("path", "body"), MISTAKES)
    async def test_a_mistake_gets_vllms_own_message(
        self, session: aiohttp.ClientSession, front: Gateway, pair: Pair, path: str, body: Any
    ) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        got = await _post(session, front.url + path, data)
        own = await _post(session, pair.prefill.url + path, data)
        assert 400 <= own[0] < 500
        if own != got and await pair.version(session) < "0.30":  # which writes the details in another form
            own, got = _without_details(own), _without_details(got)
        assert own == got


async def _post(session: aiohttp.ClientSession, url: str, data: bytes) -> tuple[int, Any]:
    async with session.post(url, data=io.BytesIO(data), headers={"content-type": "application/json"}) as response:
        return response.status, await response.json()


def _without_details(answer: tuple[int, Any]) -> Any:
    """The answer to a body that is no JSON object, with the kind of its error alone as message."""
    status, body = answer
    kind = re.match(r"1 validation error:\n  \{'type': '(\w+)'", body["error"]["message"])
    return status, {**body["error"], "message": kind and kind[1]}


def _choice(choice: Any) -> Any:
    """Without what is random: vLLM before 0.31 makes up an ID for each call of a tool."""
    described = choice.model_dump()
    described.pop("stop_reason", None)
    for call in described["message"]["tool_calls"] or ():
        call.pop("id")
    return described


def _streamed(chunks: list[Any]) -> tuple[str, list[str]]:
    """Text and finish reasons; vLLM puts several tokens into one chunk when its front end is behind."""
    choices = [choice for chunk in chunks for choice in chunk.choices]
    return "".join(c.delta.content or "" for c in choices), [c.finish_reason for c in choices if c.finish_reason]
