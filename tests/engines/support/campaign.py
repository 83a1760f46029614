"""The checks of real engines that the tests of each wiring share, in every order."""

import asyncio
import itertools
import random
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from pdx_api.names import Order
from tests.engines.support.harness import Answer, Engine, Gateway, complete, eventually, gateway, make_prompt

LEASE_SECONDS = 30.0
_ROUNDS = itertools.count()
"""A test that runs again sends other prompts: engines that keep running may have the first ones cached."""
AMID = 8
"""Requests of each gateway before an engine is killed: half of them are answered by then, half are not."""


ROUNDS = [1, pytest.param(5, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])]
"""How often engines are killed: once always, five times in `make soak`."""
SHAPES: Final = [
    pytest.param(
        *(chat, stream),
        id=f"{'chat' if chat else 'text'}-{'stream' if stream else 'whole'}",
        marks=() if chat is stream else pytest.mark.soak,
    )
    for stream in (False, True)
    for chat in (False, True)
]
"""Whether a request is a chat, and whether its answer is a stream. Two pairs of values run in `make soak` only."""


def fresh() -> int:
    """The first of ten million seeds that nothing has used."""
    return 10_000_000 * next(_ROUNDS)


async def revive(*engines: Engine) -> None:
    """Start those that are dead, one after the other: a test that kills one may be run again."""
    for engine in engines:
        if engine.process is None or not engine.process.is_alive():
            engine.start()
            await asyncio.to_thread(engine.wait_until_healthy)


