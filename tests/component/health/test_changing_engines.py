"""Engines are added, removed and restarted while requests run. No request fails."""

import asyncio
from contextlib import suppress

from pdx_api.names import Order, Role
from pdx_api.settings.gateway import Verification
from pdx_proxy.config.settings import Address, Deadlines, EndpointSpec, Settings
from pdx_proxy.endpoints.endpoint import State
from pdx_proxy.process.control import Control
from pdx_sim import FaultKind
from tests.component.changing import MakeChanging
from tests.component.harness import Reply, Shape, eventually, request_of

SHORT_SETTLING = Deadlines(settle=1.0)


def _revision(reply: Reply, side: str) -> str | None:
    name = reply.headers.get(f"x-pdx-{side}")
    return name.split("-")[1] if name else None


async def test_engines_come_and_leave_under_requests(order: Order, make_changing: MakeChanging) -> None:
    world = await make_changing(order, "prefill-a-0", "decode-a-0")
    async with world.steady_requests() as replies:
        await asyncio.gather(*(world.add(name) for name in ("prefill-a-1", "decode-a-1", "decode-a-2")))
        await world.all_warm()
        for name in ("decode-a-0", "prefill-a-0", "decode-a-2"):
            await world.leave(name)
        await world.add("prefill-a-2")
        await world.all_warm()
    used = {reply.headers.get(f"x-pdx-{side}") for reply in replies for side in ("prefill", "decode")}
    assert used >= {"prefill-a-0", "prefill-a-1", "decode-a-0", "decode-a-1", "decode-a-2"}
    outcomes = await world.outcomes()
    assert outcomes.keys() <= {"split", "whole"}
    assert outcomes["split"] > outcomes.get("whole", 0)
    assert world.report["retries"] == {}, "no attempt may fail"


async def test_engines_restart_under_requests(order: Order, make_changing: MakeChanging) -> None:
    names = ["prefill-a-0", "prefill-a-1", "decode-a-0", "decode-a-1"]
    world = await make_changing(order, *names, sim={"lease_seconds": 2.0}, deadlines=SHORT_SETTLING)
    world.allowed.stranded = world.allowed.expired = True
    async with world.steady_requests([Shape(), Shape(chat=True)]):
        for name in names:
            before = world.find(name)
            await world.restart(name)
            await world.all_warm()
            # A request that two engines had when they died is not tried again, so no engine ends before these are over.
            await eventually(lambda: not world.worker._serving.counters.settling, 20.0, "settled")
            await asyncio.sleep(0.5)
            after = world.find(name)
            assert after.generation > before.generation
            assert order is Order.PREFILL_FIRST or after.role is Role.DECODE or after.identity != before.identity
    assert (await world.outcomes()).keys() <= {"split", "whole"}


async def test_a_rollout_to_another_order_breaks_no_request_and_no_pair(make_changing: MakeChanging) -> None:
    world = await make_changing(Order.PREFILL_FIRST, "prefill-a-0", "prefill-a-1", "decode-a-0", "decode-a-1")
    async with world.steady_requests() as replies:
        for number in range(2):
            for role in ("prefill", "decode"):
                await world.add(f"{role}-b-{number}", Order.DECODE_FIRST)
            await world.all_warm()
            await asyncio.sleep(0.1)
            for role in ("prefill", "decode"):
                await world.leave(f"{role}-a-{number}")
    assert {_revision(reply, "decode") for reply in replies} == {"a", "b"}
    split = [reply for reply in replies if _revision(reply, "prefill")]
    assert {_revision(reply, "prefill") for reply in split} == {"a", "b"}
    assert all(_revision(reply, "prefill") == _revision(reply, "decode") for reply in split)
    assert len(split) == len(replies), "there was a whole pair at every moment"
    assert world.report["retries"] == {}


async def test_a_switch_to_aggregated_and_back(order: Order, make_changing: MakeChanging) -> None:
    world = await make_changing(order, "prefill-a-0", "decode-a-0")
    assert (await world.state())["mode"] == "Disaggregated"
    async with world.steady_requests():
        await world.add("aggregated-b-0")
        await world.all_warm()
        await asyncio.gather(world.leave("prefill-a-0"), world.leave("decode-a-0"))
        assert (await world.state())["mode"] == "Aggregated"
        await asyncio.sleep(0.05)
        await world.add("decode-c-0")
        await world.add("prefill-c-0")
        await world.all_warm()
        await world.leave("aggregated-b-0")
        assert (await world.state())["mode"] == "Disaggregated"
    assert (await world.complete()).headers["x-pdx-prefill"] == "prefill-c-0"


