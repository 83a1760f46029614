"""Gathering the evidence: a fresh prompt through the gateway and at one engine, vLLM's counters read around it."""

import asyncio
import random
import re
import string
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families

from pdx_api.connectors.families import Pool
from pdx_api.names import Mode, Role
from pdx_api.spec.types import Spec
from pdx_api.verification import VERDICT_PATH, Verdict
from pdx_cli.errors import CommandError
from pdx_cli.local.layout import EngineProgram, Layout
from pdx_cli.local.proof import WHOLE_BLOCKS, Evidence, Place
from pdx_cli.sources.client import Answer, AnswerError, Client

PROMPT_TOKENS: Final = 600
"""Several KV blocks of any device (CPU 128 tokens, GPU 16), and still a fraction of a second of work."""
POOL_TOKENS: Final = 1500
"""The same where whole blocks are moved only: what is left of the last two is then less than a tenth."""
SMALLEST_BLOCK: Final = 16
"""Tokens; the blocks of every device are a multiple of it."""
ANSWER_TOKENS: Final = 24
SAMPLE_WORDS: Final = 40
REQUEST_SECONDS: Final = 120.0
COUNTER_SECONDS: Final = 5.0
"""How long the counters may lag behind the answer."""
CANARY_SECONDS: Final = 10.0
"""How long the first canaries are waited for."""
COUNTER: Final = "vllm:prompt_tokens_by_source_total"
EXTERNAL: Final = "external_kv_transfer"
COMPUTED: Final = "local_compute"


async def gather(client: Client, layout: Layout, spec: Spec) -> Evidence:
    """Send the requests and read the counters; CommandError when an engine or the gateway fails at it."""
    try:
        await _first_canary(client, layout, spec)
        evidence = await _gather(client, layout, spec)
        if spec.mode is Mode.DISAGGREGATED and evidence.external_tokens > evidence.prompt_tokens:
            evidence = await _gather(client, layout, spec)  # a canary came between
        return evidence
    except AnswerError as error:
        raise CommandError(f"The proof's request failed: {error}.") from error


async def _first_canary(client: Client, layout: Layout, spec: Spec) -> None:
    """Wait until the gateway's first canaries are over: their tokens are counted too."""
    if spec.mode is Mode.AGGREGATED or not spec.routing.canary_seconds:
        return
    told: dict[str, Any] = {"stamp": "", "finding": {"verdict": Verdict.UNKNOWN}}
    deadline = time.monotonic() + CANARY_SECONDS
    while told["finding"]["verdict"] == Verdict.UNKNOWN and time.monotonic() < deadline:
        url = f"{layout.admin.url}{VERDICT_PATH}?after={told['stamp']}&wait={CANARY_SECONDS:.0f}"
        told = await client.json(url, seconds=2 * CANARY_SECONDS)


async def _gather(client: Client, layout: Layout, spec: Spec) -> Evidence:
    counted = layout.of(Role.DECODE) or layout.of(Role.AGGREGATED)
    body = {
        "model": spec.model.served_name or spec.model.name,
        "prompt": await _prompt(client, counted[0], spec),
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
    }
    before = await _settled(client, counted)
    began = time.perf_counter()
    # Streamed, because only then the first event is early: it ends the hand-off that the gateway times.
    answer = await client.events(
        f"{layout.gateway.url}/v1/completions",
        {**body, "stream_options": {"include_usage": True}},
        seconds=REQUEST_SECONDS,
    )
    total = time.perf_counter() - began
    usage = answer.body[-1]["usage"]
    expected = 0 if spec.mode is Mode.AGGREGATED else usage["prompt_tokens"] * WHOLE_BLOCKS
    external = await _moved(client, counted, before, expected)
    single = _single(layout, answer)
    # The salt keeps the engine's prefix cache out: it computes what P computed before.
    alone = await client.post(
        f"{single.url}/v1/completions", {**body, "cache_salt": uuid.uuid4().hex}, seconds=REQUEST_SECONDS
    )
    timing = _timing(answer.headers)
    return Evidence(
        mode=spec.mode,
        wiring=f"{spec.order} ({spec.connector.name})",
        prefill=_place(layout, answer.headers.get("x-pdx-prefill")),
        decode=_place(layout, answer.headers.get("x-pdx-decode")),
        single=Place(single.name, single.address),
        prefill_ms=timing.get("prefill"),
        handoff_ms=timing.get("handoff"),
        total_ms=total * 1000,
        prompt_tokens=usage["prompt_tokens"],
        external_tokens=external,
        answer_tokens=usage["completion_tokens"],
        text="".join(choice["text"] for event in answer.body for choice in event["choices"]),
        single_text=alone.body["choices"][0]["text"],
    )


