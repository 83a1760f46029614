"""Members that vLLM's lax models accept in several forms, and comments that keep a stream alive."""

import json
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from pydantic import BaseModel

from pdx_sim import FaultKind, SimEngine
from tests.component.sim.conftest import FAST

FALSE = [False, "false", "False", "no", "off", "f", "n", "0", 0, 0.0, None]
TRUE = [True, "true", "yes", "on", "t", "y", "1", 1, 1.0]


async def post(engine: SimEngine, **members: Any) -> tuple[int, dict[str, Any]]:
    body = {"prompt": "hi", **members}
    async with aiohttp.ClientSession() as session, session.post(f"{engine.url}/v1/completions", json=body) as response:
        return response.status, await response.json()


async def is_streamed(engine: SimEngine, chat: bool, stream: Any) -> bool:
    path, question = ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]})
    if not chat:
        path, question = "/v1/completions", {"prompt": "hi"}  # type: ignore[dict-item]
    body = {**question, "stream": stream, "max_tokens": 1}
    async with aiohttp.ClientSession() as session, session.post(engine.url + path, json=body) as response:
        assert response.status == 200, await response.text()
        return response.headers["Content-Type"].startswith("text/event-stream")


@pytest.mark.parametrize("chat", [False, True])
async def test_stream_is_read_as_vllm_reads_it(chat: bool) -> None:
    async with SimEngine(FAST) as engine:
        assert [await is_streamed(engine, chat, each) for each in FALSE] == [False] * len(FALSE)
        assert [await is_streamed(engine, chat, each) for each in TRUE] == [True] * len(TRUE)


def test_the_forms_are_pydantics_own() -> None:
    class Model(BaseModel):
        stream: bool | None = False

    assert not any(Model(stream=each).stream for each in FALSE)
    assert all(Model(stream=each).stream for each in TRUE)


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"stream": "maybe"}, "stream"),
        ({"stream": 2}, "stream"),
        ({"n": "x"}, "n"),
        ({"n": None}, "n"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"ignore_eos": None}, "ignore_eos"),
    ],
)
async def test_other_values_are_refused(members: dict[str, Any], param: str) -> None:
    async with SimEngine(FAST) as engine:
        status, answer = await post(engine, **members)
    assert (status, answer["error"]["param"]) == (400, param)


async def test_numbers_and_flags_are_lax_too() -> None:
    members = {"n": "2", "max_tokens": 3.0, "ignore_eos": "yes", "echo": "off", "min_tokens": "1"}
    async with SimEngine(replace(FAST, answer_tokens=2)) as engine:
        _, answer = await post(engine, **members)
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["length", "length"]
    assert not answer["choices"][0]["text"].startswith("hi")


async def test_an_idle_stream_sends_comments() -> None:
    settings = replace(FAST, sse_keep_alive_interval=1)
    async with SimEngine(settings) as engine, aiohttp.ClientSession() as session:
        engine.faults.add(FaultKind.LONG_PREFILL, seconds=2.5)
        body = {"prompt": "hi", "max_tokens": 2, "stream": True}
        async with session.post(f"{engine.url}/v1/completions", json=body) as response:
            events = (await response.text()).split("\n\n")
    comments = events.count(": keep-alive")
    assert events[:comments] == [": keep-alive"] * comments, "before the first event"
    assert comments >= 2
    assert json.loads(events[comments].removeprefix("data: "))["object"] == "text_completion"


async def test_a_fault_after_events_does_not_count_comments() -> None:
    settings = replace(FAST, sse_keep_alive_interval=1)
    async with SimEngine(settings) as engine, aiohttp.ClientSession() as session:
        engine.faults.add(FaultKind.ERROR_EVENT, events=1)
        body = {"prompt": "hi", "max_tokens": 3, "stream": True}
        async with session.post(f"{engine.url}/v1/completions", json=body) as response:
            events = (await response.text()).split("\n\n")
    assert [event[:14] for event in events] == ['data: {"id":"c', 'data: {"error"', "data: [DONE]", ""]
