"""Gathers the evidence: a random prompt to the gateway and to one engine, with vLLM's counters before and after."""

import asyncio
import random
import re
import string
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pdx_api.connectors.families import Pool
from pdx_api.names import Mode, Role
from pdx_api.spec.types import Spec
from pdx_api.verification import RESULT_PATH, Verdict
from pdx_api.vllm_metrics import read_metrics
from pdx_cli.errors import CommandError
from pdx_cli.local.layout import EngineProgram, Layout
from pdx_cli.local.proof import WHOLE_BLOCKS, EngineAddress, Evidence
from pdx_cli.sources.client import Answer, AnswerError, Client

PROMPT_TOKENS: Final = 600
"""Several KV blocks on any device (CPU 128 tokens, GPU 16), and less than a second of work."""
POOL_TOKENS: Final = 1500
"""The same for connectors that move only whole blocks: the last two blocks are then less than a tenth."""
SMALLEST_BLOCK: Final = 16
"""Tokens; the block size on every device is a multiple of it."""
ANSWER_TOKENS: Final = 24
SAMPLE_LENGTH: Final = 40
REQUEST_SECONDS: Final = 120.0
COUNTER_SECONDS: Final = 5.0
"""The counters may lag behind the answer by this much."""
VERIFICATION_SECONDS: Final = 10.0
"""Limit for the first transfer probes."""


async def gather(client: Client, layout: Layout, spec: Spec) -> Evidence:
    """Send the requests and read the counters; raises CommandError if an engine or the gateway fails."""
    try:
        await _first_verification(client, layout, spec)
        evidence = await _gather(client, layout, spec)
        if spec.mode is Mode.DISAGGREGATED and evidence.external_tokens > evidence.prompt_tokens:
            evidence = await _gather(client, layout, spec)  # a transfer probe ran at the same time
        return evidence
    except AnswerError as error:
        raise CommandError(f"The proof's request failed: {error}.") from error


async def _first_verification(client: Client, layout: Layout, spec: Spec) -> None:
    """Wait until the gateway's first transfer probes have ended, because the counters include their tokens."""
    if spec.mode is Mode.AGGREGATED or not spec.kv_transfer.verification.period_seconds:
        return
    result: dict[str, Any] = {"stamp": "", "finding": {"verdict": Verdict.UNKNOWN}}
    deadline = time.monotonic() + VERIFICATION_SECONDS
    while result["finding"]["verdict"] == Verdict.UNKNOWN and time.monotonic() < deadline:
        url = f"{layout.admin.url}{RESULT_PATH}?after={result['stamp']}&wait={VERIFICATION_SECONDS:.0f}"
        result = await client.json(url, seconds=2 * VERIFICATION_SECONDS)


async def _gather(client: Client, layout: Layout, spec: Spec) -> Evidence:
    counted = layout.of(Role.DECODE) or layout.of(Role.AGGREGATED)
    body = {
        "model": spec.model.served_name or spec.model.name,
        "prompt": await _prompt(client, counted[0], spec),
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
    }
    before = await _stable(client, counted)
    answer, total_seconds = await _stream(client, layout, body)
    usage = answer.body[-1]["usage"]
    expected = 0 if spec.mode is Mode.AGGREGATED else usage["prompt_tokens"] * WHOLE_BLOCKS
    external = await _moved(client, counted, before, expected)
    single = _single(layout, answer)
    # With the salt, the engine cannot use its prefix cache and computes the whole prompt.
    alone = await client.post(
        f"{single.url}/v1/completions", {**body, "cache_salt": uuid.uuid4().hex}, seconds=REQUEST_SECONDS
    )
    timing = _timing(answer.headers)
    return Evidence(
        mode=spec.mode,
        wiring=f"{spec.order} ({spec.connector.name})",
        prefill=_engine(layout, answer.headers.get("x-pdx-prefill")),
        decode=_engine(layout, answer.headers.get("x-pdx-decode")),
        single=EngineAddress(single.name, single.address),
        prefill_ms=timing.get("prefill"),
        handoff_ms=timing.get("handoff"),
        total_ms=total_seconds * 1000,
        prompt_tokens=usage["prompt_tokens"],
        external_tokens=external,
        answer_tokens=usage["completion_tokens"],
        text="".join(choice["text"] for event in answer.body for choice in event["choices"]),
        single_text=alone.body["choices"][0]["text"],
    )