async def _prompt(client: Client, engine: EngineProgram, spec: Spec) -> str:
    """Random words, so that no cache knows them, of about PROMPT_TOKENS tokens by the engine's own tokenizer."""
    sample = _words(SAMPLE_WORDS)
    body = {"model": spec.model.served_name or spec.model.name, "prompt": sample}
    answer = (await client.post(f"{engine.url}/tokenize", body, seconds=REQUEST_SECONDS)).body
    room = int(answer["max_model_len"]) - ANSWER_TOKENS
    pool = spec.mode is Mode.DISAGGREGATED and isinstance(spec.connector.family(spec.order), Pool)
    # Words differ in their tokens: a tenth is left, so that a short model's limit is kept.
    wanted = min(POOL_TOKENS if pool else PROMPT_TOKENS, int(room * 0.9))
    while True:
        prompt = _words(max(1, wanted * SAMPLE_WORDS // max(1, int(answer["count"]))))
        body = {**body, "prompt": prompt}
        count = int((await client.post(f"{engine.url}/tokenize", body, seconds=REQUEST_SECONDS)).body["count"])
        # Of whole blocks and one token the last block may not be looked for (docs/connectors/shared-storage.md).
        if count % SMALLEST_BLOCK != 1 or not pool:
            return prompt


def _words(count: int) -> str:
    choose = random.SystemRandom().choice
    return " ".join("".join(choose(string.ascii_lowercase) for _ in range(5)) for _ in range(count))


def _single(layout: Layout, answer: Answer) -> EngineProgram:
    """The engine to compare with: P, which serves plain requests too, or another of the pool than answered."""
    if prefill := layout.of(Role.PREFILL):
        return prefill[0]
    pool = layout.of(Role.AGGREGATED)
    return next((engine for engine in pool if engine.address != answer.headers.get("x-pdx-decode")), pool[0])


async def _settled(client: Client, engines: Sequence[EngineProgram]) -> int:
    """The counter once it stands still: the warm-up before moved KV too."""
    last = await _external(client, engines)
    while True:
        await asyncio.sleep(0.2)
        now = await _external(client, engines)
        if now == last:
            return now
        last = now


async def _moved(client: Client, engines: Sequence[EngineProgram], before: int, expected: float) -> int:
    """By how much the counter has moved: read until it is what is expected, or for COUNTER_SECONDS."""
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
    """Prompt tokens that came through a connector, by an engine's /metrics."""
    samples = (s for family in text_string_to_metric_families(metrics) for s in family.samples)
    return int(sum(s.value for s in samples if s.name == COUNTER and s.labels.get("source") == EXTERNAL))


def _place(layout: Layout, address: str | None) -> Place | None:
    return None if address is None else Place(layout.name_of(address) or "unknown", address)


def _timing(headers: Mapping[str, Any]) -> dict[str, float]:
    """Milliseconds by phase, from `server-timing: prefill;dur=12.3, handoff;dur=4.5`."""
    found = re.findall(r"([\w-]+);dur=([\d.]+)", str(headers.get("server-timing", "")))
    return {name: float(milliseconds) for name, milliseconds in found}
