"""Policies with simulated engines: which engines receive requests."""

import asyncio
from collections import Counter
from typing import Any

from pdx_api.names import Order, Policy, Role, Split
from pdx_api.settings.gateway import Choosing
from pdx_proxy.process.workers import ProcessWorkers
from pdx_sim import FaultKind
from tests.component.conftest import MakeWorld
from tests.component.harness import PROMPT, Reply, Shape, World, eventually

CHAT = Shape(chat=True)


def choosing(**fields: Any) -> dict[str, Any]:
    return {"choosing": Choosing(**fields), "debug_headers": True}


def engines_of(replies: list[Reply], header: str) -> Counter[str]:
    assert {reply.status for reply in replies} == {200}, replies
    return Counter(reply.headers.get(header, "none") for reply in replies)


async def send_each(world: World, count: int, **more: Any) -> list[Reply]:
    return [await world.complete(**more) for _ in range(count)]


async def test_the_same_beginning_of_a_prompt_goes_to_the_same_p(make_world: MakeWorld, order: Order) -> None:
    world = await make_world(order, 3, 2, **choosing(prefill_policy=Policy.PREFIX_AFFINITY))
    same = [await world.complete(prompt=f"{PROMPT} {n}?") for n in range(5)]
    assert list(engines_of(same, "x-pdx-prefill").values()) == [5]
    assert len(engines_of(same, "x-pdx-decode")) == 2, "D has its own policy"
    different = [await world.complete(prompt=f"{n}: {PROMPT}") for n in range(24)]
    assert len(engines_of(different, "x-pdx-prefill")) == 3
    assert world.report["affinity"]["prefill"] == {"kept": 29, "moved": 0}
    assert world.report["affinity"]["decode"] == {"kept": 0, "moved": 0}


async def test_a_conversation_stays_with_its_p(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST, 4, 1, **choosing(prefill_policy=Policy.PREFIX_AFFINITY))
    talks = []
    for number in range(6):
        messages = [{"role": "user", "content": f"Question {number}"}]
        replies = []
        for _ in range(3):
            replies.append(await world.post(CHAT.path, {"model": "sim", "messages": messages, "max_tokens": 4}))
            messages += [{"role": "assistant", "content": replies[-1].text}, {"role": "user", "content": "And then?"}]
        talks.append(engines_of(replies, "x-pdx-prefill"))
    assert all(list(talk.values()) == [3] for talk in talks), talks
    assert len(Counter(name for talk in talks for name in talk)) > 1


def talk(number: int, rounds: int) -> dict[str, Any]:
    """A conversation after some rounds. Conversations have nothing in common."""
    roles = ("user", "assistant")
    messages = [{"role": roles[n % 2], "content": f"{number}.{n}: {PROMPT}"} for n in range(2 * rounds - 1)]
    return {"model": "sim", "messages": messages, "max_tokens": 2}


async def test_the_default_keeps_conversations_at_their_p_and_spreads_them(make_world: MakeWorld, order: Order) -> None:
    """Two conversations in turns: each stays where its beginning is cached, and the second goes to the other P."""
    world = await make_world(order, 2, 1, **choosing())
    first, second = [
        [(await world.post(CHAT.path, talk(number, rounds))).headers["x-pdx-prefill"] for rounds in range(1, 5)]
        for number in range(2)
    ]
    assert len({*first}) == len({*second}) == 1
    assert {*first} != {*second}
    expected = world.gateway._workers._worker._serving.chooser.prefills.expected  # type: ignore[union-attr]
    assert 0.5 < expected.all.cached_tokens / expected.all.prompt_tokens < 0.8
    engines = [expected.engines[world.endpoint(p).name] for p in world.prefill]
    assert [engine.backlog for engine in engines] == [0, 0]
    assert all(engine.measured.tokens > 0 for engine in engines)