async def _stream(client: Client, layout: Layout, body: Mapping[str, Any]) -> tuple[Answer, float]:
    """Send the request to the gateway; return the answer and the seconds that it took.

    It is streamed, so that the first event, which ends the hand-off that the gateway measures, precedes the last token.
    """
    began = time.perf_counter()
    streamed = {**body, "stream_options": {"include_usage": True}}
    answer = await client.events(f"{layout.gateway.url}/v1/completions", streamed, seconds=REQUEST_SECONDS)
    return answer, time.perf_counter() - began


async def _prompt(client: Client, engine: EngineProgram, spec: Spec) -> str:
    """Return random text that no cache has, of about PROMPT_TOKENS tokens by the engine's own tokenizer."""
    sample = _random_text(SAMPLE_LENGTH)
    body = {"model": spec.model.served_name or spec.model.name, "prompt": sample}
    answer = (await client.post(f"{engine.url}/tokenize", body, seconds=REQUEST_SECONDS)).body
    room = int(answer["max_model_len"]) - ANSWER_TOKENS
    pool = spec.mode is Mode.DISAGGREGATED and isinstance(spec.connector.family(spec.order), Pool)
    # Random text varies in its tokens: a margin of a tenth keeps within a short model's limit.
    target = min(POOL_TOKENS if pool else PROMPT_TOKENS, int(room * 0.9))
    while True:
        prompt = _random_text(max(1, target * SAMPLE_LENGTH // max(1, int(answer["count"]))))
        body = {**body, "prompt": prompt}
        count = int((await client.post(f"{engine.url}/tokenize", body, seconds=REQUEST_SECONDS)).body["count"])
        # With one token after the whole blocks, the last block may not be loaded (docs/connectors/shared-storage.md).
        if count % SMALLEST_BLOCK != 1 or not pool:
            return prompt


def _random_text(count: int) -> str:
    """Return `count` random words of five letters."""
    choose = random.SystemRandom().choice
    return " ".join("".join(choose(string.ascii_lowercase) for _ in range(5)) for _ in range(count))


def _single(layout: Layout, answer: Answer) -> EngineProgram:
    """Return the engine to compare with: P, which serves plain requests too, or another aggregated engine."""
    if prefill := layout.of(Role.PREFILL):
        return prefill[0]
    pool = layout.of(Role.AGGREGATED)
    return next((engine for engine in pool if engine.address != answer.headers.get("x-pdx-decode")), pool[0])


async def _stable(client: Client, engines: Sequence[EngineProgram]) -> int:
    """Return the counter once it stays constant, because the warm-up before moved KV too."""
    last = await _external(client, engines)
    while True:
        await asyncio.sleep(0.2)
        now = await _external(client, engines)
        if now == last:
            return now
        last = now


async def _moved(client: Client, engines: Sequence[EngineProgram], before: int, expected: float) -> int:
    """Return the counter's increase. Read it until it is as expected, or for COUNTER_SECONDS."""
    deadline = time.monotonic() + COUNTER_SECONDS
    while True:
        moved = await _external(client, engines) - before
        if moved >= expected or time.monotonic() > deadline:
            return moved
        await asyncio.sleep(0.1)


async def _external(client: Client, engines: Sequence[EngineProgram]) -> int:
    texts = await asyncio.gather(*(client.text(f"{engine.url}/metrics") for engine in engines))
    return sum(external_tokens(text) for text in texts)


def external_tokens(metrics: str) -> int:
    """Return the prompt tokens that came through a connector, from an engine's /metrics."""
    sources = read_metrics(metrics.encode()).prompt_sources
    return int(sources.external) if sources else 0


def _engine(layout: Layout, address: str | None) -> EngineAddress | None:
    return None if address is None else EngineAddress(layout.name_of(address) or "unknown", address)


def _timing(headers: Mapping[str, Any]) -> dict[str, float]:
    """Return the milliseconds of each phase, from `server-timing: prefill;dur=12.3, handoff;dur=4.5`."""
    found = re.findall(r"([\w-]+);dur=([\d.]+)", str(headers.get("server-timing", "")))
    return {name: float(milliseconds) for name, milliseconds in found}
