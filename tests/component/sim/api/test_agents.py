"""/v1/messages and /v1/responses, as strict as vLLM: the clients' own models read the answers."""

import json
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from pdx_sim import FaultKind, SimEngine, chat_tokens, expected_text
from tests.component.sim.conftest import FAST

MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
CHAT = [{"role": "user", "content": "hi"}]
REQUESTS: dict[str, dict[str, Any]] = {
    MESSAGES: {"model": "sim", "messages": CHAT, "max_tokens": 3},
    RESPONSES: {"model": "sim", "input": "hi", "max_output_tokens": 3},
}


async def post(engine: SimEngine, path: str, headers: dict[str, str] | None = None, **more: Any) -> tuple[int, Any]:
    body = {**REQUESTS[path.removesuffix("/count_tokens")], **more}
    url = engine.url + path
    async with aiohttp.ClientSession() as session, session.post(url, json=body, headers=headers) as response:
        text = await response.text()
        return response.status, text if body.get("stream") and response.status == 200 else json.loads(text)


def events(text: str) -> list[dict[str, Any]]:
    """The data of events whose names are their types."""
    found = []
    for part in text.split("\n\n")[:-1]:
        name, data = part.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


async def test_a_message() -> None:
    async with SimEngine(FAST) as engine:
        _, whole = await post(engine, MESSAGES, {"X-Request-Id": "mine"})
        _, stream = await post(engine, MESSAGES, stream=True)
        _, counted = await post(engine, f"{MESSAGES}/count_tokens")
    text, tokens = expected_text(chat_tokens(CHAT), 3), len(chat_tokens(CHAT))
    read = Message.model_validate(whole, strict=True)
    assert (read.content[0].to_dict()["text"], read.stop_reason, read.id) == (text, "max_tokens", "chatcmpl-mine")
    assert (read.usage.input_tokens, read.usage.output_tokens) == (tokens, 3)
    assert "kv_transfer_params" not in whole, "members without a value are missing"
    chunks = events(stream)
    for chunk in chunks:
        TypeAdapter(RawMessageStreamEvent).validate_python(chunk)
    kinds = ["message_start", "content_block_start", *["content_block_delta"] * 3, "content_block_stop"]
    assert [chunk["type"] for chunk in chunks] == [*kinds, "message_delta", "message_stop"]
    assert "".join(chunk["delta"]["text"] for chunk in chunks[2:5]) == text
    assert chunks[-2]["usage"] == {"input_tokens": tokens, "output_tokens": 3, "cache_read_input_tokens": 0}
    assert counted["input_tokens"] == tokens


async def test_a_response() -> None:
    async with SimEngine(FAST) as engine:
        _, whole = await post(engine, RESPONSES, {"X-Request-Id": "mine"})
        _, stream = await post(engine, RESPONSES, stream=True, request_id="resp_1")
    text = expected_text(chat_tokens(CHAT), 3)
    read = Response.model_validate(whole)
    assert (read.output_text, read.status, read.id[:5]) == (text, "incomplete", "resp_")
    assert "mine" not in json.dumps(whole), "the header is not read"
    chunks = events(stream)
    for chunk in chunks:
        TypeAdapter(ResponseStreamEvent).validate_python(chunk)
    assert [chunk["sequence_number"] for chunk in chunks] == list(range(len(chunks)))
    assert [chunk["type"] for chunk in chunks[:3]] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
    ]
    assert "".join(chunk["delta"] for chunk in chunks if chunk["type"] == "response.output_text.delta") == text
    last = chunks[-1]["response"]
    assert (last["id"], last["usage"]["output_tokens"]) == ("resp_1", 3)
    assert last["output"][0]["content"] == whole["output"][0]["content"]


