"""The step loop: all sequences of the engine compute in common steps, as `core.scheduler` plans them."""

import asyncio
import random
from collections.abc import Callable

from pdx_api.vllm.versions import abilities, minor
from pdx_sim.core.connector import KVMover
from pdx_sim.core.scheduler import Limits, Scheduler, Step, StepCost, Work
from pdx_sim.core.sequence import Leg, Sequence
from pdx_sim.core.state import EngineState
from pdx_sim.core.tasks import Tasks
from pdx_sim.core.tokens import prefix_of


class _Entry:
    """A sequence in the loop."""

    __slots__ = ("admitted", "done", "seq", "work")

    def __init__(self, seq: Sequence, work: Work) -> None:
        self.seq = seq
        self.work = work
        self.admitted = asyncio.Event()
        self.done = asyncio.Event()


class StepLoop:
    """Runs the scheduler: plan a step, let its time pass, hand out its tokens."""

    def __init__(
        self,
        state: EngineState,
        connector: KVMover,
        rng: random.Random,
        produce: Callable[[Sequence], None],
        awake: asyncio.Event,
        tasks: Tasks,
    ) -> None:
        settings = state.settings
        self._state = state
        self._connector = connector
        self._rng = rng
        self._produce = produce
        self._awake = awake
        self._tasks = tasks
        self._cost = StepCost(settings.step_seconds, settings.step_sequence_seconds, settings.step_token_seconds)
        limits = Limits(
            min(settings.max_running, settings.max_num_batched_tokens),
            settings.max_num_batched_tokens,
            settings.long_prefill_token_threshold,
            settings.block_size,
            settings.prefill_schedule_interval if abilities(minor(settings.version)).spaces_prompts else 1,
        )
        self._scheduler = Scheduler(limits, self._cost, state.pool)
        self._entries: dict[str, _Entry] = {}
        self._changed = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None

    def wake(self) -> None:
        """Plan again."""
        self._changed.set()

    async def admit(self, seq: Sequence) -> None:
        """Put the sequence into the queue. If it loads KV, return when it holds its blocks."""
        entry = _Entry(seq, self._work(seq))
        self._entries[seq.internal_id] = entry
        self._scheduler.add(entry.work)
        self._count()
        if self._loop is None:
            self._loop = self._tasks.start(self._run())
        self._changed.set()
        if entry.work.loads:
            await entry.admitted.wait()

    def _work(self, seq: Sequence) -> Work:
        settings = self._state.settings
        prefill = len(seq.prompt) * seq.slowness
        if seq.prefill_seconds and self._cost.per_token:
            prefill = seq.prefill_seconds * seq.slowness / self._cost.per_token
        return Work(
            seq.internal_id,
            len(seq.prompt),
            seq.last_token,
            loads=seq.leg is Leg.DECODE or self._connector.finds_by_prompt,
            prefill=max(1, round(prefill)),
            slowness=seq.slowness,
            prefix=prefix_of(seq.prompt, settings.block_size) if settings.enable_prefix_caching else (),
        )

    async def compute(self, seq: Sequence) -> None:
        """Wait until the steps have generated all tokens."""
        entry = self._entries[seq.internal_id]
        if entry.work in self._scheduler.loading:
            self._scheduler.loaded(entry.work, seq.cached)
            self._changed.set()
        await entry.done.wait()

    def ended(self, seq: Sequence) -> None:
        """Forget the sequence."""
        entry = self._entries.pop(seq.internal_id, None)
        if entry is not None:
            self._scheduler.remove(entry.work)
            self._count()

    async def _run(self) -> None:
        while True:
            await self._awake.wait()
            self._changed.clear()
            begun, step = self._scheduler.schedule()
            for work in begun:
                entry = self._entries[work.owner]
                entry.seq.found = work.cached
                entry.admitted.set()
            self._begin(step)
            if step is None:
                await self._changed.wait()
                continue
            jitter = self._state.settings.jitter
            await asyncio.sleep(step.seconds * (self._rng.uniform(1 - jitter, 1 + jitter) if jitter else 1.0))
            await self._awake.wait()
            await self._finish(step)

    def _begin(self, step: Step | None) -> None:
        now = self._state.now()
        running = set(self._scheduler.running)
        for entry in self._entries.values():
            entry.seq.waits = entry.work not in running
        for work in (*(work for work, _ in step.prefills), *step.decodes) if step else ():
            seq = self._entries[work.owner].seq
            if not seq.begun_at:
                seq.begun_at, seq.found = now, work.cached
        self._count()

    async def _finish(self, step: Step) -> None:
        for work, tokens in step.prefills:
            self._account_prefill(work, tokens)
        for work in self._scheduler.complete(step):
            entry = self._entries.get(work.owner)
            if entry is not None:
                await self._hand_out(entry)
        self._count()

    async def _hand_out(self, entry: _Entry) -> None:
        """One token of a sequence. A client that disconnects while KV is saved stops nothing."""
        seq = entry.seq
        if not seq.produced:
            self._state.counts.prompt_tokens_found += seq.found
            if not seq.cached:
                await self._connector.save(seq)
        if seq.finish is not None:
            return
        self._produce(seq)
        if entry.work.is_done:
            entry.done.set()
        elif seq.disconnected_at is not None:
            self._state.counts.orphan_tokens += 1
            self._stop(entry)

    def _account_prefill(self, work: Work, tokens: int) -> None:
        entry = self._entries.get(work.owner)
        if entry is None:
            return
        begin, end = (work.prompt * computed // work.prefill for computed in (work.computed, work.computed + tokens))
        own = end - begin
        self._state.counts.prompt_tokens_local += own
        if entry.seq.disconnected_at is not None:
            self._state.counts.orphan_prefill_tokens += own
            self._stop(entry)

    def _stop(self, entry: _Entry) -> None:
        self._scheduler.remove(entry.work)
        if entry.seq.task is not None:
            entry.seq.task.cancel()

    def _count(self) -> None:
        counts, scheduler = self._state.counts, self._scheduler
        counts.running_now = len(scheduler.running)
        counts.waiting_now = scheduler.queued
        counts.preemptions = scheduler.preemptions
        self._state.count_blocks()
