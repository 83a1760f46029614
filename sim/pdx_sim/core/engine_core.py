"""The engine core: blocks, slots, prefill, load, decode. One task for each sequence.

Invariant: when a sequence's task has ended, its blocks are free, pinned under a lease, or stranded in a push.
"""

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pdx_sim.core.blocks import blocks_for
from pdx_sim.core.connector import KVMover, LoadError, MissError, StrandedError
from pdx_sim.core.counters import Violation
from pdx_sim.core.sequence import Finish, Leg, Sequence
from pdx_sim.core.state import EngineState
from pdx_sim.core.tasks import Tasks
from pdx_sim.settings import OnLoadFailure


class _DisconnectedError(Exception):
    """The client has disconnected; the sequence stops."""


class Core:
    """Runs sequences."""

    def __init__(self, state: EngineState, connector: KVMover, rng: random.Random) -> None:
        self._state = state
        self._settings = state.settings
        self._counts = state.counts
        self._connector = connector
        self._rng = rng
        self._prefill_slots = asyncio.Semaphore(state.settings.prefill_slots)
        self._running_slots = asyncio.Semaphore(state.settings.max_running)
        self._block_queue: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._live: set[Sequence] = set()
        self._tasks = Tasks()
        state.on_change = self.wake

    @property
    def live(self) -> int:
        """Sequences that have not ended."""
        return len(self._live)

    def start(self, seq: Sequence) -> None:
        """Begin a sequence."""
        self._live.add(seq)
        self._counts.waiting_now += 1
        seq.received_at = self._state.now()
        seq.task = self._tasks.start(self._run(seq))
        assert seq.task is not None
        seq.task.add_done_callback(lambda _task: self._end(seq))  # also when cancelled before its first step

    def disconnect(self, seq: Sequence) -> None:
        """The client has disconnected: a sequence that waits stops at once, one that runs at its next step."""
        if seq.finish is None and seq.disconnected_at is None:
            seq.disconnected_at = self._state.now()
            if seq.waits and seq.task is not None:
                seq.task.cancel()

    def abort_all(self) -> None:
        """End everything with finish_reason abort, as vLLM does when it shuts down."""
        for seq in tuple(self._live):
            seq.end(Finish.ABORT)
            if seq.task is not None:
                seq.task.cancel()

    def fail_all(self) -> None:
        """End everything with an error, as a dead EngineCore does."""
        for seq in tuple(self._live):
            seq.end(Finish.ERROR)
            if seq.task is not None:
                seq.task.cancel()

    def wake(self) -> None:
        """Wake the sequences that wait for blocks, in their order, and update the gauges of blocks."""
        while self._block_queue:
            blocks, slot = self._block_queue[0]
            if not slot.done() and blocks > self._state.pool.free_blocks:
                break
            self._block_queue.popleft()
            if not slot.done():
                slot.set_result(None)
                break  # the sequence takes its blocks and wakes the next
        self._counts.blocks_held_now = self._state.pool.held
        self._counts.blocks_pinned_now = self._state.leases.blocks
        self._counts.blocks_stranded_now = sum(map(self._state.pool.of, self._state.stranded))

    async def close(self) -> None:
        """Cancel every sequence without notifying peers."""
        await self._tasks.close()

    async def _run(self, seq: Sequence) -> None:
        try:
            await self._take_blocks(seq)
            await self._fill(seq)
            await self._compute(seq)
            self._conclude(seq)
        except StrandedError:
            seq.held = True
        except LoadError:
            seq.end(Finish.ERROR)
        except _DisconnectedError:
            pass

    def _end(self, seq: Sequence) -> None:
        self._counts.waiting_now -= 1
        self._live.discard(seq)
        if not seq.held:
            self._state.pool.free(seq.internal_id)
            if seq.leg is Leg.PREFILL:
                self._connector.dropped(seq)
        self._count_disconnected(seq)
        seq.end(Finish.ABORT)
        if seq.finish is not None:
            self._counts.finished[seq.finish.value] += 1
        self.wake()

    async def _take_blocks(self, seq: Sequence) -> None:
        needed = blocks_for(len(seq.prompt), self._settings.block_size)
        while self._block_queue or not self._state.pool.take(seq.internal_id, needed):
            slot: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._block_queue.append((needed, slot))
            try:
                await slot
            finally:
                slot.cancel()
            if self._state.pool.take(seq.internal_id, needed):
                break
        self.wake()

    async def _fill(self, seq: Sequence) -> None:
        """Load KV. If that fails, the prompt is computed here afterwards, or the request fails."""
        if self._settings.connected:
            self._counts.prompt_tokens_queried += len(seq.prompt)
        if seq.leg is not Leg.DECODE and not self._connector.finds_by_prompt:
            return
        own = seq.digest
        self._counts.loading_now += 1
        try:
            await self._connector.load(seq)
        except MissError:
            return
        except LoadError:
            self._counts.load_failures += 1
            if self._settings.on_load_failure is OnLoadFailure.FAIL:
                raise
            self._counts.recomputed += 1
            return
        finally:
            self._counts.loading_now -= 1
        seq.cached = seq.cached or len(seq.prompt)
        self._counts.prompt_tokens_external += seq.cached
        self._counts.prompt_tokens_local += len(seq.prompt) - seq.cached
        if seq.digest != own and seq.max_tokens > 1:
            self._counts.violate(Violation.FOREIGN_KV)

    async def _compute(self, seq: Sequence) -> None:
        if not seq.cached:
            async with self._working(seq, self._prefill_slots):
                await self._prefill(seq)
                await self._connector.save(seq)  # a client that disconnects meanwhile stops nothing
                self._produce(seq)
        if seq.produced < seq.last_token:
            async with self._working(seq, self._running_slots):
                await self._decode(seq)

    @asynccontextmanager
    async def _working(self, seq: Sequence, slots: asyncio.Semaphore) -> AsyncIterator[None]:
        async with slots:
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

    async def _prefill(self, seq: Sequence) -> None:
        due = self._state.now() + self._settings.prefill_base_seconds * self._factor(seq)
        chunk = self._settings.prefill_chunk
        for begin in range(0, len(seq.prompt), chunk):
            tokens = min(chunk, len(seq.prompt) - begin)
            due += tokens * self._settings.prefill_token_seconds * self._factor(seq)
            await self._until(due)
            self._counts.prompt_tokens_local += tokens
            if seq.disconnected_at is not None:
                self._counts.orphan_prefill_tokens += tokens
                raise _DisconnectedError

    async def _decode(self, seq: Sequence) -> None:
        due = self._state.now()
        while seq.produced < seq.last_token:
            due += self._settings.decode_token_seconds * self._factor(seq)
            await self._until(due)
            self._produce(seq)
            if seq.disconnected_at is not None:
                self._counts.orphan_tokens += 1
                raise _DisconnectedError

    def _produce(self, seq: Sequence) -> None:
        seq.produced += 1
        self._counts.generation_tokens += 1
        self._state.timings.token(seq, self._state.now())
        total = len(seq.prompt) + seq.produced
        if total % self._settings.block_size == 1 and seq.leg is not Leg.PREFILL:
            self._state.pool.take(seq.internal_id, 1)  # if the pool is full it runs on: no preemption is simulated
        seq.changed.set()

    def _conclude(self, seq: Sequence) -> None:
        """End a sequence that has generated its last token."""
        if seq.leg is Leg.PREFILL:
            seq.held = self._connector.finish(seq)
        seq.end(Finish.LENGTH if seq.produced >= seq.max_tokens else Finish.STOP)
        self._state.timings.finished(seq, self._state.now())

    def _count_disconnected(self, seq: Sequence) -> None:
        if seq.disconnected_at is None or seq.finish is not None:
            return
        self._counts.aborted += 1
        if seq.leg is Leg.PREFILL:
            self._counts.prefills_aborted += 1
        seconds = self._state.now() - seq.disconnected_at
        self._counts.longest_orphan_seconds = max(self._counts.longest_orphan_seconds, seconds)

    def _factor(self, seq: Sequence) -> float:
        jitter = self._settings.jitter
        return seq.slowness * (self._rng.uniform(1 - jitter, 1 + jitter) if jitter else 1.0)

    async def _until(self, due: float) -> None:
        await asyncio.sleep(max(0.0, due - self._state.now()))