@pytest.mark.parametrize(
    ("path", "more", "status", "kind"),
    [
        (MESSAGES, {"max_tokens": 0}, 400, "Bad Request"),
        (MESSAGES, {"messages": [{"role": "tool", "content": "a"}]}, 400, "Bad Request"),
        (MESSAGES, {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, 400, "Bad Request"),
        (MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": 1024}}, 400, "Bad Request"),
        (MESSAGES, {"model": "x"}, 404, "NotFoundError"),
        (MESSAGES, {"max_tokens": 99999}, 400, "BadRequestError"),
        (RESPONSES, {"input": None}, 400, "Bad Request"),
        (RESPONSES, {"prompt": {"id": "p"}}, 400, "Bad Request"),
        (RESPONSES, {"background": True, "store": False}, 400, "Bad Request"),
        (RESPONSES, {"background": True}, 400, "invalid_request_error"),
        (RESPONSES, {"previous_response_id": "resp_1"}, 404, "invalid_request_error"),
        (RESPONSES, {"max_output_tokens": 99999}, 400, "BadRequestError"),
        (RESPONSES, {"model": "x"}, 404, "NotFoundError"),
    ],
)
async def test_refusals(path: str, more: dict[str, Any], status: int, kind: str) -> None:
    """Errors of the HTTP server have one shape. Others of a message have Anthropic's."""
    async with SimEngine(FAST) as engine:
        got, body = await post(engine, path, **more)
    assert (got, body["error"]["type"]) == (status, kind)
    assert (body.get("type") == "error") is (path == MESSAGES and kind != "Bad Request")


async def test_a_forced_tool_is_parsed_from_the_answer() -> None:
    """As by vLLM with a tool parser without structural tags: after the work, and one token is no JSON."""
    forced: dict[str, Any] = {"tool_choice": {"type": "tool", "name": "weather"}}
    async with SimEngine(FAST) as engine:
        _, whole = await post(engine, MESSAGES, **forced)
        status, error = await post(engine, MESSAGES, **forced, max_tokens=1)
        finished = engine.counts.finished.total()
        nameless, _ = await post(engine, MESSAGES, tool_choice={"type": "tool"})
    (block,) = Message.model_validate(whole, strict=True).content
    assert (block.type, block.to_dict()["name"]) == ("tool_use", "weather")
    assert (status, error["type"], error["error"]["type"]) == (400, "error", "BadRequestError")
    assert (finished, nameless) == (2, 400)


async def test_a_conversation_is_a_prompt() -> None:
    """The parts of both APIs that make the prompt change it; what vLLM removes does not."""
    tool = {"name": "go", "input_schema": {"type": "object"}}
    calls = {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "go", "input": {}}]}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "done"}]}
    bodies: list[tuple[str, dict[str, Any]]] = [
        (MESSAGES, {}),
        (MESSAGES, {"system": "be brief"}),
        (MESSAGES, {"tools": [tool]}),
        (MESSAGES, {"messages": [*CHAT, calls]}),
        (MESSAGES, {"messages": [*CHAT, calls, result]}),
        (RESPONSES, {"instructions": "be"}),
        (RESPONSES, {"input": [*CHAT, {"type": "function_call", "name": "go", "arguments": "{}"}]}),
        (RESPONSES, {"input": [*CHAT, {"type": "function_call_output", "output": "done"}]}),
    ]
    async with SimEngine(FAST) as engine:
        texts = [str((await post(engine, path, **body))[1].get("content") or body) for path, body in bodies]
        assert len(set(texts)) == len(bodies)
        systems = [[{"type": "text", "text": f"x-anthropic-billing-header: {n}"}] for n in range(2)]
        one, other = [(await post(engine, MESSAGES, system=system))[1]["content"] for system in systems]
    assert one == other


async def test_the_end_of_an_engine() -> None:
    async with SimEngine(replace(FAST, prompt_tokens_details=False)) as engine:
        for path in (MESSAGES, RESPONSES):
            engine.faults.add(FaultKind.ABORT)
            _, body = await post(engine, path)
            assert "stop_reason" not in body
            assert body.get("status", "completed") == "completed"
            assert body["usage"]["output_tokens"] == 0
        engine.faults.add(FaultKind.ERROR_EVENT, events=1)
        _, stream = await post(engine, MESSAGES, stream=True)
        assert events(stream)[-1]["error"]["type"] == "internal_error"
        engine.faults.add(FaultKind.ERROR_EVENT, events=2)
        with pytest.raises(aiohttp.ClientPayloadError):
            await post(engine, RESPONSES, stream=True)
