"""What is asked of real engines in every order: the checks that the tests of each wiring share."""

import asyncio
import random
from collections import Counter
from typing import Any

import aiohttp

from tests.engines.harness import Answer, Engine, Gateway, ask, eventually, words

LEASE_SECONDS = 30.0


async def check_text_and_transfer(
    session: aiohttp.ClientSession, front: Gateway, single: Engine, decode: Engine, *, moves: bool
) -> None:
    """Completions and chat, streamed or not: a single engine's text, and the whole prompt through the connector."""
    for number, (chat, stream) in enumerate([(c, s) for c in (False, True) for s in (False, True)]):
        prompt = words(100 * front.port + number, 120)
        body: dict[str, Any] = {"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}
        body |= {"max_tokens": 24, "stream": stream}
        if stream:
            body["stream_options"] = {"include_usage": True}
        before = decode.external_tokens
        got = await ask(session, front.url, body)
        alone = await ask(session, single.url, body)
        assert got.status == 200
        assert got.complete
        assert len(alone.text) > 10, "a text that shows nothing proves nothing"
        assert alone.text == got.text
        for count in ("prompt_tokens", "completion_tokens", "total_tokens"):
            assert alone.usage[count] == got.usage[count]
        expected = before + (got.usage["prompt_tokens"] if moves else 0)
        await eventually(lambda e=expected: decode.external_tokens == e, 5, f"external tokens are not {expected}")


async def hang_up_at_random(session: aiohttp.ClientSession, front: Gateway, count: int, seed: int) -> Counter[object]:
    """`count` requests whose clients leave at random moments, or stay."""
    rng = random.Random(seed)
    outcomes: Counter[object] = Counter()
    gate = asyncio.Semaphore(6)

    async def one(number: int) -> None:
        body = {
            "prompt": words(1000 * seed + number, rng.randint(5, 300)),
            "max_tokens": rng.randint(1, 60),
            "stream": rng.random() < 0.5,
        }
        patience = rng.choice([rng.uniform(0, 0.05), rng.uniform(0, 0.4), rng.uniform(0, 2), 60.0])
        async with gate:
            try:
                async with asyncio.timeout(patience):
                    outcomes[(await ask(session, front.url, body)).status] += 1
            except TimeoutError:
                outcomes["left"] += 1

    await asyncio.gather(*(one(number) for number in range(count)))
    return outcomes


async def check_settled(front: Gateway, prefill: Engine, decode: Engine, *, before: dict[str, float]) -> None:
    """Nothing in flight at once, nothing decoding, nothing held once the lease is over, few leases run out."""
    idle = {"requests": 0, "queued": 0, "settling": 0, "prefill": 0, "decode": 0}
    await eventually(lambda: front.state()["inFlight"] == idle, 15, f"in flight: {front.state()['inFlight']}")
    await eventually(lambda: decode.metrics()["num_requests_running"] == 0, 3, "a decode goes on for nobody")
    await eventually(lambda: prefill.metrics()["num_requests_running"] == 0, 3, "a prefill goes on for nobody")
    await eventually(
        lambda: prefill.kv_usage == 0 and decode.kv_usage == 0, LEASE_SECONDS + 10, "blocks are still held"
    )
    after = prefill.metrics()
    finished = after["request_success_total"] - before["request_success_total"]
    expired = after["nixl_num_kv_expired_reqs_total"] - before["nixl_num_kv_expired_reqs_total"]
    assert finished >= 100, "too few prefills to judge by"
    assert expired < finished / 100, (expired, finished, front.state()["settlements"])


async def check_same_request_id(session: aiohttp.ClientSession, front: Gateway, single: Engine, decode: Engine) -> None:
    """Clients that send one X-Request-Id at the same time each get their own answer, over their own KV."""
    prompts = [words(1_000_000 + 10 * front.port + number, 60 + number) for number in range(6)]
    before = decode.external_tokens
    bodies = [{"prompt": prompt, "max_tokens": 16} for prompt in prompts]
    alone = [(await ask(session, single.url, body)).text for body in bodies]
    got = await asyncio.gather(*(ask(session, front.url, body, {"X-Request-Id": "the-same"}) for body in bodies))
    assert len(set(alone)) == len(alone), "equal texts could not be told apart"
    assert alone == [answer.text for answer in got]
    assert {"the-same"} == {answer.headers["x-request-id"] for answer in got}
    tokens = sum(answer.usage["prompt_tokens"] for answer in got)
    await eventually(lambda: decode.external_tokens - before == tokens, 5, "a prompt did not come from outside")


async def survive(session: aiohttp.ClientSession, front: Gateway, victim: Engine, seed: int) -> list[Answer]:
    """Steady requests while `victim` is killed and started again; every answer, in the order of asking."""
    answers: list[asyncio.Task[Answer]] = []
    back = asyncio.Event()

    async def restart() -> None:
        await asyncio.sleep(0.5)
        await asyncio.to_thread(victim.kill)
        victim.start()
        await asyncio.to_thread(victim.wait_until_healthy)
        back.set()

    restarting = asyncio.create_task(restart())
    number = 0
    while not back.is_set():
        body = {"prompt": words(seed + number, 80), "max_tokens": 12, "stream": number % 2 == 0}
        answers.append(asyncio.create_task(_ask_or_lose(session, front, body)))
        number += 1
        await asyncio.sleep(0.4)
    await restarting
    return await asyncio.gather(*answers)


async def _ask_or_lose(session: aiohttp.ClientSession, front: Gateway, body: dict[str, object]) -> Answer:
    try:
        return await ask(session, front.url, body)
    except aiohttp.ClientError as error:
        return Answer(0, repr(error), {}, {}, complete=False)


async def check_no_request_was_lost(
    session: aiohttp.ClientSession, front: Gateway, prefill: Engine, decode: Engine, seed: int
) -> None:
    """P is killed and started again under steady requests: D serves alone meanwhile, and KV moves again after."""
    answers = await survive(session, front, prefill, seed)
    assert [200] * len(answers) == [answer.status for answer in answers]
    assert all(answer.complete for answer in answers)
    for number, answer in enumerate(answers):
        alone = await ask(
            session, decode.url, {"prompt": words(seed + number, 80), "max_tokens": 12, "cache_salt": "x"}
        )
        assert alone.text == answer.text
    await check_kv_moves(session, front, decode, seed + 90_000)


async def check_kv_moves(session: aiohttp.ClientSession, front: Gateway, decode: Engine, seed: int) -> None:
    """Once all engines are warm, a request's whole prompt comes through the connector."""
    await asyncio.to_thread(front.wait_until_warm)
    before = decode.external_tokens
    got = await ask(session, front.url, {"prompt": words(seed, 80), "max_tokens": 4})
    tokens = got.usage["prompt_tokens"]
    await eventually(lambda: decode.external_tokens - before == tokens, 5, "KV does not move again")