def print_lines(lines: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Show counts whether or not the test fails."""
    with capsys.disabled():
        sys.stdout.write("".join(f"\n{line}" for line in lines))


async def check_text_and_transfer(
    session: aiohttp.ClientSession, front: Gateway, single: Engine, decode: Engine, *, moves: bool, own: int = 0
) -> None:
    """Completions and chat, streamed or not: a single engine's text, and the whole prompt through the connector,

    less the last `own` tokens, which D computes.
    """
    for number, (chat, stream) in enumerate([(c, s) for c in (False, True) for s in (False, True)]):
        prompt = make_prompt(fresh() + 100 * front.number + number, 120)
        body: dict[str, Any] = {"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}
        body |= {"max_tokens": 24, "stream": stream}
        if stream:
            body["stream_options"] = {"include_usage": True}
        before = decode.external_tokens
        got = await complete(session, front.url, body)
        alone = await complete(session, single.url, body)
        assert got.status == 200
        assert got.complete
        assert len(alone.text) > 10, "a text that shows nothing proves nothing"
        assert alone.text == got.text
        for count in ("prompt_tokens", "completion_tokens", "total_tokens"):
            assert alone.usage[count] == got.usage[count]
        expected = before + (got.usage["prompt_tokens"] - own if moves else 0)
        await eventually(lambda e=expected: decode.external_tokens == e, 20, f"external tokens are not {expected}")


async def hang_up_at_random(session: aiohttp.ClientSession, front: Gateway, count: int, seed: int) -> Counter[object]:
    """`count` requests whose clients leave at random moments, or stay."""
    rng = random.Random(seed)
    outcomes: Counter[object] = Counter()
    gate = asyncio.Semaphore(6)

    async def one(number: int) -> None:
        body = {
            "prompt": make_prompt(1000 * seed + number, rng.randint(5, 300)),
            "max_tokens": rng.randint(1, 60),
            "stream": rng.random() < 0.5,
        }
        patience = rng.choice([rng.uniform(0, 0.05), rng.uniform(0, 0.4), rng.uniform(0, 2), 60.0])
        async with gate:
            try:
                async with asyncio.timeout(patience):
                    outcomes[(await complete(session, front.url, body)).status] += 1
            except TimeoutError:
                outcomes["left"] += 1

    await asyncio.gather(*(one(number) for number in range(count)))
    return outcomes


async def check_idle(front: Gateway) -> None:
    """Wait until the gateway has no request, leg or settlement in flight."""
    idle = {"requests": 0, "queued": 0, "settling": 0, "prefill": 0, "decode": 0}
    await eventually(lambda: front.state()["inFlight"] == idle, 30, "requests, legs or settlements are in flight")


async def check_settled(front: Gateway, prefill: Engine, decode: Engine, *, before: dict[str, float]) -> None:
    """Nothing in flight at once, nothing decoding, nothing held once the lease is over, few leases run out.

    A lease runs out if D's server takes longer than the gateway waits to pass a closed leg to its engine: 2 of 196 on a
    busy machine, 7 of 181 at a load average of 25.
    """
    await check_idle(front)
    await eventually(lambda: decode.metrics()["num_requests_running"] == 0, 15, "a decode goes on for nobody")
    await eventually(lambda: prefill.metrics()["num_requests_running"] == 0, 15, "a prefill goes on for nobody")
    await eventually(
        lambda: prefill.kv_usage == 0 and decode.kv_usage == 0, LEASE_SECONDS + 10, "blocks are still held"
    )
    after = prefill.metrics()
    finished = after["request_success_total"] - before["request_success_total"]
    expired = after["nixl_num_kv_expired_reqs_total"] - before["nixl_num_kv_expired_reqs_total"]
    assert finished >= 50, "too few prefills to judge by"
    assert expired < finished / 20, (expired, finished, front.state()["settlements"])


async def check_same_request_id(session: aiohttp.ClientSession, front: Gateway, single: Engine, decode: Engine) -> None:
    """Clients that send one X-Request-Id at the same time each get their own answer, over their own KV."""
    prompts = [make_prompt(1_000_000 + 10 * front.number + number, 60 + number) for number in range(6)]
    before = decode.external_tokens
    bodies = [{"prompt": prompt, "max_tokens": 16} for prompt in prompts]
    alone = [(await complete(session, single.url, body)).text for body in bodies]
    got = await asyncio.gather(*(complete(session, front.url, body, {"X-Request-Id": "the-same"}) for body in bodies))
    assert len(set(alone)) == len(alone), "equal texts cannot be distinguished"
    assert alone == [answer.text for answer in got]
    assert {"the-same"} == {answer.headers["x-request-id"] for answer in got}
    tokens = sum(answer.usage["prompt_tokens"] for answer in got)
    await eventually(lambda: decode.external_tokens - before == tokens, 20, "a prompt did not come from outside")


@dataclass
class Fate:
    """A request under way while an engine was killed, and what its client got."""

    body: dict[str, Any]
    answer: Answer

    def judge(self, right: str) -> str:
        """Return the outcome as docs/failure-matrix.md names it; AssertionError for an outcome that is not in it."""
        answer = self.answer
        if answer.status == 503:
            assert "retry-after" in answer.headers
            return "503"
        assert answer.status == 200, answer
        if answer.complete:
            assert answer.text == right
            return "right"
        assert self.body["stream"], "half an answer that is not streamed"
        assert right.startswith(answer.text)
        return "error event or cut"


async def survive(
    session: aiohttp.ClientSession, fronts: list[Gateway], victim: Engine, seed: int
) -> dict[Gateway, list[Fate]]:
    """Steady requests through every gateway while `victim` is killed amid some longer ones and started again."""
    back = asyncio.Event()
    tasks: dict[Gateway, list[asyncio.Task[Fate]]] = {front: [] for front in fronts}

    async def restart() -> None:
        await asyncio.to_thread(victim.kill)
        victim.start()
        await asyncio.to_thread(victim.wait_until_healthy)
        back.set()

    def complete_all(number: int, tokens: int) -> None:
        for index, front in enumerate(fronts):
            prompt = make_prompt(seed + 2000 * index + number, 80)
            body = {"prompt": prompt, "max_tokens": tokens, "stream": number % 2 == 0}
            tasks[front].append(asyncio.create_task(_complete_or_lose(session, front, body)))

    for number in range(AMID // 2):
        complete_all(number, 12)
        await asyncio.wait([started[-1] for started in tasks.values()])
    for number in range(AMID // 2, AMID):
        complete_all(number, 200)
        await asyncio.sleep(0.05)
    restarting = asyncio.create_task(restart())
    number = AMID
    while not back.is_set():
        complete_all(number, 12)
        number += 1
        await asyncio.sleep(1.5)  # requests take processor time from the engine that starts
    await restarting
    return {front: await asyncio.gather(*started) for front, started in tasks.items()}


async def _complete_or_lose(session: aiohttp.ClientSession, front: Gateway, body: dict[str, object]) -> Fate:
    try:
        return Fate(body, await complete(session, front.url, body))
    except aiohttp.ClientError as error:
        return Fate(body, Answer(0, repr(error), {}, {}, complete=False))


async def check_kills(
    session: aiohttp.ClientSession, fronts: list[Gateway], pair: "tuple[Engine, Engine]", seed: int
) -> list[str]:
    """P is killed and started again under steady requests, then D; each request's fate is one of the failure matrix's.

    P's death costs no request. D is the only one: what it was answering ends visibly, what comes meanwhile is refused.
    Answers a line for each order and victim.
    """
    lines: list[str] = []
    prefill, decode = pair
    for victim, other in ((prefill, decode), (decode, prefill)):
        fates = await survive(session, fronts, victim, seed)
        for front, ended in fates.items():
            rights = await _rights(session, other, [fate.body for fate in ended])
            seen = Counter(fate.judge(right) for fate, right in zip(ended, rights, strict=True))
            assert seen["right"] > 0, seen
            assert victim is decode or set(seen) == {"right"}, seen
            assert victim is prefill or seen["503"] > 0, seen
            settled = {how: count for how, count in front.state()["settlements"].items() if count}
            lines.append(f"{front.order}, {victim.role} killed: {dict(seen)}; settled {settled}")
        for front in fronts:
            await asyncio.to_thread(front.wait_until_warm)  # first all: a warm-up moves KV as well
        for front in fronts:
            seed += 5000
            await check_kv_moves(session, front, decode, seed)
    return lines


async def _rights(session: aiohttp.ClientSession, single: Engine, bodies: list[dict[str, Any]]) -> list[str]:
    gate = asyncio.Semaphore(6)

    async def right(body: dict[str, Any]) -> str:
        async with gate:
            return (await complete(session, single.url, {**body, "stream": False, "cache_salt": "x"})).text

    return await asyncio.gather(*(right(body) for body in bodies))


async def check_kv_moves(session: aiohttp.ClientSession, front: Gateway, decode: Engine, seed: int) -> None:
    """Once all engines are warm, a request's whole prompt comes through the connector."""
    await asyncio.to_thread(front.wait_until_warm)
    before = decode.external_tokens
    got = await complete(session, front.url, {"prompt": make_prompt(seed, 80), "max_tokens": 4})
    tokens = got.usage["prompt_tokens"]
    await eventually(lambda: decode.external_tokens - before == tokens, 20, "KV does not move again")


async def check_transfer_probes(
    session: aiohttp.ClientSession, order: Order, ends: tuple[Engine, Engine], logs: Path
) -> None:
    """A transfer probe shows that D has not computed the prompt; a prompt that only D gets, D computes itself."""
    prefill, decode = ends
    with gateway(order, [prefill], [decode], logs, verification_period_seconds=5) as front:
        await eventually(
            lambda: front.admin("/pdx/verification")["lastSuccess"], 60, "no transfer probe has seen KV move"
        )
        report = front.admin("/pdx/verification")
        assert report["finding"]["verdict"] == "verified", report
        (seen,) = report["pairs"]
        assert seen["outside"] >= seen["tokens"] - 1 > 150, report
        assert not any(front.state()["outcomes"].values())
    body = {"prompt": make_prompt(7_000_000 + front.number, 200), "max_tokens": 4}
    for salt in ("one", "another"):
        alone = await complete(session, decode.url, {**body, "cache_salt": salt})
        assert alone.usage["prompt_tokens_details"]["cached_tokens"] == 0, "a salt keeps D's own cache out"
