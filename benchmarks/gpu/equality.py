"""Texts through the gateway, compared with each engine's own, and what the gateway's transfer probe reports."""

import argparse
import asyncio
import random
import sys
from collections.abc import AsyncGenerator
from typing import Any, Final

import aiohttp

from benchmarks.gpu.client import Engines, Gateway, gateway, growth, metrics, page, prompt, split, stream

LENGTHS: Final = (40, 300, 1111, 2500)
"""Of the prompts, tokens."""
ANSWER: Final = 48
_PROBE_SECONDS: Final = 30.0


async def run(
    session: aiohttp.ClientSession, engines: Engines, options: argparse.Namespace
) -> AsyncGenerator[dict[str, Any]]:
    """Yield a row for each of `options.prompts` greedy texts, then what the transfer probes report.

    The engines must not cache prefixes: the third request with a prompt would compute nothing.
    """
    texts = set[tuple[int, ...]]()
    equal = control = 0
    # Without probes, because their tokens would count too.
    async with gateway(session, *split(engines, options.order, probes=0)) as running:
        for number in range(options.prompts):
            tokens, row = await _compare(session, engines, running, number)
            texts.add(tokens)
            equal += row["split_equals_prefill"]
            control += row["decode_equals_prefill"]
            yield row
    sys.stdout.write(f"{options.order}: of {options.prompts} texts, {equal} are P's own; D's own: {control}\n")
    async with gateway(session, *split(engines, options.order, probes=5)) as running:
        probes = await _probed(session, running)
    sys.stdout.write(f"{len(texts)} different texts; probes: {probes['finding']}\n")
    yield {"different_texts": len(texts), "probes": probes}


async def _compare(
    session: aiohttp.ClientSession, engines: Engines, running: Gateway, number: int
) -> tuple[tuple[int, ...], dict[str, Any]]:
    length = random.Random(number).choice(LENGTHS)
    ids = prompt(length, number)
    own = await stream(session, engines.prefill, ids, ANSWER)
    before = await metrics(session, engines.decode)
    got = await stream(session, running.url, ids, ANSWER)
    received = growth(before, await metrics(session, engines.decode)).get("from_external_kv_transfer", 0.0)
    control = await stream(session, engines.decode, ids, ANSWER)
    pairs = zip(own.tokens, got.tokens, strict=True)
    return tuple(own.tokens), {
        "length": length,
        "split_equals_prefill": own.tokens == got.tokens,
        "decode_equals_prefill": own.tokens == control.tokens,
        "first_difference": next((at for at, (left, right) in enumerate(pairs) if left != right), None),
        "received": received,
    }


async def _probed(session: aiohttp.ClientSession, running: Gateway) -> dict[str, Any]:
    """Return the gateway's page of transfer probes once a transfer is verified, or after half a minute."""
    loop = asyncio.get_running_loop()
    end = loop.time() + _PROBE_SECONDS
    while True:
        found = await page(session, running, "/pdx/verification")
        if found["finding"]["verdict"] == "verified" or loop.time() > end:
            return found
        await asyncio.sleep(1)
