"""Requests with prompts of random tokens, gateways as processes, and what vLLM's metrics count."""

import asyncio
import json
import math
import random
import re
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from pdx_cli.local.ports import HOST, allocate

FIRST_TOKEN: Final = 2
"""The tiny tokenizer's first ids begin and end texts."""
LAST_TOKEN: Final = 511
_START_SECONDS: Final = 60.0
_END_SECONDS: Final = 30.0


class RequestError(Exception):
    """A request failed, or its answer is not whole."""


@dataclass(frozen=True, slots=True)
class Engines:
    """The URLs of P and D."""

    prefill: str
    decode: str


@dataclass(slots=True)
class Stream:
    """One streamed answer."""

    began: float
    times: list[float] = field(default_factory=list)
    """When each event with tokens came, on the clock of `began`, seconds."""
    tokens: list[int] = field(default_factory=list)

    @property
    def ttft(self) -> float:
        """Time to first token, seconds."""
        return self.times[0] - self.began


def prompt(tokens: int, seed: int) -> list[int]:
    """Return token ids; each seed gives another prompt."""
    rng = random.Random(seed)
    return [rng.randint(FIRST_TOKEN, LAST_TOKEN) for _ in range(tokens)]


async def stream(session: aiohttp.ClientSession, url: str, ids: Sequence[int], tokens: int) -> Stream:
    """Send one greedy request and receive its stream; raises RequestError, also for a text of another length."""
    body = {"model": "m", "prompt": ids, "max_tokens": tokens, "temperature": 0, "stream": True}
    found = Stream(time.perf_counter())
    async with session.post(
        f"{url}/v1/completions", json={**body, "ignore_eos": True, "return_token_ids": True}
    ) as answer:
        if answer.status != 200:
            raise RequestError(f"{answer.status} {await answer.text()}")
        async for line in answer.content:
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                if "error" in event:
                    raise RequestError(f"an event of an error: {event}")
                choices = event.get("choices")
                if choices and choices[0].get("token_ids"):
                    found.times.append(time.perf_counter())
                    found.tokens += choices[0]["token_ids"]
    if len(found.tokens) != tokens:
        raise RequestError(f"{len(found.tokens)} tokens instead of {tokens}")
    return found


async def metrics(session: aiohttp.ClientSession, url: str) -> dict[str, float]:
    """Return the sums of NIXL's series of an engine, and its prompt tokens by source (`from_SOURCE`)."""
    async with session.get(f"{url}/metrics", raise_for_status=True) as answer:
        text = await answer.text()
    found: dict[str, float] = {}
    for name, labels, value in re.findall(r"^vllm:(\w+)\{(.*?)\} (\S+)$", text, re.MULTILINE):
        source = re.search(r'source="(\w+)"', labels)
        if name == "prompt_tokens_by_source_total" and source:
            name = f"from_{source[1]}"
        elif not re.match(r"nixl_\w+_(sum|count|total)$", name):
            continue
        found[name] = found.get(name, 0.0) + float(value)
    return found


async def both_metrics(session: aiohttp.ClientSession, engines: Engines) -> dict[str, float]:
    """Return the sums of both engines: the one that moves the KV counts the transfers."""
    both = [await metrics(session, url) for url in (engines.prefill, engines.decode)]
    return {name: sum(each.get(name, 0.0) for each in both) for name in both[0] | both[1]}


def growth(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """Return by how much each series grew."""
    return {name: value - before.get(name, 0.0) for name, value in after.items()}


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway that serves."""

    url: str
    admin: str


@asynccontextmanager
async def gateway(session: aiohttp.ClientSession, *arguments: str) -> AsyncIterator[Gateway]:
    """Run `pdx gateway` with these arguments until the block ends."""
    addresses = [f"{HOST}:{port}" for port in allocate(2)]
    command = ("-m", "pdx_cli", "gateway", "--listen", addresses[0], "--admin", addresses[1], *arguments)
    process = await asyncio.create_subprocess_exec(sys.executable, *command)
    try:
        running = Gateway(*(f"http://{address}" for address in addresses))
        await _wait_until_warm(session, running, process)
        yield running
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), _END_SECONDS)
            except TimeoutError:
                process.kill()
                await process.wait()


async def _wait_until_warm(
    session: aiohttp.ClientSession, running: Gateway, process: asyncio.subprocess.Process
) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.returncode is None:
        try:
            found = await page(session, running, "/pdx/state")
        except aiohttp.ClientError:
            pass
        else:
            states = {endpoint["state"] for endpoint in found["endpoints"]}
            if states == {"Warm"}:  # `/ready` would not wait for P
                return
        await asyncio.sleep(0.2)
    raise RuntimeError("an engine is not warm")


def split(engines: Engines, order: str, *, probes: float) -> tuple[str, ...]:
    """Return the gateway's arguments that split requests over P and D, with a transfer probe every `probes` seconds."""
    ends = ("--prefill", engines.prefill, "--decode", engines.decode, "--order", order)
    return (*ends, "--verification-period-seconds", str(probes))


def aggregated(engines: Engines) -> tuple[str, ...]:
    """Return the gateway's arguments with which each engine serves whole requests."""
    return ("--aggregated", engines.prefill, engines.decode)


async def page(session: aiohttp.ClientSession, running: Gateway, path: str) -> dict[str, Any]:
    """Return a page of the gateway's admin address."""
    async with session.get(f"{running.admin}{path}") as answer:
        found: dict[str, Any] = await answer.json()
        return found


def quantile(values: Sequence[float], share: float) -> float | None:
    """Return the nearest-rank quantile in milliseconds; None without values."""
    rank = max(1, math.ceil(share * len(values)))
    return round(1e3 * sorted(values)[rank - 1], 1) if values else None
