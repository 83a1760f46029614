"""Pairs of simulated engines, and a client that sends them requests as a gateway does."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import pytest

from pdx_api.names import Order, Role
from pdx_sim import SimEngine, SimSettings

PREFILL_PARAMS = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
PROMPT = "What a long prompt this is. " * 100
FAST = SimSettings(prefill_token_seconds=1e-6, decode_token_seconds=1e-4)
SHORT_LEASE = 0.3
"""Seconds: for tests that wait for its end."""


@dataclass
class Answer:
    status: int
    body: dict[str, Any]

    @property
    def text(self) -> str:
        return str(self.body["choices"][0]["text"])

    @property
    def params(self) -> dict[str, Any]:
        return dict(self.body["kv_transfer_params"])


class Pair:
    """P, D, and a client."""

    def __init__(self, prefill: SimEngine, decode: SimEngine, session: aiohttp.ClientSession) -> None:
        self.p, self.d, self.session = prefill, decode, session

    async def post(self, engine: SimEngine, request_id: str = "one", **body: Any) -> Answer:
        body = {"model": "sim", "prompt": PROMPT, "max_tokens": 5, **body}
        headers = {"X-Request-Id": request_id}
        async with self.session.post(f"{engine.url}/v1/completions", json=body, headers=headers) as response:
            return Answer(response.status, await response.json())

    async def prefill(self, request_id: str = "one", **body: Any) -> Answer:
        return await self.post(self.p, request_id, **{"max_tokens": 1, "kv_transfer_params": PREFILL_PARAMS, **body})

    async def decode(self, params: dict[str, Any], request_id: str = "one", **body: Any) -> Answer:
        return await self.post(self.d, request_id, kv_transfer_params=params, **body)

    def decode_params(self, request_id: str = "one", **changes: Any) -> dict[str, Any]:
        """The parameters of a push D leg before P has answered."""
        params = {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": self.p.engine_id,
            "remote_host": "127.0.0.1",
            "remote_port": self.p.side_channel_port,
            "tp_size": 1,
            "pp_size": 1,
            "remote_request_id": request_id,
        }
        return {**params, **changes}

    def is_clean(self) -> bool:
        """Whether neither engine holds a block."""
        return self.p.counts.blocks_held_now == 0 == self.d.counts.blocks_held_now


async def until(condition: Callable[[], object], within: float = 15.0) -> None:
    """Await a condition; TimeoutError after `within` seconds."""
    async with asyncio.timeout(within):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


async def hang_up(task: "asyncio.Task[Answer]") -> None:
    """Close the connection of a request under way."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


MakePair = Callable[..., Any]


@pytest.fixture
async def make_pair() -> AsyncIterator[MakePair]:
    """Starts a pair: `await make_pair(order, prefill={...}, decode={...}, **both)` with changes of settings."""
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())

        async def make(
            order: Order = Order.PREFILL_FIRST,
            prefill: dict[str, Any] | None = None,
            decode: dict[str, Any] | None = None,
            **both: Any,
        ) -> Pair:
            base = replace(FAST, order=order, **both)
            engines = [
                await stack.enter_async_context(SimEngine(replace(base, role=role, **(changes or {}))))
                for role, changes in ((Role.PREFILL, prefill), (Role.DECODE, decode))
            ]
            return Pair(engines[0], engines[1], session)

        yield make
