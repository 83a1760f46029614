"""No field of a client's reaches the KV protocol, and its request ID reaches no engine."""

import asyncio
import json
from typing import Any

import pytest

from pdx_api.names import Order
from pdx_sim import SimEngine
from tests.component.conftest import MakeWorld
from tests.component.harness import PROMPT, Shape, World

EVIL: dict[str, Any] = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_engine_id": "evil",
    "remote_host": "evil",
    "remote_port": 1,
    "remote_request_id": "evil",
    "remote_block_ids": [[1]],
    "tp_size": 1,
}
BODIES: dict[str, dict[str, Any]] = {
    "kv": {"kv_transfer_params": EVIL},
    "kv-null": {"kv_transfer_params": None},
    "kv-text": {"kv_transfer_params": "evil"},
    "ec": {"ec_transfer_params": EVIL},
    "xargs": {"vllm_xargs": {"kv_transfer_params": EVIL, "ec_transfer_params": "evil", "mine": 1}},
    "id": {"request_id": "evil"},
    "xargs-id": {"vllm_xargs": {"request_id": "evil"}},
}
HEADERS = {
    "X-Request-Id": "evil-id",
    "X-data-parallel-rank": "1",
    "X-Request-ID-2": "evil",
    "traceparent": "00-aa-bb-01",
}


def _seen(world: World) -> list[tuple[SimEngine, dict[str, Any], dict[str, str]]]:
    return [(engine, each.body, each.headers) for engine in world.engines for each in engine.seen]


def _forget(world: World) -> None:
    for engine in world.engines:
        engine.seen.clear()


@pytest.mark.parametrize("whole", [False, True], ids=["split", "whole"])
@pytest.mark.parametrize("name", BODIES)
async def test_fields(name: str, whole: bool, order: Order, make_world: MakeWorld) -> None:
    world = await make_world(order)
    _forget(world)
    shape = Shape()
    more = {"n": 2} if whole else {}
    reply = await world.post(shape.path, {**shape.body(), **BODIES[name], **more}, HEADERS)
    assert reply.status == 200
    assert reply.json["choices"][0]["text"] == shape.expected()
    assert reply.headers["x-request-id"] == "evil-id"
    seen = _seen(world)
    assert len(seen) == (1 if whole else 2)
    for _, body, headers in seen:
        assert "evil" not in json.dumps(body)
        assert not any("evil" in f"{key}{value}" for key, value in headers.items())
        assert headers["traceparent"] == "00-aa-bb-01"
        assert "x-data-parallel-rank" not in headers
        assert ("kv_transfer_params" in body) is not whole
        assert not {"ec_transfer_params", "request_id"} & body.keys()


RAW: dict[str, bytes] = {
    "duplicate-key": b'{"kv_transfer_params":null,"prompt":"a","kv_transfer_params":{"remote_host":"evil"}}',
    "escaped-key": b'{"prompt":"a","kv_transfer_param\\u0073":{"remote_host":"evil"}}',
    "escaped-id": b'{"prompt":"a","request\\u005fid":"evil"}',
    "escaped-xargs": b'{"prompt":"a","vllm\\u005fxargs":{"kv\\u005ftransfer_params":"evil"}}',
    "duplicate-xargs": b'{"prompt":"a","vllm_xargs":{},"vllm_xargs":{"kv_transfer_params":"evil"}}',
}
REFUSED: dict[str, bytes] = {
    "utf-16": '{"prompt":"a","kv_transfer_params":{"remote_host":"evil"}}'.encode("utf-16"),
    "utf-32": '{"prompt":"a"}'.encode("utf-32"),
    "bom": b'\xef\xbb\xbf{"prompt":"a"}',
    "nan": b'{"prompt":"a","temperature":NaN}',
    "infinity": b'{"prompt":"a","temperature":Infinity}',
    "not-utf-8": b'{"prompt":"\xff"}',
    "empty": b"",
    "list": b"[1]",
    "text": b'"kv_transfer_params"',
    "garbage": b"{",
    "two": b'{"prompt":"a"}{"prompt":"b"}',
    "deep": b'{"prompt":"a","tools":' + b"[" * 400 + b"]" * 400 + b"}",
    "deeper": b'{"prompt":"a","tools":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
}


@pytest.mark.parametrize("name", RAW)
async def test_spelling(name: str, order: Order, make_world: MakeWorld) -> None:
    world = await make_world(order)
    _forget(world)
    assert (await world.post("/v1/completions", RAW[name])).status == 200
    for _, body, _ in _seen(world):
        assert "evil" not in json.dumps(body)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/embeddings"])
async def test_ambiguous_bodies_are_refused(path: str, order: Order, make_world: MakeWorld) -> None:
    world = await make_world(order)
    requests = [engine.counts.requests.total() for engine in world.engines]
    for name, body in REFUSED.items():
        reply = await world.post(path, body)
        assert (reply.status, reply.error["code"]) == (400, 400), name
        assert set(reply.error) == {"message", "type", "param", "code"}
    assert (await world.post(path, b"{}", {"Content-Type": "text/plain"})).status == 400
    assert (await world.post(path, b"\x1f\x8bnot gzip", {"Content-Encoding": "gzip"})).status == 400
    assert [engine.counts.requests.total() for engine in world.engines] == requests
    assert await world.outcomes() == {"refused": len(REFUSED) + 2}


async def test_bad_json_gets_vllms_error(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST)
    for body, param in ((b"{", "body.1"), (b'{"a" 1}', "body.5")):
        reply = await world.post("/v1/completions", body)
        assert reply.error["type"] == "Bad Request"
        assert reply.error["param"] == param
        assert reply.error["message"].startswith("1 validation error:\n  {'type': 'json_invalid'")


async def test_two_clients_with_one_id(order: Order, shape: Shape, make_world: MakeWorld) -> None:
    world = await make_world(order, p={"prefill_base_seconds": 0.02})
    _forget(world)
    prompts = [f"{number} {PROMPT}" for number in range(6)]
    replies = await asyncio.gather(
        *(world.complete(shape, {"X-Request-Id": "same"}, prompt=prompt) for prompt in prompts)
    )
    assert [reply.text for reply in replies] == [shape.expected(prompt) for prompt in prompts]
    assert {reply.headers["x-request-id"] for reply in replies} == {"same"}
    ids = [headers["x-request-id"] for _, _, headers in _seen(world)]
    assert "same" not in ids
    assert len(set(ids)) == (12 if world.pull else 6)


async def test_an_id_comes_back_with_every_answer(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST)
    mine = {"X-Request-Id": "mine"}
    assert (await world.post("/v1/completions", b"{", mine)).headers["x-request-id"] == "mine"
    assert (await world.complete(Shape(), mine, tokens=0)).headers["x-request-id"] == "mine"
    assert (await world.complete(Shape(stream=True), mine)).headers["x-request-id"] == "mine"
    assert (await world.complete(Shape(), {"X-Request-Id": "x" * 5000})).headers["x-request-id"] == "x" * 256
    assert "x-request-id" not in (await world.complete()).headers
