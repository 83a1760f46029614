"""The HTTP API: shapes, errors, faults, starting and stopping."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from pdx_sim import FaultKind, SimEngine, expected_text, tokenize
from pdx_sim.core.tokens import chat_tokens
from tests.component.sim.conftest import FAST, PROMPT, MakePair, until

PROMPT_TOKENS = 700


async def post(engine: SimEngine, path: str = "/v1/completions", **body: Any) -> tuple[int, Any]:
    body = {"model": "sim", **({"prompt": PROMPT} if path == "/v1/completions" else {}), **body}
    async with aiohttp.ClientSession() as session, session.post(engine.url + path, json=body) as response:
        text = await response.text()
        return response.status, text if body.get("stream") else json.loads(text)


async def test_completion_whole() -> None:
    async with SimEngine(FAST) as engine:
        status, body = await post(engine, max_tokens=3)
    assert status == 200
    assert body["object"] == "text_completion"
    assert body["choices"][0]["text"] == expected_text(tokenize(PROMPT), 3)
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["total_tokens"] == PROMPT_TOKENS + 3
    assert body["kv_transfer_params"] is None


async def test_several_prompts_and_choices() -> None:
    async with SimEngine(FAST) as engine:
        _, body = await post(engine, prompt=["one", [1, 2, 3]], n=2, max_tokens=1)
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert body["choices"][3]["text"] == expected_text([1, 2, 3], 1)
    assert body["usage"]["prompt_tokens"] == 4


async def test_chat_stream_with_usage() -> None:
    messages = [{"role": "user", "content": "hi"}]
    async with SimEngine(FAST) as engine:
        path, options = "/v1/chat/completions", {"include_usage": True}
        _, text = await post(
            engine, path, messages=messages, max_completion_tokens=2, max_tokens=9, stream=True, stream_options=options
        )
    events = [event.removeprefix("data: ") for event in text.split("\n\n")]
    assert events[-2:] == ["[DONE]", ""]
    chunks = [json.loads(event) for event in events[:-2]]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    text = "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks[:-1])
    assert text == expected_text(chat_tokens(messages), 2)
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"
    assert chunks[-1]["usage"]["completion_tokens"] == 2
    assert not any("kv_transfer_params" in chunk for chunk in chunks)


async def test_ignore_eos_overrules_answer_tokens() -> None:
    async with SimEngine(replace(FAST, answer_tokens=4)) as engine:
        ends = [(await post(engine, max_tokens=9, ignore_eos=ignore))[1] for ignore in (False, True)]
    assert [body["choices"][0]["finish_reason"] for body in ends] == ["stop", "length"]
    assert [body["usage"]["completion_tokens"] for body in ends] == [4, 9]


@pytest.mark.parametrize(
    ("body", "status", "kind", "param"),
    [
        ({"model": "x"}, 404, "NotFoundError", "model"),
        ({"max_tokens": -4}, 400, "BadRequestError", "max_tokens"),
        ({"max_tokens": 99999}, 400, "BadRequestError", "max_tokens"),
        ({"max_tokens": 4000}, 400, "BadRequestError", "input_tokens"),
        ({"max_tokens": 2, "min_tokens": 3}, 400, "BadRequestError", "min_tokens"),
        ({"stream_options": {"include_usage": True}}, 400, "BadRequestError", "stream_options"),
        ({"max_tokens": "many"}, 400, "Bad Request", "max_tokens"),
        ({"prompt": {"no": "prompt"}}, 400, "Bad Request", "prompt"),
        ({"prompt": []}, 400, "BadRequestError", "prompt"),
    ],
)
async def test_refusals(body: dict[str, Any], status: int, kind: str, param: str) -> None:
    async with SimEngine(FAST) as engine:
        got, answer = await post(engine, **body)
    error = answer["error"]
    assert (got, error["code"], error["type"], error["param"]) == (status, status, kind, param)


async def test_broken_bodies_and_paths() -> None:
    async with SimEngine(FAST) as engine, aiohttp.ClientSession() as session:
        as_json = {"Content-Type": "application/json"}
        for data, headers, param in ((b"{nope", as_json, "body.1"), (b"{}", {"Content-Type": "text/plain"}, None)):
            async with session.post(f"{engine.url}/v1/completions", data=data, headers=headers) as response:
                assert response.status == 400
                assert (await response.json())["error"]["param"] == param
        async with session.get(f"{engine.url}/nope") as response:
            assert (response.status, await response.json()) == (404, {"detail": "Not Found"})
        async with session.get(f"{engine.url}/v1/completions") as response:
            assert (response.status, await response.json()) == (405, {"detail": "Method Not Allowed"})


async def test_metrics_and_state_contain_the_counts() -> None:
    async with SimEngine(FAST) as engine, aiohttp.ClientSession() as session:
        await post(engine, max_tokens=2)
        async with session.get(f"{engine.url}/metrics") as response:
            lines = (await response.text()).splitlines()
        async with session.get(f"{engine.url}/sim/state") as response:
            state = await response.json()
    assert f'vllm:prompt_tokens_total{{engine="0",model_name="sim"}} {PROMPT_TOKENS}.0' in lines
    assert state["counts"]["generation_tokens"] == 2
    assert state["counts"]["requests"] == {"/v1/completions": 1}
    assert state["blocks"] == {}


@pytest.mark.parametrize(
    ("kind", "stream"),
    [
        (FaultKind.DIE_BEFORE_HEAD, False),
        (FaultKind.LOSE_ANSWER, False),
        (FaultKind.DIE_AFTER_HEAD, False),
        (FaultKind.DIE_AFTER_HEAD, True),
        (FaultKind.DIE_AFTER_EVENTS, True),
        (FaultKind.DIE_IN_EVENT, True),
        (FaultKind.GARBAGE_BYTES, False),
    ],
)
async def test_faults_that_cut_the_connection(kind: FaultKind, stream: bool) -> None:
    async with SimEngine(FAST) as engine:
        engine.faults.add(kind, events=1)
        with pytest.raises(aiohttp.ClientError):
            await post(engine, stream=stream)
        assert (await post(engine))[0] == 200
        await until(lambda: engine.counts.blocks_held_now == 0)


@pytest.mark.parametrize(("kind", "stream"), [(FaultKind.HANG_BEFORE_HEAD, False), (FaultKind.HANG_AFTER_HEAD, True)])
async def test_faults_that_hang(kind: FaultKind, stream: bool) -> None:
    async with SimEngine(FAST) as engine:
        engine.faults.add(kind)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await post(engine, stream=stream)
        await until(lambda: engine.counts.blocks_held_now == 0)


async def test_faults_that_answer() -> None:
    async with SimEngine(FAST) as engine:
        engine.faults.add(FaultKind.STATUS, status=429)
        assert (await post(engine))[0] == 429
        engine.faults.add(FaultKind.ABORT)
        choice = (await post(engine))[1]["choices"][0]
        assert (choice["finish_reason"], choice["text"]) == ("abort", "")
        engine.faults.add(FaultKind.ERROR_EVENT, events=1)
        events = (await post(engine, stream=True))[1].split("\n\n")
        assert [event[:14] for event in events] == ['data: {"id":"c', 'data: {"error"', "data: [DONE]", ""]
        engine.faults.add(FaultKind.GARBAGE_JSON)
        with pytest.raises(json.JSONDecodeError):
            await post(engine)


async def test_a_port_that_refuses_opens_again() -> None:
    async with SimEngine(FAST) as engine:
        engine.faults.add(FaultKind.REFUSE)
        with pytest.raises(aiohttp.ClientConnectorError):
            await post(engine)
        engine.faults.clear()
        await until(lambda: engine.is_listening)
        assert (await post(engine))[0] == 200


async def test_faults_over_http() -> None:
    async with SimEngine(FAST) as engine, aiohttp.ClientSession() as session:
        async with session.post(f"{engine.url}/sim/faults", json=[{"kind": "status", "status": 503}]) as response:
            assert response.status == 200
        assert (await post(engine))[0] == 503
        async with session.post(f"{engine.url}/sim/faults", json={"kind": "nonsense"}) as response:
            assert response.status == 400


async def test_kill_resets_and_restart_serves_on_the_same_port(make_pair: MakePair) -> None:
    pair = await make_pair(prefill={"prefill_base_seconds": 30.0})
    url, first = pair.p.url, pair.p.engine_id
    task = asyncio.create_task(pair.prefill())
    await until(lambda: pair.p.counts.running_now)
    await pair.p.kill()
    with pytest.raises(aiohttp.ClientError):
        await task
    with pytest.raises(aiohttp.ClientConnectorError):
        await pair.post(pair.p)
    await pair.p.restart()
    assert pair.p.url == url
    assert pair.p.engine_id != first
    assert pair.p.counts.blocks_held_now == 0
    assert pair.p.counts.running_now == 0


async def test_stop_aborts_running_requests() -> None:
    async with SimEngine(replace(FAST, decode_token_seconds=0.05)) as engine:
        task = asyncio.create_task(post(engine, max_tokens=1000))
        await until(lambda: engine.counts.generation_tokens)
        await engine.stop()
        status, body = await task
    assert (status, body["choices"][0]["finish_reason"]) == (200, "abort")


async def test_draining_engine_aborts_new_requests_and_ends_old_ones() -> None:
    async with SimEngine(replace(FAST, decode_token_seconds=0.01, shutdown_seconds=5.0)) as engine:
        old = asyncio.create_task(post(engine, max_tokens=30))
        await until(lambda: engine.counts.generation_tokens)
        stop = asyncio.create_task(engine.stop())
        await until(lambda: engine.draining)
        assert (await post(engine))[1]["choices"][0]["finish_reason"] == "abort"
        assert (await old)[1]["usage"]["completion_tokens"] == 30
        await stop


async def test_requests_wait_for_blocks_and_slots() -> None:
    settings = replace(FAST, max_model_len=1024, num_blocks=64, prefill_base_seconds=0.02)
    async with SimEngine(settings) as engine:
        tasks = [asyncio.create_task(post(engine, max_tokens=1)) for _ in range(4)]
        await until(lambda: engine.counts.waiting_now >= 3)
        assert [status for status, _ in await asyncio.gather(*tasks)] == [200] * 4
        assert engine.counts.blocks_held_now == 0