async def test_a_decode_that_leaves_during_the_prefill_gets_no_leg(shape: Shape, make_changing: MakeChanging) -> None:
    slow = {"prefill_base_seconds": 0.3}
    world = await make_changing(Order.PREFILL_FIRST, "prefill-a-0", "decode-a-0", "decode-a-1", sim=slow)
    legs = {name: world.engine[name].counts.legs.total() for name in ("decode-a-0", "decode-a-1")}
    tasks = [asyncio.create_task(world.complete(shape, prompt=str(number))) for number in range(2)]
    await eventually(lambda: world.engine["prefill-a-0"].counts.running_now == 2)
    world.pods.change("decode-a-0", leaving=True)
    replies = await asyncio.gather(*tasks)
    assert [reply.text for reply in replies] == [shape.expected(str(number)) for number in range(2)]
    assert {reply.headers["x-pdx-decode"] for reply in replies} == {"decode-a-1"}
    assert world.engine["decode-a-0"].counts.legs.total() == legs["decode-a-0"]
    assert world.engine["decode-a-1"].counts.legs.total() == legs["decode-a-1"] + 2
    assert (await world.outcomes()) == {"split": 2}
    world.pods.change("decode-a-0", leaving=False)


async def test_open_streams_of_a_leaving_pair_finish(order: Order, make_changing: MakeChanging) -> None:
    slow = {"decode_token_seconds": 0.03}
    world = await make_changing(order, "prefill-a-0", "decode-a-0", "prefill-a-1", "decode-a-1", sim=slow)
    shape = Shape(stream=True)
    tasks = [asyncio.create_task(world.complete(shape, tokens=60)) for _ in range(4)]
    await eventually(lambda: world.engine["decode-a-0"].counts.running_now >= 1)
    await asyncio.gather(world.leave("decode-a-0"), world.leave("prefill-a-0"))
    assert [reply.text for reply in await asyncio.gather(*tasks)] == [shape.expected(tokens=60)] * 4
    assert [e.name for e in world.endpoints] == ["prefill-a-1", "decode-a-1"]


async def test_a_pod_that_is_not_ready_is_not_selected(order: Order, make_changing: MakeChanging) -> None:
    world = await make_changing(order, "prefill-a-0", "decode-a-0", "decode-a-1")
    start = world.find("decode-a-0").generation
    world.pods.change("decode-a-0", ready=False)
    assert world.find("decode-a-0").state is State.NOT_READY
    replies = [await world.complete() for _ in range(4)]
    assert {reply.headers["x-pdx-decode"] for reply in replies} == {"decode-a-1"}
    world.pods.change("decode-a-0", ready=True)
    assert (world.find("decode-a-0").warm, world.find("decode-a-0").generation) == (True, start), (
        "it need not be warmed anew"
    )
    replies = [await world.complete() for _ in range(4)]
    assert {reply.headers["x-pdx-decode"] for reply in replies} == {"decode-a-0", "decode-a-1"}


async def test_a_pod_is_warmed_once_it_is_ready(order: Order, make_changing: MakeChanging) -> None:
    world = await make_changing(order, "decode-a-0")
    engine = await world.add("decode-a-1")
    world.pods.change("decode-a-1", ready=False, instance="new")
    await asyncio.sleep(0.1)
    assert (world.find("decode-a-1").state, engine.counts.generation_tokens) == (State.NOT_READY, 0)
    world.pods.change("decode-a-1", ready=True)
    await world.all_warm()


async def test_a_pod_may_change_its_address(order: Order, make_changing: MakeChanging) -> None:
    world = await make_changing(order, "prefill-a-0", "decode-a-0", "decode-a-9")
    async with world.steady_requests([Shape(), Shape(chat=True)]):
        other = await world.add("decode-a-1")
        world.pods.remove("decode-a-1")
        address = Address(other.settings.host, other.port)
        world.pods.change("decode-a-0", address=address, instance="new sandbox")
        await world.engine["decode-a-0"].stop()
        await world.all_warm()
        assert world.find("decode-a-0").address == address
    replies = [await world.complete() for _ in range(2)]
    assert {reply.headers["x-pdx-decode"] for reply in replies} == {"decode-a-0", "decode-a-9"}


async def test_open_legs_of_a_lost_node_are_cut(order: Order, make_changing: MakeChanging) -> None:
    """The pod is gone and its connections are silent. Requests without an event are retried, streams are cut."""
    slow = {"decode_token_seconds": 0.2, "lease_seconds": 1.0}
    world = await make_changing(
        order, "prefill-a-0", "decode-a-0", gone_seconds=0.2, sim=slow, deadlines=SHORT_SETTLING
    )
    world.allowed.stranded = world.allowed.expired = True
    decode = world.engine["decode-a-0"]
    reader, writer = await world.raw(Shape(stream=True).body(tokens=100))
    await reader.readuntil(b"data: ")
    world.fault(decode, FaultKind.HANG_BEFORE_HEAD)
    hanging = asyncio.create_task(world.complete())
    await eventually(lambda: decode.counts.faults["hang_before_head"])
    await world.add("decode-a-1")
    await eventually(lambda: world.find("decode-a-1").warm)
    world.pods.remove("decode-a-0")
    async with asyncio.timeout(5):
        assert (await hanging).text == Shape().expected()
        with suppress(asyncio.IncompleteReadError):  # cut inside an event
            assert b"[DONE]" in await reader.readuntil(b"0\r\n\r\n"), "the end of the stream must be visible"
    writer.close()
    assert (await world.outcomes())["broken"] == 1


