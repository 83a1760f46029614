"""The engine core: the life of a sequence from its arrival to its end. One task for each sequence.

Invariant: when a sequence's task has ended, its blocks are free, pinned under a lease, or stranded in a push.
"""

import asyncio
import random

from pdx_sim.core.connector import KVMover, LoadError, MissError, StrandedError
from pdx_sim.core.counters import Violation
from pdx_sim.core.execution import DisconnectedError, Execution, SimpleExecution
from pdx_sim.core.sequence import Finish, Leg, PauseMode, Sequence
from pdx_sim.core.state import EngineState
from pdx_sim.core.step_loop import StepLoop
from pdx_sim.core.tasks import Tasks
from pdx_sim.settings import OnLoadFailure


class Core:
    """Runs sequences."""

    def __init__(self, state: EngineState, connector: KVMover, rng: random.Random) -> None:
        self._state = state
        self._settings = state.settings
        self._counts = state.counts
        self._connector = connector
        self._live: set[Sequence] = set()
        self._tasks = Tasks()
        self._awake = asyncio.Event()
        self._awake.set()
        self.paused: PauseMode | None = None
        self._admits = asyncio.Event()
        self._admits.set()
        self._execution = self._choose_execution(rng)
        state.on_change = self.wake

    def _choose_execution(self, rng: random.Random) -> Execution:
        shared = (self._state, self._connector, rng, self._produce, self._awake)
        return StepLoop(*shared, self._tasks) if self._settings.step_seconds else SimpleExecution(*shared)

    @property
    def live(self) -> int:
        """Sequences that have not ended."""
        return len(self._live)

    def start(self, seq: Sequence) -> None:
        """Begin a sequence."""
        self._live.add(seq)
        seq.received_at = self._state.now()
        seq.task = self._tasks.start(self._run(seq))
        assert seq.task is not None
        seq.task.add_done_callback(lambda _task: self._end(seq))  # also when cancelled before its first step

    def disconnect(self, seq: Sequence) -> None:
        """The client has disconnected: a sequence that waits stops at once, one that runs at its next step.

        While the core hangs, nothing stops.
        """
        if seq.finish is None and seq.disconnected_at is None:
            seq.disconnected_at = self._state.now()
            self._stop_if_waiting(seq)

    def _stop_if_waiting(self, seq: Sequence) -> None:
        if seq.waits and seq.task is not None and seq.disconnected_at is not None and self._awake.is_set():
            seq.task.cancel()

    @property
    def computes(self) -> bool:
        """Whether sequences run."""
        return self._counts.running_now > 0

    @property
    def hangs(self) -> bool:
        """Whether the core hangs."""
        return not self._awake.is_set()

    def hang(self) -> None:
        """Nothing progresses until `resume`: no step ends, nothing is admitted or stopped."""
        self._awake.clear()

    def resume(self) -> None:
        """End a hang."""
        self._awake.set()
        for seq in tuple(self._live):
            self._stop_if_waiting(seq)
        self.wake()

    def pause(self, mode: PauseMode) -> None:
        """Admit no further sequence until `unpause`: they wait. The mode says what becomes of the others."""
        self.paused = mode
        self._admits.clear()
        if mode is PauseMode.ABORT:
            self.end_all(Finish.ABORT)
        elif mode is PauseMode.KEEP:
            self.hang()

    def unpause(self) -> None:
        """Go on, with the sequences that have waited first."""
        self.paused = None
        self._admits.set()
        self.resume()

    def end_all(self, finish: Finish) -> None:
        """End everything: with `abort` as vLLM does when it shuts down, with `error` as a dead EngineCore does."""
        for seq in tuple(self._live):
            seq.end(finish)
            if seq.task is not None:
                seq.task.cancel()

    def wake(self) -> None:
        """Blocks or places have become free, or are taken: let the next sequences in, and update the gauges."""
        self._execution.wake()
        self._state.count_blocks()

    async def close(self) -> None:
        """Cancel every sequence without notifying peers."""
        await self._tasks.close()

    async def _run(self, seq: Sequence) -> None:
        try:
            await self._awake.wait()
            self._connector.received(seq)
            if self.paused is not None:
                await self._wait_for_queue()
            await self._execution.admit(seq)
            await self._fill(seq)
            await self._execution.compute(seq)
            self._conclude(seq)
        except StrandedError:
            seq.held = True
        except LoadError:
            seq.end(Finish.ERROR)
        except DisconnectedError:
            pass

    async def _wait_for_queue(self) -> None:
        self._counts.held_back_now += 1
        try:
            await self._admits.wait()
        finally:
            self._counts.held_back_now -= 1

    def _end(self, seq: Sequence) -> None:
        self._live.discard(seq)
        self._connector.ended(seq)
        if not seq.held:
            self._state.pool.free(seq.internal_id)
            if seq.leg is Leg.PREFILL:
                self._connector.dropped(seq)
        self._execution.ended(seq)
        self._count_disconnected(seq)
        seq.end(Finish.ABORT)
        if seq.finish is not None:
            self._counts.finished[seq.finish.value] += 1
        self.wake()

    async def _fill(self, seq: Sequence) -> None:
        """Load KV. If that fails, the prompt is computed here afterwards, or the request fails."""
        if self._settings.connected:
            self._counts.prompt_tokens_queried += len(seq.prompt)
        if seq.leg is not Leg.DECODE and not self._connector.finds_by_prompt:
            return
        own = seq.digest
        self._counts.loading_now += 1
        seq.load_begun = True
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
        await self._awake.wait()
        seq.cached = seq.cached or len(seq.prompt)
        self._counts.prompt_tokens_external += max(0, seq.cached - seq.found)
        self._counts.prompt_tokens_local += len(seq.prompt) - max(seq.cached, seq.found)
        if seq.digest != own and seq.max_tokens > 1:
            self._counts.violate(Violation.FOREIGN_KV)

    def _produce(self, seq: Sequence) -> None:
        seq.produced += 1
        self._counts.generation_tokens += 1
        self._state.timings.token(seq, self._state.now())
        seq.changed.set()

    def _conclude(self, seq: Sequence) -> None:
        """End a sequence that has generated its last token."""
        if seq.leg is Leg.PREFILL:
            seq.held = self._connector.finish(seq)
        seq.end(Finish.STOP if seq.stopped else Finish.LENGTH)
        self._state.timings.finished(seq, self._state.now())

    def _count_disconnected(self, seq: Sequence) -> None:
        if seq.disconnected_at is None or seq.finish is not None:
            return
        self._counts.aborted += 1
        if seq.leg is Leg.PREFILL:
            self._counts.prefills_aborted += 1
        seconds = self._state.now() - seq.disconnected_at
        self._counts.longest_orphan_seconds = max(self._counts.longest_orphan_seconds, seconds)
