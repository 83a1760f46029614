"""Pairs of each version of vLLM serve requests; a P and a D of different versions hand over nothing."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from pdx_api.names import Order, Role
from pdx_api.vllm.versions import VERSIONS
from pdx_sim import FaultKind, SimSettings
from tests.component.harness import AGENT_SHAPES, FAST, SHAPES, Shape, World, eventually

SHAPES_OF_ALL = (*SHAPES, *AGENT_SHAPES)


def engines(order: Order, version: str, role: Role) -> list[SimSettings]:
    return [replace(FAST, order=order, role=role, version=f"{version}.0")]


@pytest.mark.parametrize("order", [Order.PREFILL_FIRST, Order.DECODE_FIRST])
@pytest.mark.parametrize("version", VERSIONS)
async def test_a_pair_of_each_version_serves_every_shape(version: str, order: Order) -> None:
    world = World(order)
    try:
        await world.start_engines(*(engines(order, version, role) for role in (Role.PREFILL, Role.DECODE)))
        await world.start_gateway()
        for shape in SHAPES_OF_ALL:
            reply = await world.complete(shape, tokens=12)
            assert (reply.status, reply.text) == (200, shape.expected(tokens=12)), shape
        assert await world.outcomes() == {"split": len(SHAPES_OF_ALL)}
        await world.check()
    finally:
        await world.close()


def runs(version: str, role: Role, order: Order) -> SimSettings:
    return replace(FAST, order=order, role=role, version=version)


@pytest.mark.parametrize("order", list(Order))
@pytest.mark.parametrize("newer", ["0.33.0", "0.34.1"])
async def test_engines_of_different_versions_never_pair(newer: str, order: Order) -> None:
    """An upgrade of the image: each D gets the KV of the P's of its own version, and none is refused."""
    world = World(order)
    try:
        await world.start_engines(
            [runs(version, Role.PREFILL, order) for version in ("0.32.0", newer)],
            [runs(version, Role.DECODE, order) for version in ("0.32.0", newer)],
        )
        await world.start_gateway()
        for number in range(12):
            assert (await world.complete(prompt=f"prompt {number}")).text == Shape().expected(f"prompt {number}")
        assert await world.outcomes() == {"split": 12}
        assert all(engine.counts.requests.total() > 3 for engine in world.engines), "warm-ups, and some of these"
        assert [engine.counts.handshakes_refused for engine in world.engines] == [0] * 4
        state = await world.state()
        assert [each["version"] for each in state["endpoints"]] == ["0.32.0", newer, "0.32.0", newer]
        names = [each["name"] for each in state["endpoints"]]
        assert state["suspendedPairs"] == sorted([[names[0], names[3]], [names[1], names[2]]])
        await world.check()
    finally:
        await world.close()


async def test_without_a_pair_of_one_version_nothing_is_split() -> None:
    """P waits, and D serves alone."""
    world = World(Order.PREFILL_FIRST)
    try:
        order = Order.PREFILL_FIRST
        await world.start_engines([runs("0.33.0", Role.PREFILL, order)], [runs("0.32.0", Role.DECODE, order)])
        await world.start_gateway(warm=False)
        await eventually(lambda: world.endpoint(world.d).warm)
        reason = "waits for a warm decode engine of its revision with vLLM 0.33.0"
        await eventually(lambda: world.endpoint(world.p).reason == reason)
        assert (await world.complete()).text == Shape().expected()
        assert await world.outcomes() == {"whole": 1}
        assert world.p.counts.legs["prefill"] == 0
    finally:
        await world.close()


@pytest.mark.parametrize("page", ["404", "nonsense", "long", "hangs"])
async def test_a_version_that_cannot_be_read_prevents_nothing(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def version(_self: Any, _request: web.Request) -> web.Response:
        if page == "hangs":
            await asyncio.sleep(60)
        texts = {"nonsense": '{"version": 32}', "long": f'{{"version": "{"1" * 65}"}}'}
        return web.Response(text=texts.get(page, ""), status=404 if page == "404" else 200)

    monkeypatch.setattr("pdx_sim.api.server.Api._version", version)
    monkeypatch.setattr("pdx_proxy.health.warm_up._MODELS_SECONDS", 0.2)
    world = World(Order.PREFILL_FIRST)
    try:
        await world.start_engines(*(engines(Order.PREFILL_FIRST, "0.33", r) for r in (Role.PREFILL, Role.DECODE)))
        await world.start_gateway()
        assert (await world.complete()).text == Shape().expected()
        assert await world.outcomes() == {"split": 1}
        assert [each["version"] for each in (await world.state())["endpoints"]] == [None, None]
    finally:
        await world.close()


async def test_vllm_033_has_what_the_simulator_shows() -> None:
    """Without a gateway: each event with a token has `kv_transfer_params`."""
    world = World(Order.PREFILL_FIRST)
    try:
        await world.start_engines(engines(Order.PREFILL_FIRST, "0.33", Role.PREFILL), [])
        reply = await world.direct(world.p, Shape(stream=True), tokens=2)
        assert [chunk.get("kv_transfer_params", "absent") for chunk in reply.chunks] == [None, None]
    finally:
        await world.close()


@pytest.mark.parametrize("version", ["0.32", "0.33"])
async def test_the_text_of_a_dead_engine_is_the_versions(version: str) -> None:
    world = World(Order.PREFILL_FIRST)
    try:
        await world.start_engines(engines(Order.PREFILL_FIRST, version, Role.PREFILL), [])
        world.p.die()
        reply = await world.direct(world.p, Shape(), tokens=2)
        assert (reply.status, reply.error["message"]) == (500, VERSIONS[version].dead_text)
    finally:
        await world.close()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("usage", [{}, {"stream_options": {"include_usage": True}}], ids=["plain", "usage"])
async def test_kv_that_cannot_be_loaded_costs_no_answer(version: str, usage: dict[str, Any]) -> None:
    """vLLM before 0.32 ends the stream of a completion whose KV cannot be loaded without an event."""
    world = World(Order.PREFILL_FIRST)
    try:
        order, shape = Order.PREFILL_FIRST, Shape(stream=True)
        await world.start_engines(*(engines(order, version, role) for role in (Role.PREFILL, Role.DECODE)))
        await world.start_gateway()
        world.allowed.stranded = world.allowed.expired = True
        world.d.faults.add(FaultKind.BLOCK_TRANSFER, seconds=3600.0)
        world.d.station.handshaken.clear()
        reply = await world.complete(shape, **usage)
        assert (reply.status, reply.text) == (200, shape.expected())
        assert (await world.outcomes()) == {"whole": 1}
    finally:
        await world.close()
