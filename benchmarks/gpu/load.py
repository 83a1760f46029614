"""Requests at random times: the gateway in front of two aggregated engines, and of the same engines as P and D."""

import argparse
import asyncio
import random
import sys
from collections import Counter
from collections.abc import AsyncGenerator
from typing import Any, Final

import aiohttp

from benchmarks.gpu.client import Engines, RequestError, Stream, aggregated, gateway, prompt, quantile, split, stream

RATES: Final = (1, 2, 4)
"""Requests per second."""
PROMPT: Final = 4096
ANSWER: Final = 128
EXPECTED: Final = (RequestError, aiohttp.ClientError, TimeoutError)
"""How a request may fail without ending the run."""


async def run(
    session: aiohttp.ClientSession, engines: Engines, options: argparse.Namespace
) -> AsyncGenerator[dict[str, Any]]:
    """Yield a row for each rate and arm. Both arms get the same requests, one after the other."""
    length = min(PROMPT, options.longest)
    async with (
        gateway(session, *aggregated(engines)) as whole,
        gateway(session, *split(engines, options.order, probes=0)) as parted,
    ):
        arms = {"aggregated": whole.url, "split": parted.url}
        for seed, url in enumerate([*arms.values()] * 2):
            await stream(session, url, prompt(600, 10_000_000 + seed), 8)
        for rate in RATES:
            for arm, url in arms.items():
                row = {"rate": rate, "arm": arm, **await _load(session, url, rate, length, options.seconds)}
                sys.stdout.write(f"{row}\n")
                sys.stdout.flush()
                yield row


async def _load(session: aiohttp.ClientSession, url: str, rate: float, length: int, seconds: float) -> dict[str, Any]:
    rng, loop = random.Random(rate), asyncio.get_running_loop()
    began, at, tasks = loop.time(), 0.0, list[asyncio.Task[Stream]]()
    while at < seconds:
        await asyncio.sleep(max(0.0, began + at - loop.time()))
        tasks.append(asyncio.create_task(stream(session, url, prompt(length, 7919 * len(tasks) + int(rate)), ANSWER)))
        at += rng.expovariate(rate)
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    good = [answer for answer in answers if isinstance(answer, Stream)]
    failed = [answer for answer in answers if isinstance(answer, EXPECTED)]
    for answer in answers:
        if not isinstance(answer, (Stream, *EXPECTED)):
            raise answer
    ttft = [answer.ttft for answer in good]
    gaps = [later - earlier for answer in good for earlier, later in zip(answer.times, answer.times[1:], strict=False)]
    return {
        "prompt": length,
        "answer": ANSWER,
        "requests": len(answers),
        "failed": len(failed),
        "errors": dict(Counter(map(repr, failed))),
        "ttft_ms": {share: quantile(ttft, share) for share in (0.5, 0.95)},
        "gap_ms": {share: quantile(gaps, share) for share in (0.5, 0.95, 0.99)},
        "seconds": round(loop.time() - began, 1),
    }
