"""The engine core: blocks, slots, prefill, load, decode. One task for each sequence.

Invariant: when a sequence's task has ended, its blocks are free, parked under a lease, or stranded in a push.
"""

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pdx_sim.core.blocks import blocks_for
from pdx_sim.core.counters import Violation
from pdx_sim.core.sequence import Finish, Leg, Sequence
from pdx_sim.core.tasks import Tasks
from pdx_sim.settings import OnLoadFailure
from pdx_sim.transfer.connector import KVConnector, LoadError, MissError, Station, StrandedError
from pdx_sim.transfer.storage import Storage


class _GoneError(Exception):
    """The client has left; the sequence stops."""


class Core:
    """Runs sequences."""

    def __init__(
        self, station: Station, connector: KVConnector, rng: random.Random, storage: Storage | None = None
    ) -> None:
        self._station = station
        self._settings = station.settings
        self._counts = station.counts
        self._connector = connector
        self._rng = rng
        self._storage = storage
        self._prefill_slots = asyncio.Semaphore(station.settings.prefill_slots)
        self._seats = asyncio.Semaphore(station.settings.max_running)
        self._block_queue: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._live: set[Sequence] = set()
        self._tasks = Tasks()
        station.on_change = self.wake

    @property
    def live(self) -> int:
        """Sequences that have not ended."""
        return len(self._live)

    def start(self, seq: Sequence) -> None:
        """Take a sequence in."""
        self._live.add(seq)
        self._counts.waiting_now += 1
        seq.arrived_at = self._station.now()
        seq.task = self._tasks.start(self._run(seq))
        assert seq.task is not None
        seq.task.add_done_callback(lambda _task: self._leave(seq))  # also when cancelled before its first step

    def hang_up(self, seq: Sequence) -> None:
        """The client has left: stop waiting at once, or working at the next step."""
        if seq.finish is None and seq.left_at is None:
            seq.left_at = self._station.now()
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
        """Give free blocks to those who wait for them, first come first served; count what is held."""
        while self._block_queue:
            blocks, turn = self._block_queue[0]
            if not turn.done() and blocks > self._station.pool.free_blocks:
                break
            self._block_queue.popleft()
            if not turn.done():
                turn.set_result(None)
                break  # who was woken takes its blocks, and wakes the next
        self._counts.blocks_held_now = self._station.pool.held
        self._counts.blocks_parked_now = self._station.leases.blocks
        self._counts.blocks_stranded_now = sum(map(self._station.pool.of, self._station.stranded))

    async def close(self) -> None:
        """Drop every sequence without telling peers."""
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
        except _GoneError:
            pass

    def _leave(self, seq: Sequence) -> None:
        self._counts.waiting_now -= 1
        self._live.discard(seq)
        if not seq.held:
            self._station.pool.free(seq.internal_id)
            if seq.leg is Leg.PREFILL:
                self._connector.dropped(seq)
        self._account_departure(seq)
        seq.end(Finish.ABORT)
        if seq.finish is not None:
            self._counts.finished[seq.finish.value] += 1
        self.wake()

    async def _take_blocks(self, seq: Sequence) -> None:
        needed = blocks_for(len(seq.prompt), self._settings.block_size)
        while self._block_queue or not self._station.pool.take(seq.internal_id, needed):
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._block_queue.append((needed, turn))
            try:
                await turn
            finally:
                turn.cancel()
            if self._station.pool.take(seq.internal_id, needed):
                break
        self.wake()

    async def _fill(self, seq: Sequence) -> None:
        """Load a D leg's KV; a load that fails is computed here later, or fails the request."""
        if self._settings.connected:
            self._counts.prompt_tokens_queried += len(seq.prompt)
        if seq.leg is not Leg.DECODE and self._storage is None:
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
                if self._storage is not None:  # within the step: who leaves is gone only when it is saved
                    await self._storage.save(seq.prompt, self._settings.transfer_seconds)
                self._produce(seq)
        if seq.produced < seq.last_token:
            async with self._working(seq, self._seats):
                await self._decode(seq)

    @asynccontextmanager
    async def _working(self, seq: Sequence, slots: asyncio.Semaphore) -> AsyncIterator[None]:
        async with slots:
            seq.waits = False
            seq.begun_at = seq.begun_at or self._station.now()
            self._counts.waiting_now -= 1
            self._counts.running_now += 1
            try:
                yield
            finally:
                seq.waits = True
                self._counts.waiting_now += 1
                self._counts.running_now -= 1

    async def _prefill(self, seq: Sequence) -> None:
        due = self._station.now() + self._settings.prefill_base_seconds * self._factor(seq)
        chunk = self._settings.prefill_chunk
        for begin in range(0, len(seq.prompt), chunk):
            tokens = min(chunk, len(seq.prompt) - begin)
            due += tokens * self._settings.prefill_token_seconds * self._factor(seq)
            await self._until(due)
            self._counts.prompt_tokens_local += tokens
            if seq.left_at is not None:
                self._counts.orphan_prefill_tokens += tokens
                raise _GoneError

    async def _decode(self, seq: Sequence) -> None:
        due = self._station.now()
        while seq.produced < seq.last_token:
            due += self._settings.decode_token_seconds * self._factor(seq)
            await self._until(due)
            self._produce(seq)
            if seq.left_at is not None:
                self._counts.orphan_tokens += 1
                raise _GoneError

    def _produce(self, seq: Sequence) -> None:
        seq.produced += 1
        self._counts.generation_tokens += 1
        self._station.timings.token(seq, self._station.now())
        total = len(seq.prompt) + seq.produced
        if total % self._settings.block_size == 1 and seq.leg is not Leg.PREFILL:
            self._station.pool.take(seq.internal_id, 1)  # a full pool lets it run on: no preemption here
        seq.changed.set()

    def _conclude(self, seq: Sequence) -> None:
        """End a sequence that was computed to its end."""
        if seq.leg is Leg.PREFILL:
            self._connector.finish(seq)
            seq.held = self._storage is None
        seq.end(Finish.LENGTH if seq.produced >= seq.max_tokens else Finish.STOP)
        self._station.timings.finished(seq, self._station.now())

    def _account_departure(self, seq: Sequence) -> None:
        if seq.left_at is None or seq.finish is not None:
            return
        self._counts.aborted += 1
        if seq.leg is Leg.PREFILL:
            self._counts.prefills_aborted += 1
        seconds = self._station.now() - seq.left_at
        self._counts.longest_orphan_seconds = max(self._counts.longest_orphan_seconds, seconds)

    def _factor(self, seq: Sequence) -> float:
        jitter = self._settings.jitter
        return seq.slowness * (self._rng.uniform(1 - jitter, 1 + jitter) if jitter else 1.0)

    async def _until(self, due: float) -> None:
        await asyncio.sleep(max(0.0, due - self._station.now()))
