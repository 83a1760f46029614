"""The pool family: P saves, D reads. KV moves through a directory, as with SharedStorage."""

import asyncio
import json
import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from pdx_api.connectors import CONNECTORS
from pdx_api.connectors.families import Pool
from pdx_api.connectors.shared_storage import SharedStorage
from pdx_api.names import Order
from pdx_proxy.config.settings import Deadlines
from pdx_sim import FaultKind, Leg
from tests.component.conftest import MakeWorld
from tests.component.harness import PROMPT, Shape, World, eventually

MakePool = Callable[..., Coroutine[Any, Any, World]]
SLOW_PREFILL = {"prefill_token_seconds": 1e-3, "prefill_chunk": 16}


@pytest.fixture
def make_pool(make_world: MakeWorld, tmp_path: Path) -> MakePool:
    async def make(prefill: int = 1, decode: int = 1, **more: Any) -> World:
        return await make_world(Order.PREFILL_FIRST, prefill, decode, storage=tmp_path, **more)

    return make


async def _begin(world: World, shape: Shape, **body: Any) -> "asyncio.Task[Any]":
    task = asyncio.create_task(world.complete(shape, **body))
    await asyncio.sleep(0)
    return task


async def _leave(world: World, task: "asyncio.Task[Any]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await eventually(lambda: world.settled, 3.0, "the gateway serves nobody")


async def test_the_answer_is_made_of_what_prefill_saved(shape: Shape, make_pool: MakePool) -> None:
    world = await make_pool()
    external = world.d.counts.prompt_tokens_external
    reply = await world.complete(shape)
    assert reply.text == shape.expected()
    assert world.d.counts.prompt_tokens_external - external > 400, "all of the prompt's whole blocks"
    assert await world.outcomes() == {"split": 1}
    assert await world.settlements() == {}


async def test_prefill_gets_one_token_and_decode_what_the_client_wrote(shape: Shape, make_pool: MakePool) -> None:
    world = await make_pool()
    params: dict[str, Any] = {"kv_transfer_params": {"do_remote_prefill": True}, "seed": 7}
    await world.complete(shape, **params)
    prefilled, answered = world.p.seen[-1], world.d.seen[-1]
    assert (prefilled.leg, answered.leg) == (Leg.PREFILL, Leg.DECODE)
    assert prefilled.body == {**shape.body(seed=7), "max_tokens": 1, "stream": False, "ignore_eos": True}
    assert answered.body == shape.body(seed=7)
    assert prefilled.headers["x-request-id"] != answered.headers["x-request-id"]


async def test_what_is_not_found_is_computed(
    shape: Shape, make_pool: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A miss costs a local prefill, which the engine counts. No request fails."""
    world = await make_pool()

    async def lose(*_: object) -> None:
        pass

    monkeypatch.setattr(world.p.storage, "save", lose)
    before = replace(world.d.counts)
    assert (await world.complete(shape)).text == shape.expected()
    assert world.d.counts.prompt_tokens_external == before.prompt_tokens_external
    assert world.d.counts.prompt_tokens_local - before.prompt_tokens_local > 400
    assert await world.outcomes() == {"split": 1}


async def test_another_prompts_kv_would_show(make_pool: MakePool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: if D decodes over the KV of another prompt, its text is wrong."""
    world = await make_pool()
    world.allowed.violations = {"foreign_kv"}
    monkeypatch.setattr(world.d.storage, "load", lambda _: "another prompt's")
    assert (await world.complete()).text != Shape().expected()


@dataclass(frozen=True, slots=True)
class _Late(SharedStorage):
    name: str = "Late"

    def family(self, order: Order) -> Pool:
        return Pool(saved_after=0.4)


async def test_decode_starts_when_the_save_is_over(
    shape: Shape, make_pool: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connector that is one object, with a name that no other module uses."""
    monkeypatch.setitem(CONNECTORS, "Late", _Late())
    world = await make_pool(gateway=False)
    late = tuple(replace(spec, connector="Late") for spec in world.settings().endpoints)
    await world.start_gateway(debug_headers=True, endpoints=late)
    task = await _begin(world, shape)
    await eventually(lambda: world.p.seen[-1].leg is Leg.PREFILL and not world.p.counts.running_now)
    assert all(PROMPT not in json.dumps(seen.body) for seen in world.d.seen)
    reply = await task
    assert reply.text == shape.expected()
    assert float(reply.headers["server-timing"].rpartition("dur=")[2]) >= 400


@pytest.mark.parametrize(("seconds", "found"), [(0.01, True), (5.0, False)])
async def test_a_save_behind_the_answer(make_pool: MakePool, seconds: float, *, found: bool) -> None:
    """P saves after its answer, as MooncakeStore does: D finds the KV that is saved in time, and computes the rest."""
    store = {"connector": "MooncakeStore", "transfer_seconds": seconds}
    world = await make_pool(p=store, d={"connector": "MooncakeStore"}, gateway=False)
    pool = tuple(replace(spec, connector="MooncakeStore") for spec in world.settings().endpoints)
    await world.start_gateway(endpoints=pool)
    before = world.d.counts.prompt_tokens_external
    assert (await world.complete()).text == Shape().expected()
    assert (world.d.counts.prompt_tokens_external > before) is found


async def test_a_client_that_leaves_stops_prefill(shape: Shape, make_pool: MakePool) -> None:
    world = await make_pool(p=SLOW_PREFILL)
    legs = world.d.counts.legs.total()
    task = await _begin(world, shape)
    await eventually(lambda: world.p.counts.running_now)
    await _leave(world, task)
    await eventually(lambda: world.p.counts.prefills_aborted)
    assert world.d.counts.legs.total() == legs
    assert await world.settlements() == {"prefill_stopped": 1}
    assert await world.outcomes() == {"client_left": 1}


async def test_a_prefill_that_may_not_be_stopped_finishes(shape: Shape, make_pool: MakePool) -> None:
    """With LMCache P may be loading: the KV that it saves serves the next request."""
    world = await make_pool(p=SLOW_PREFILL, sim={"connector": "LMCache"})
    legs = world.d.counts.legs.total()
    task = await _begin(world, shape)
    await eventually(lambda: world.p.counts.running_now)
    computed = world.p.counts.prefills_finished
    await _leave(world, task)
    assert world.p.counts.prefills_finished == computed + 1
    assert (world.p.counts.prefills_aborted, world.p.counts.running_now) == (0, 0)
    assert world.d.counts.legs.total() == legs
    assert await world.settlements() == {"finished": 1}
    assert await world.outcomes() == {"client_left": 1}


@pytest.mark.parametrize("kind", [FaultKind.HANG_BEFORE_HEAD, FaultKind.LOSE_ANSWER, FaultKind.ERROR_EVENT])
async def test_a_prefill_that_fails_for_nobody_has_not_finished(kind: FaultKind, make_pool: MakePool) -> None:
    deadlines = Deadlines(prefill_seconds=0.3)
    world = await make_pool(p=SLOW_PREFILL, sim={"connector": "LMCache"}, deadlines=deadlines)
    world.p.faults.add(kind, seconds=2.0)
    task = await _begin(world, Shape())
    await eventually(lambda: world.p.counts.faults or world.p.counts.running_now)
    await _leave(world, task)
    assert await world.settlements() == {"prefill_stopped": 1}
    assert await world.outcomes() == {"client_left": 1}


async def test_a_client_that_leaves_stops_decode(shape: Shape, make_pool: MakePool) -> None:
    """While D loads: nothing needs settlement, because nothing is kept."""
    world = await make_pool(d={"transfer_seconds": 0.5})
    task = await _begin(world, shape, tokens=3000)
    await eventually(lambda: world.d.counts.legs[Leg.DECODE])
    await _leave(world, task)
    await eventually(lambda: world.d.counts.aborted == 1)
    assert await world.settlements() == {}
    assert await world.outcomes() == {"client_left": 1}


async def test_a_client_that_leaves_a_stream_ends_it(make_pool: MakePool) -> None:
    world = await make_pool(d={"decode_token_seconds": 0.002})
    reader, writer = await world.raw(Shape(stream=True).body(tokens=3000))
    await reader.readuntil(b"data: ")
    writer.close()
    await eventually(lambda: not world.d.counts.running_now, 2.0)
    await eventually(lambda: world.settled)
    assert await world.outcomes() == {"client_left": 1}


async def test_a_decode_that_leaves_during_the_prefill_gets_no_leg(shape: Shape, make_pool: MakePool) -> None:
    world = await make_pool(1, 2, p=SLOW_PREFILL, debug_headers=True)
    task = await _begin(world, shape)
    await eventually(lambda: world.p.counts.running_now)
    busy = next(d for d in world.decode if world.worker._engines.load.legs.get(world.endpoint(d).name))
    legs = busy.counts.legs.total()
    specs = world.settings().endpoints
    world.gateway.endpoint_manager.update([replace(s, leaving=s.address.port == busy.port) for s in specs])
    reply = await task
    assert reply.text == shape.expected()
    assert reply.headers["x-pdx-decode"] != world.endpoint(busy).name
    assert busy.counts.legs.total() == legs


async def test_a_prefill_that_dies_amid_its_save(shape: Shape, make_pool: MakePool, tmp_path: Path) -> None:
    """No D finds KV that is only half saved: a server keeps the pool, as with LMCache."""
    world = await make_pool(2, sim={"connector": "LMCache"}, p={"transfer_seconds": 0.3})
    before = set(os.listdir(tmp_path))
    task = await _begin(world, shape)
    await eventually(lambda: set(os.listdir(tmp_path)) - before, what="P saves")
    victim = next(p for p in world.prefill if p.counts.running_now)
    await victim.kill()
    assert (await task).text == shape.expected()
    assert (await world.outcomes(), world.report["retries"]) == ({"whole": 1}, {"lost": 1})
    assert world.d.counts.prompt_tokens_external < 100, "D computes the prompt"
    await victim.restart()
    await world.warm()


async def test_a_decode_that_dies_while_it_loads(shape: Shape, make_pool: MakePool) -> None:
    world = await make_pool(1, 2, d={"transfer_seconds": 0.3})
    task = await _begin(world, shape)
    await eventually(lambda: any(d.counts.loading_now for d in world.decode), what="D loads")
    victim = next(d for d in world.decode if d.counts.loading_now)
    computed = world.p.counts.prompt_tokens_local
    await victim.kill()
    assert (await task).text == shape.expected()
    assert (await world.outcomes(), world.report["retries"]) == ({"whole": 1}, {"lost": 1})
    assert world.p.counts.prompt_tokens_local - computed < 100, "P finds what it has saved"
    await victim.restart()
    await world.warm()


async def test_a_pool_that_is_gone_costs_a_prefill(
    shape: Shape, make_pool: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines whose server is gone save and find nothing; when it is back, they use it again."""
    world = await make_pool(sim={"connector": "LMCache"})

    async def nowhere(*_: object) -> None:
        pass

    with monkeypatch.context() as gone:
        for engine in world.engines:
            gone.setattr(engine.storage, "save", nowhere)
            gone.setattr(engine.storage, "found", lambda _: 0)
        before = replace(world.d.counts)
        assert (await world.complete(shape)).text == shape.expected()
        assert world.d.counts.prompt_tokens_external == before.prompt_tokens_external
        assert world.d.counts.prompt_tokens_local - before.prompt_tokens_local > 400
        assert await world.outcomes() == {"split": 1}
    assert (await world.complete(shape, prompt=f"2 {PROMPT}")).text == shape.expected(f"2 {PROMPT}")
    assert world.d.counts.prompt_tokens_external - before.prompt_tokens_external > 400
