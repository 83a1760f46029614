"""Large and hostile bodies: other requests are answered between two slices of one, and each is refused or served."""

import asyncio
from collections.abc import Generator
from typing import Any, cast

import pytest

from pdx_api.names import Order
from pdx_proxy.payload.body import LARGE_BYTES, Body, read_large_body
from pdx_proxy.payload.json_scanner import SLICE_BYTES
from pdx_proxy.serving import reader
from tests.component.conftest import MakeWorld
from tests.unit.proxy.payload.bodies import HOSTILE, filled

PATH = "/v1/completions"
SIZE = 12 * 1024 * 1024
GAPS = {
    "served": filled(b'{"max_tokens":1,"prompt":"a","junk":["', b'","[', b'"]}', SIZE),
    "truncated": filled(b'{"prompt":"a","junk":["', b'","[', b"", SIZE),
    "one text, not closed": filled(b'{"prompt":"', b"words ", b"", SIZE),
}


@pytest.fixture
def slices(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each slice that the gateway has read."""
    found: list[int] = []
    read = read_large_body

    def counted(*arguments: Any) -> Generator[int, None, Body]:
        slices = read(*arguments)
        while True:
            try:
                found.append(next(slices))
            except StopIteration as end:
                return cast("Body", end.value)
            yield found[-1]

    monkeypatch.setattr(reader, "read_large_body", counted)
    return found


@pytest.mark.parametrize("name", GAPS)
async def test_other_requests_are_answered_between_slices(name: str, slices: list[int], make_world: MakeWorld) -> None:
    """While one body is read, the loop runs between two slices."""
    world = await make_world(Order.PREFILL_FIRST)
    runs = before = 0

    async def count() -> None:
        nonlocal runs, before
        while True:
            runs += len(slices) != before
            before = len(slices)
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    reply = await world.post(PATH, GAPS[name])
    counting.cancel()
    assert reply.status == (200 if name == "served" else 400)
    assert runs >= len(slices) - 1 >= SIZE // (2 * SLICE_BYTES) - 1
    assert max(slices) <= 2 * SLICE_BYTES


async def test_small_bodies_are_read_at_once(slices: list[int], make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST)
    assert (await world.post(PATH, filled(b'{"prompt":"a","junk":"', b"word ", b'"}', LARGE_BYTES))).status == 200
    assert not slices


@pytest.mark.parametrize("path", [PATH, f"{PATH}?a=b"], ids=["fast", "fallback"])
async def test_hostile_large_bodies(path: str, make_world: MakeWorld) -> None:
    """Each is refused in vLLM's shape, on the same connection, and no engine receives it."""
    world = await make_world(Order.PREFILL_FIRST)
    before = [engine.counts.requests.total() for engine in world.engines]
    for name, (raw, message) in HOSTILE.items():
        reply = await world.post(path, raw)
        assert (reply.status, reply.error["code"]) == (400, 400), name
        assert message in reply.error["message"], name
    assert [engine.counts.requests.total() for engine in world.engines] == before
    assert await world.outcomes() == {"refused": len(HOSTILE)}


async def test_large_bodies_reach_both_engines_unchanged(order: Order, make_world: MakeWorld) -> None:
    world = await make_world(order)
    for engine in world.engines:
        engine.seen.clear()
    raw = filled(b'{"prompt":"What a long prompt","max_tokens":1,"junk":"', b'\\"\\\\\\n', b'","n":1}')
    reply = await world.post(PATH, raw.replace(b"{", b'{"request_id":"evil",', 1))
    assert reply.status == 200, reply.raw
    seen = [each for engine in world.engines for each in engine.seen]
    assert len(seen) == 2
    for each in seen:
        assert raw[raw.index(b'"junk"') : -1] in each.raw
        assert b"evil" not in each.raw


@pytest.mark.parametrize(
    "wrong",
    [{"stop": 5}, {"logprobs": 1000}, {"min_tokens": 9, "max_tokens": 4}, {"stream_options": {"include_usage": True}}],
    ids=lambda wrong: next(iter(wrong)),
)
async def test_what_only_decode_would_refuse_costs_no_prefill(wrong: dict[str, Any], make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST)
    for engine in world.engines:
        engine.seen.clear()
    reply = await world.post(PATH, {"prompt": "What a long prompt", **wrong})
    direct = await world.call("POST", f"{world.d.url}{PATH}", {"prompt": "What a long prompt", **wrong})
    assert (reply.status, reply.raw) == (direct.status, direct.raw)
    assert reply.status == 400
    assert [len(engine.seen) for engine in (world.p, world.d)] == [0, 2]


async def test_what_vllm_refuses_goes_whole_to_one_engine(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST)
    wrong_members: list[dict[str, Any]] = [{"n": "many", "stream": True}, {"stream": "many"}]
    for number, wrong in enumerate(wrong_members, 1):
        for engine in world.engines:
            engine.seen.clear()
        reply = await world.post(PATH, {"prompt": "What a long prompt", **wrong})
        assert reply.status == 400
        assert [len(engine.seen) for engine in (world.p, world.d)] == [0, 1]
        assert await world.outcomes() == {"refused_by_engine": number}
