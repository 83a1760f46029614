"""`cached_tokens` are the hits of the prompt in every order and with a pool, not the KV that D has received."""

import json
from pathlib import Path
from typing import Any

import pytest

from pdx_api.names import Order
from tests.component.conftest import MakeWorld
from tests.component.harness import AGENT_SHAPES, SHAPES, Reply, Shape

USAGE: dict[str, Any] = {"stream_options": {"include_usage": True}}
CACHES = {"enable_prefix_caching": True, "step_seconds": 0.001, "step_token_seconds": 1e-6}
STEPS = [shape for shape in (*SHAPES, *AGENT_SHAPES) if shape.chat or shape.agent or not shape.stream]


def _usage(reply: Reply) -> dict[str, Any]:
    """The usage of an answer, or of the last event that has one."""
    documents = [reply.json] if not reply.headers["content-type"].startswith("text/event-stream") else reply.chunks
    found = [each.get("usage") or each.get("response", {}).get("usage") for each in documents]
    return dict(next(usage for usage in reversed(found) if usage))


def _hits(usage: dict[str, Any]) -> tuple[int, int]:
    """The hits, and all tokens of the prompt."""
    if "cache_read_input_tokens" in usage:
        read = usage["cache_read_input_tokens"]
        return read, read + usage["input_tokens"]
    details = usage.get("prompt_tokens_details") or usage["input_tokens_details"]
    return details["cached_tokens"], usage.get("prompt_tokens") or usage["input_tokens"]


@pytest.mark.parametrize("shape", STEPS, ids=lambda shape: shape.label)
@pytest.mark.parametrize("way", [*Order, "pool", "vLLM 0.30"])
async def test_only_what_the_prompt_has_found_is_cached(
    way: str, shape: Shape, make_world: MakeWorld, tmp_path: Path
) -> None:
    order = way if isinstance(way, Order) else Order.PREFILL_FIRST
    old = {"version": "0.30.0"} if way == "vLLM 0.30" else {}
    world = await make_world(order, storage=tmp_path if way == "pool" else None, p={**CACHES, **old}, d=old)
    more = USAGE if shape.stream and not shape.agent else {}
    replies = [await world.complete(shape, prompt="A prompt of its own. " * 50, **more) for _ in range(2)]
    (first, prompt), (second, again) = (_hits(_usage(reply)) for reply in replies)
    assert first == 0
    assert prompt == again
    assert prompt > 100
    assert prompt - 32 < second <= prompt, "P has kept the prompt"
    assert all(reply.text == shape.expected(prompt="A prompt of its own. " * 50) for reply in replies)
    assert json.dumps([reply.status for reply in replies]) == "[200, 200]"
    assert await world.outcomes() == {"split": 2}