async def test_nothing_is_kept_of_engines_that_are_gone(order: Order, make_changing: MakeChanging) -> None:
    world = await make_changing(order, "prefill-a-0", "decode-a-0")
    await world.complete()
    keep = dict(world.pods.specs)
    for number in range(40):
        address = Address("127.0.0.1", 1)  # nothing listens there
        world.pods.put(
            f"decode-a-{number}9", EndpointSpec(address._replace(host=f"127.0.1.{number + 1}"), Role.DECODE, "a")
        )
        await asyncio.sleep(0)
    await eventually(lambda: any(e.reason for e in world.endpoints), what="tried")
    world.pods.specs = keep
    world.pods.notify()
    await asyncio.sleep(0.05)
    for engines in (world.worker._engines, world.gateway._engines):
        assert engines.load.legs.keys() <= keep.keys()
        assert engines.pool._idle.keys() <= {spec.address for spec in keep.values()}
    assert {key[0] for key in world.worker._serving.handshakes.pairs} <= keep.keys()
    assert not world.gateway.endpoint_manager._warm_ups._tasks
    page = (await world.call("GET", f"{world.admin}/metrics")).raw.decode()
    assert 'pdx_legs_in_flight{endpoint="prefill-a-0",role="prefill"}' in page
    assert "decode-a-19" not in page


async def test_connections_to_an_engine_that_is_gone_are_closed(make_changing: MakeChanging) -> None:
    world = await make_changing(Order.PREFILL_FIRST, "prefill-a-0", "decode-a-0", "decode-a-1")
    for _ in range(4):
        await world.complete()
    address = world.find("decode-a-0").address
    idle = list(world.pool._idle[address])
    assert idle
    world.pods.change("decode-a-0", leaving=True)
    world.pods.remove("decode-a-0")
    assert address not in world.pool._idle
    assert all(connection.lost is not None for connection in idle)


async def test_two_gateways_share_the_engines(order: Order, make_changing: MakeChanging) -> None:
    world = await make_changing(order, "prefill-a-0", "decode-a-0")
    free = Address("127.0.0.1", 0)
    other = await Control.start(
        Settings(listen=free, admin=free, verification=Verification(period_seconds=0)), world.pods
    )
    try:
        async with world.steady_requests():
            await world.add("decode-a-1")
            await world.add("prefill-a-1")
            await world.all_warm()
            await eventually(lambda: len(other.registry.snapshot.complete) == 2)
            for number in range(10):
                url = f"http://{other.listen}{Shape().path}"
                reply = await world.call("POST", url, Shape().body(prompt=str(number)))
                assert (reply.status, reply.text) == (200, Shape().expected(str(number)))
            await world.leave("decode-a-0")
    finally:
        await other.stop()


async def test_only_so_many_warm_ups_run_at_a_time(make_changing: MakeChanging) -> None:
    names = [f"decode-a-{number}" for number in range(6)]
    slow = {"prefill_base_seconds": 0.05}
    world = await make_changing(Order.PREFILL_FIRST, *names, sim=slow, warm=False, warm_ups=2)
    most = 0
    while sum(e.warm for e in world.endpoints) < len(names):
        most = max(most, sum(engine.counts.running_now for engine in world.engines))
        await asyncio.sleep(0.005)
    assert most == 2


async def test_readiness_follows_the_engines_and_the_drain(order: Order, make_changing: MakeChanging) -> None:
    world = await make_changing(order, warm=False)

    async def probe(path: str) -> tuple[int, str]:
        reply = await world.call("GET", f"{world.admin}{path}")
        return reply.status, reply.raw.decode()

    assert await probe("/healthz") == (200, "")
    assert await probe("/readyz") == (503, "no engine that can answer is warm")
    await world.add("decode-a-0")
    await world.all_warm()
    assert await probe("/readyz") == (200, "")
    assert (await world.call("GET", f"{world.url}/ready")).status == 200
    reader, writer = await asyncio.open_connection(world.gateway.listen.host, world.gateway.listen.port)
    world.gateway.drain()
    assert await probe("/readyz") == (503, "draining")
    assert await probe("/healthz") == (200, "")
    assert (await world.call("GET", f"{world.url}/ready")).status == 503
    world.sent += 1
    writer.write(request_of(Shape().body()))
    answer = await reader.read(-1)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"connection: close\r\n" in answer
    writer.close()


async def test_no_engine_is_a_503_until_one_comes(make_changing: MakeChanging) -> None:
    world = await make_changing(Order.PREFILL_FIRST, warm=False)
    assert (await world.complete()).status == 503
    assert (await world.state())["mode"] is None
    await world.add("decode-a-0")
    await world.all_warm()
    assert (await world.complete()).text == Shape().expected()
