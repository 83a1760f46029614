"""ExpectedWait with three P's and a D: conversations that grow find their beginnings in vLLM's prefix caches."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import aiohttp
import pytest

from pdx_api.names import Order, Role
from tests.engines.support.harness import Engine, complete, gateway, make_prompt, running, tiny_spec

CONVERSATIONS = 10
ROUNDS = 5
AT_ONCE = 4
"""Turns under way. If all took theirs together, a short conversation would rightly move to an engine that idles."""
REPETITIONS = 3
SYLLABLES = 110
"""Of a message: about 250 tokens. The first message of a conversation is three times as long."""


@dataclass(frozen=True)
class Engines:
    """Engines of both roles, wired to each other."""

    prefill: list[Engine]
    decode: list[Engine]


@pytest.fixture(scope="module")
def engines(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    spec, logs = tiny_spec(tiny_model, order="PrefillFirst", connector="NIXL"), tmp_path_factory.mktemp("prefix")
    found = Engines([Engine(spec, Role.PREFILL, logs) for _ in range(3)], [Engine(spec, Role.DECODE, logs)])
    with running(*found.prefill, *found.decode):
        yield found


async def converse(session: aiohttp.ClientSession, url: Callable[[int], str], first_seed: int) -> None:
    """Let all conversations take their turns. `url` returns where a conversation goes."""
    limit = asyncio.Semaphore(AT_ONCE)

    async def go_on(number: int, messages: list[dict[str, str]]) -> None:
        seed = first_seed + number * ROUNDS + len(messages)
        content = make_prompt(seed, SYLLABLES if messages else 3 * SYLLABLES)
        messages.append({"role": "user", "content": content})
        async with limit:
            answer = await complete(session, url(number), {"messages": messages, "max_tokens": 4})
        assert answer.status == 200, answer.text
        messages.append({"role": "assistant", "content": answer.text})

    conversations: list[list[dict[str, str]]] = [[] for _ in range(CONVERSATIONS)]
    for _ in range(ROUNDS):
        await asyncio.gather(*(go_on(number, messages) for number, messages in enumerate(conversations)))


@asynccontextmanager
async def hits(engines: Sequence[Engine]) -> AsyncIterator[list[float]]:
    """Append the share of prompt tokens that these engines found in their prefix caches."""

    def read() -> list[float]:
        pages = [engine.metrics() for engine in engines]
        return [sum(page[f"prefix_cache_{name}_total"] for page in pages) for name in ("hits", "queries")]

    before, found = await asyncio.to_thread(read), list[float]()
    yield found
    after = await asyncio.to_thread(read)
    found.append((after[0] - before[0]) / (after[1] - before[1]))


async def through_gateway(session: aiohttp.ClientSession, engines: Engines, seed: int, *flags: str) -> float:
    """Return the share of the P's."""
    with gateway(Order.PREFILL_FIRST, engines.prefill, engines.decode, engines.prefill[0].logs, flags=flags) as front:
        async with hits(engines.prefill) as found:
            await converse(session, lambda _: front.url, seed)
    return found[0]


@pytest.mark.alone
async def test_conversations_find_their_beginning(session: aiohttp.ClientSession, engines: Engines) -> None:
    """At least 90 % of the hits of one engine that has every turn, and more than with LeastRequests.

    If one repetition does not show it with a margin, the medians of three do: a slow step of a P rightly moves a
    conversation.
    """
    found = [await measured(session, engines, 0)]
    if wrong(*found[0], margin=0.05):
        found += [await measured(session, engines, 100_000 * number) for number in range(1, REPETITIONS)]
    of_one, expected, least = map(median, zip(*found, strict=True))
    shares = f"one engine {of_one:.1%}, ExpectedWait {expected:.1%}, LeastRequests {least:.1%}: {found}"
    assert not wrong(of_one, expected, least), f"{wrong(of_one, expected, least)}: {shares}"


async def measured(session: aiohttp.ClientSession, engines: Engines, first_seed: int) -> tuple[float, float, float]:
    """Return the shares of one engine alone, of the P's with ExpectedWait, and of the P's with LeastRequests."""
    async with hits(engines.prefill[:1]) as alone:
        await converse(session, lambda _: engines.prefill[0].url, first_seed + 10_000)
    expected = await through_gateway(session, engines, first_seed + 20_000)
    least = await through_gateway(session, engines, first_seed + 30_000, "--prefill-policy", "LeastRequests")
    return alone[0], expected, least


def wrong(of_one: float, expected: float, least: float, *, margin: float = 0.0) -> str:
    """Return what these shares contradict, less a margin; empty if nothing."""
    if of_one <= 0.4 + margin:
        return "the conversations share too little"
    if expected < (0.9 + margin) * of_one:
        return "with ExpectedWait the P's find less than 90 % of what one engine finds"
    if expected <= (1.2 + margin) * least:
        return "with ExpectedWait the P's find hardly more than with LeastRequests"
    return ""