async def test_aggregated_engines_keep_conversations_too(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST, 0, 2, d={"role": Role.AGGREGATED}, **choosing())
    found = [(await world.post(CHAT.path, {**talk(n % 2, 1 + n // 2), "stream": n < 4})).headers for n in range(8)]
    names = [each["x-pdx-decode"] for each in found]
    assert len({*names[::2]}) == len({*names[1::2]}) == 1
    assert {*names[::2]} != {*names[1::2]}
    assert world.report["choices"]["decode"]["ExpectedWait"] == 8


async def test_a_session_stays_with_its_d(make_world: MakeWorld, order: Order) -> None:
    world = await make_world(order, 1, 3, **choosing(decode_policy=Policy.SESSION_AFFINITY))
    mine = await send_each(world, 5, headers={"X-Session-Id": "mine"})
    assert list(engines_of(mine, "x-pdx-decode").values()) == [5]
    every = [await world.complete(headers={"x-session-id": f"session {n}"}) for n in range(24)]
    assert len(engines_of(every, "x-pdx-decode")) == 3
    nobodys = await send_each(world, 6)
    assert engines_of(nobodys, "x-pdx-decode") == dict.fromkeys(engines_of(every, "x-pdx-decode"), 2)
    assert world.report["affinity"]["decode"] == {"kept": 29, "moved": 0}
    assert all("x-session-id" not in seen.headers for engine in world.engines for seen in engine.seen)


async def test_an_overloaded_session_is_shared(make_world: MakeWorld, order: Order) -> None:
    world = await make_world(
        order,
        *(1, 3),
        d={"decode_token_seconds": 5e-3},
        **choosing(decode_policy=Policy.SESSION_AFFINITY),
    )
    requests = (world.complete(Shape(stream=True), {"x-session-id": "mine"}, tokens=60) for _ in range(12))
    shares = engines_of(list(await asyncio.gather(*requests)), "x-pdx-decode")
    assert len(shares) == 3
    assert max(shares.values()) <= 6, "1.25 of the average, and one"
    assert world.report["affinity"]["decode"]["moved"] > 3


async def test_a_burst_is_shared_though_its_prefills_are_not_done(make_world: MakeWorld, order: Order) -> None:
    """One D is busy. If D counted only from its own leg on, all of the burst would go to the other."""
    slow = {"decode_token_seconds": 5e-3}
    world = await make_world(order, 1, 2, p={"prefill_base_seconds": 0.1}, d=slow, debug_headers=True)
    first = asyncio.create_task(world.complete(Shape(stream=True), tokens=200))
    await eventually(lambda: any(world.report["legs"].get(world.endpoint(d).name) for d in world.decode))
    burst = await asyncio.gather(*(world.complete(prompt=f"Question {n}?", tokens=2) for n in range(3)))
    shares = engines_of([await first, *burst], "x-pdx-decode")
    assert sorted(shares.values()) == [2, 2]


async def test_workers_agree_on_the_engine_of_a_session(make_world: MakeWorld) -> None:
    policies = {"prefill_policy": Policy.LEAST_LOAD, "decode_policy": Policy.SESSION_AFFINITY}
    world = await make_world(Order.PREFILL_FIRST, 2, 4, workers=2, **choosing(**policies))
    await eventually(lambda: len(world.gateway.loads.reports.engines) == 6)
    anew = {"Connection": "close", "x-session-id": "mine"}
    replies = [await world.complete(headers=anew) for _ in range(24)]
    assert list(engines_of(replies, "x-pdx-decode").values()) == [24]
    workers = world.gateway._workers
    assert isinstance(workers, ProcessWorkers)
    await workers.report()
    shares = [(each.last or {})["affinity"]["decode"]["kept"] for each in workers._supervisors]
    assert sum(shares) == 24
    assert all(shares), "so many connections reach both workers"


async def test_the_switch_stops_splitting_and_uses_every_engine(make_world: MakeWorld, order: Order) -> None:
    """Whole requests of D and of an idle P; transfer probes go on, so that a repair is seen."""
    world = await make_world(order, 2, 2, **choosing(split=Split.NEVER))
    replies = await asyncio.gather(*(world.complete(Shape(stream=True)) for _ in range(8)))
    assert {(reply.status, reply.text) for reply in replies} == {(200, Shape(stream=True).expected())}
    assert engines_of(replies, "x-pdx-prefill") == {"none": 8}
    assert len(engines_of(replies, "x-pdx-decode")) == 4
    assert await world.outcomes() == {"whole": 8}
    state = await world.state()
    assert (state["split"], state["notSplit"]["never"]) == ("Never", 8)
    world.fault(world.d, FaultKind.DIE_BEFORE_HEAD)
    assert (await world.complete()).status == 200


LIMIT = 100
SHORT: list[dict[str, Any]] = [{"prompt": "A few words. " * 10}, {"prompt": [7] * LIMIT}]
LONG: list[dict[str, Any]] = [{"prompt": "Quite a few more words. " * 40}, {"prompt": [7] * (LIMIT + 1)}]


async def test_short_prompts_are_served_by_d_alone(make_world: MakeWorld, order: Order) -> None:
    world = await make_world(order, **choosing(disaggregate_above_tokens=LIMIT))
    prefills = world.p.counts.legs.total()
    replies = [await world.post("/v1/completions", {"model": "sim", "max_tokens": 4, **body}) for body in SHORT]
    replies.append(await world.complete(CHAT, prompt="A short question?"))
    assert engines_of(replies, "x-pdx-prefill") == {"none": 3}
    assert world.p.counts.legs.total() == prefills
    assert {**world.report["notSplit"]} == {
        "path": 0,
        "parameters": 0,
        "short": 3,
        "never": 0,
        "no_prefill": 0,
        "suspended": 0,
        "long_queue": 0,
        "burst": 0,
        "sooner": 0,
    }
    replies = [await world.post("/v1/completions", {"model": "sim", "max_tokens": 4, **body}) for body in LONG]
    replies.append(await world.complete(CHAT))
    assert engines_of(replies, "x-pdx-prefill")["none"] == 0
    assert world.report["outcomes"]["split"] == world.report["notSplit"]["short"] == 3


async def test_what_is_not_split_is_counted_on_the_metrics_page(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST)
    await world.complete(n=2)
    await world.post("/v1/embeddings", {"model": "sim", "input": "x"})
    await world.p.kill()
    assert (await world.complete()).status == 200
    assert (await world.complete()).status == 200
    page = (await world.call("GET", f"{world.admin}/metrics")).raw.decode()
    counts = dict(line.rsplit(" ", 1) for line in page.splitlines() if line.startswith("pdx_not_split_total"))
    assert counts == {
        'pdx_not_split_total{reason="path"}': "1.0",
        'pdx_not_split_total{reason="parameters"}': "1.0",
        'pdx_not_split_total{reason="short"}': "0.0",
        'pdx_not_split_total{reason="never"}': "0.0",
        'pdx_not_split_total{reason="no_prefill"}': "1.0",
        'pdx_not_split_total{reason="suspended"}': "0.0",
        'pdx_not_split_total{reason="long_queue"}': "0.0",
        'pdx_not_split_total{reason="burst"}': "0.0",
        'pdx_not_split_total{reason="sooner"}': "0.0",
    }, "the request whose P was lost was meant to be split"
    assert 'pdx_affinity_selections_total{result="kept",role="prefill"} 0.0' in page
