"""The interface of a timing model, and the simple model, in which no sequence slows another down."""

import asyncio
import itertools
import random
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, Protocol

from pdx_sim.core.blocks import blocks_for
from pdx_sim.core.connector import KVMover
from pdx_sim.core.sequence import Leg, Sequence
from pdx_sim.core.state import EngineState

_LONGEST_STEP: Final = 1.0
"""Seconds of one step of a prefill whose duration is set."""


class DisconnectedError(Exception):
    """The client has disconnected; the sequence stops."""


class Execution(Protocol):
    """When sequences get their blocks, and when their tokens are generated."""

    async def admit(self, seq: Sequence) -> None:
        """Return when the sequence holds the blocks that a load needs."""

    async def compute(self, seq: Sequence) -> None:
        """Compute what was not loaded, and generate all tokens. Raises DisconnectedError."""

    def ended(self, seq: Sequence) -> None:
        """Forget a sequence. Its blocks are free or held by the connector."""

    def wake(self) -> None:
        """Blocks were freed, or the core runs again after a hang."""


class SimpleExecution:
    """Every sequence has its own clock. `prefill_slots` and `max_running` limit how many compute."""

    def __init__(
        self,
        state: EngineState,
        connector: KVMover,
        rng: random.Random,
        produce: Callable[[Sequence], None],
        awake: asyncio.Event,
    ) -> None:
        self._state = state
        self._settings = state.settings
        self._counts = state.counts
        self._connector = connector
        self._rng = rng
        self._produce = produce
        self._awake = awake
        self._prefill_slots = asyncio.Semaphore(state.settings.prefill_slots)
        self._running_slots = asyncio.Semaphore(state.settings.max_running)
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._counted: set[Sequence] = set()
        """Sequences that are counted as waiting or running."""

    def wake(self) -> None:
        """Admit the head of the queue if there is room. It takes its blocks and wakes the next."""
        while self._queue:
            blocks, slot = self._queue[0]
            if not slot.done() and not self._has_room(blocks):
                break
            self._queue.popleft()
            if not slot.done():
                slot.set_result(None)
                break

    def ended(self, seq: Sequence) -> None:
        """A sequence that was admitted, or waited for it, counts no longer."""
        if seq in self._counted:
            self._counted.remove(seq)
            self._counts.waiting_now -= 1

    async def admit(self, seq: Sequence) -> None:
        """Wait for free blocks and, as vLLM, for a free place among the running sequences; in order."""
        self._counted.add(seq)
        self._counts.waiting_now += 1
        needed = blocks_for(len(seq.prompt), self._settings.block_size)
        while self._queue or not self._has_room(needed) or not self._state.pool.take(seq.internal_id, needed):
            slot: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._queue.append((needed, slot))
            try:
                await slot
            finally:
                slot.cancel()
            if self._state.pool.take(seq.internal_id, needed):
                break
        self._state.on_change()

    def _has_room(self, blocks: int) -> bool:
        runs = self._counts.running_now < self._settings.max_running
        return runs and self._awake.is_set() and blocks <= self._state.pool.free_blocks

    async def compute(self, seq: Sequence) -> None:
        """Prefill, unless KV was loaded, and decode."""
        if not seq.cached:
            async with self._working(seq, self._prefill_slots):
                await self._prefill(seq)
                await self._connector.save(seq)  # a client that disconnects meanwhile stops nothing
                self._generate(seq)
        if seq.produced < seq.last_token:
            async with self._working(seq, self._running_slots):
                await self._decode(seq)

    @asynccontextmanager
    async def _working(self, seq: Sequence, slots: asyncio.Semaphore) -> AsyncIterator[None]:
        async with slots:
            await self._awake.wait()
            seq.waits = False
            seq.begun_at = seq.begun_at or self._state.now()
            self._counts.waiting_now -= 1
            self._counts.running_now += 1
            try:
                yield
            finally:
                seq.waits = True
                self._counts.waiting_now += 1
                self._counts.running_now -= 1
                self._state.on_change()

    async def _prefill(self, seq: Sequence) -> None:
        due = self._state.now()
        extra = self._settings.prefill_base_seconds * self._factor(seq)
        for tokens, seconds in self._prefill_steps(seq):
            due = await self._pass(due, extra + seconds * self._factor(seq))
            extra = 0.0
            self._counts.prompt_tokens_local += tokens
            if seq.disconnected_at is not None:
                self._counts.orphan_prefill_tokens += tokens
                raise DisconnectedError

    def _prefill_steps(self, seq: Sequence) -> list[tuple[int, float]]:
        """Tokens and seconds of each step."""
        length, chunk = len(seq.prompt), self._settings.prefill_chunk
        if not seq.prefill_seconds:
            chunks = [min(chunk, length - begin) for begin in range(0, length, chunk)]
            return [(tokens, tokens * self._settings.prefill_token_seconds) for tokens in chunks]
        steps = max(1, round(seq.prefill_seconds / _LONGEST_STEP))
        ends = [length * step // steps for step in range(steps + 1)]
        return [(end - begin, seq.prefill_seconds / steps) for begin, end in itertools.pairwise(ends)]

    async def _decode(self, seq: Sequence) -> None:
        due = self._state.now()
        while seq.produced < seq.last_token:
            due = await self._pass(due, self._settings.decode_token_seconds * self._factor(seq))
            self._generate(seq)
            if seq.disconnected_at is not None:
                self._counts.orphan_tokens += 1
                raise DisconnectedError

    def _generate(self, seq: Sequence) -> None:
        self._produce(seq)
        total = len(seq.prompt) + seq.produced
        if total % self._settings.block_size == 1 and seq.leg is not Leg.PREFILL:
            self._state.pool.take(seq.internal_id, 1)  # if the pool is full it runs on: only the step loop preempts

    def _factor(self, seq: Sequence) -> float:
        jitter = self._settings.jitter
        return seq.slowness * (self._rng.uniform(1 - jitter, 1 + jitter) if jitter else 1.0)

    async def _pass(self, begin: float, seconds: float) -> float:
        """Wait until `seconds` after `begin`, and while the core hangs; return the time that counts as the end."""
        due = begin + seconds
        await asyncio.sleep(max(0.0, due - self._state.now()))
        if self._awake.is_set():
            return due
        await self._awake.wait()
        return self._state.now()
