"""vLLM's scheduler as a pure function of its queues: which sequence computes how many tokens in the next step.

A step takes base + per_sequence * running sequences + per_token * prefill tokens, so a prefill slows every decode of
its step. As in vLLM 0.32 (v1/core/sched/scheduler.py, `schedule`):

* Running sequences go first, in the order of their admission; what is left of max_num_batched_tokens goes to the queue.
* A prefill computes at most long_prefill_token_threshold tokens in a step, unless it is the only request.
* A sequence is admitted if fewer than max_num_seqs run and its whole prompt fits into the free blocks (a sequence
  that loads KV holds its blocks meanwhile and does not run). The queue is first come, first served: if its head does
  not fit, all wait. Sequences that hold blocks go before the others.
* If a decode needs a block and none is free, the sequence that was admitted last is preempted: it frees its blocks and
  computes its prompt and its answer again. Nobody is admitted in that step.

* With a prefix cache, the longest prefix of a prompt whose KV is there is not computed again.
* With prefill_schedule_interval N, only every Nth step computes prompts while a sequence decodes, unless the last of
  these steps left sequences in the queue.

Simplification: a sequence takes the blocks of its whole prompt when it is admitted, not chunk by chunk.
"""

from collections import deque
from dataclasses import dataclass, field

from pdx_sim.core.blocks import BlockPool, Prefix, blocks_for


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds that a step takes."""

    base: float
    per_sequence: float
    """For each running sequence of the step."""
    per_token: float
    """For each prompt token that the step computes."""

    def seconds(self, sequences: float, prefill_tokens: float) -> float:
        """Of a step with this much work."""
        return self.base + self.per_sequence * sequences + self.per_token * prefill_tokens


@dataclass(frozen=True, slots=True)
class Limits:
    """vLLM's limits of one step."""

    max_num_seqs: int
    max_num_batched_tokens: int
    long_prefill_token_threshold: int
    """0: none."""
    block_size: int
    prefill_schedule_interval: int = 1
    """1: prompts in every step."""


@dataclass(slots=True, eq=False)
class Work:
    """One sequence as the scheduler sees it. The scheduler owns and changes it."""

    owner: str
    """Who holds its blocks."""
    prompt: int
    """Tokens that need blocks."""
    output: int
    """Tokens to generate."""
    loads: bool = False
    """Whether its KV may come from elsewhere."""
    prefill: int = 0
    """Prompt tokens to compute; `prompt`, unless the prefill is made longer or shorter."""
    slowness: float = 1.0
    """Factor on the cost of its decodes."""
    computed: int = 0
    """Prompt tokens that were computed."""
    produced: int = 0
    """Tokens that were generated."""
    prefix: Prefix = ()
    """What a prefix cache may have of the prompt."""
    cached: int = 0
    """Prompt tokens that the prefix cache had at its last admission."""
    room: int = 0
    """Tokens that its blocks have room for."""

    def __post_init__(self) -> None:
        self.prefill = self.prefill or self.prompt

    def skip(self, tokens: int) -> None:
        """Count this many prompt tokens as computed; of a whole prompt, the last token is computed again."""
        self.computed = min(self.prefill * min(tokens, self.prompt - 1) // self.prompt, self.prefill - 1)

    @property
    def decodes(self) -> bool:
        """Whether all that is left is one token in each step."""
        return self.computed >= self.prefill

    @property
    def is_done(self) -> bool:
        """Whether it has generated its last token."""
        return self.produced >= self.output


@dataclass(frozen=True, slots=True)
class Step:
    """One step: what it computes and how long it takes."""

    seconds: float
    prefills: tuple[tuple[Work, int], ...]
    """Sequences that prefill, with their tokens of this step."""
    decodes: tuple[Work, ...]


@dataclass(slots=True)
class _Plan:
    """A step under construction."""

    budget: int
    threshold: int
    defers: bool
    """Whether it computes no prompt."""
    prefills: list[tuple[Work, int]] = field(default_factory=list)
    decodes: list[Work] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether nothing computes."""
        return not self.prefills and not self.decodes

    def add(self, work: Work) -> None:
        """As many tokens of a sequence as the step has room for."""
        if work.decodes:
            self.decodes.append(work)
            self.budget -= 1
            return
        tokens = work.prefill - work.computed
        tokens = min(tokens, self.threshold or tokens, self.budget)
        self.prefills.append((work, tokens))
        self.budget -= tokens


class Scheduler:
    """The queues of one engine. Invariant: a sequence is in at most one of waiting, holding, loading and running."""

    def __init__(self, limits: Limits, cost: StepCost, pool: BlockPool) -> None:
        self._limits = limits
        self._cost = cost
        self._pool = pool
        self.waiting: deque[Work] = deque()
        """Holds no blocks."""
        self.holding: deque[Work] = deque()
        """Holds its blocks and waits for its turn: its KV has arrived or is not to be had."""
        self.loading: list[Work] = []
        """Holds its blocks while its KV is loaded."""
        self.running: list[Work] = []
        self.preemptions = 0
        self._steps = 0
        """Since the engine was idle."""
        self._is_full = False
        """Whether the last step with prompts left sequences in the queue."""

    @property
    def deferred(self) -> int:
        """Sequences that wait for KV."""
        return len(self.loading)

    @property
    def queued(self) -> int:
        """Sequences that do not run."""
        return len(self.waiting) + len(self.holding) + len(self.loading)

    def add(self, work: Work) -> None:
        """Put a new sequence into the queue."""
        self.waiting.append(work)

    def loaded(self, work: Work, cached: int) -> None:
        """KV of this many prompt tokens has arrived; of a whole prompt, the last token is computed again."""
        self.loading.remove(work)
        work.skip(cached)
        self._pool.fill(work.owner, cached)
        if cached >= work.prompt:
            work.computed = work.prefill  # one token: as cheap as a decode
        work.loads = False
        self.holding.append(work)

    def remove(self, work: Work) -> None:
        """Forget a sequence, wherever it is. Its blocks are its owner's."""
        for queue in (self.waiting, self.holding, self.loading, self.running):
            if work in queue:
                queue.remove(work)

    def schedule(self) -> tuple[list[Work], Step | None]:
        """The sequences whose load begins, and the next step; None if nothing can run."""
        plan = _Plan(self._limits.max_num_batched_tokens, self._threshold(), self._defers())
        preempted = self._schedule_running(plan)
        begun = [] if preempted and not plan.is_empty else self._admit(plan)
        if not plan.defers:
            self._is_full = len(self.waiting) + len(self.holding) > 0
        if plan.is_empty and plan.defers:  # the last sequence that decoded was preempted
            others, step = self.schedule()
            return begun + others, step
        if plan.is_empty:
            return begun, None
        sequences = len(plan.prefills) + sum(work.slowness for work in plan.decodes)
        seconds = self._cost.seconds(sequences, sum(tokens for _, tokens in plan.prefills))
        return begun, Step(seconds, tuple(plan.prefills), tuple(plan.decodes))

    def repeats(self, step: Step) -> int:
        """Return how often a step passes unchanged, if no sequence comes, is loaded or is removed meanwhile.

        A simulation of discrete events passes so many steps at once.
        """
        if step.prefills or not step.decodes:
            return 1
        steps = min(work.output - work.produced for work in step.decodes)
        if self._prompts_wait:
            interval = self._limits.prefill_schedule_interval
            steps = min(steps, interval - self._steps % interval)
        room = self._pool.free_blocks // len(step.decodes) * self._limits.block_size
        return max(1, min(steps, room))

    def complete(self, step: Step, times: int = 1) -> list[Work]:
        """Account for a step that has passed; return the sequences that have generated a token.

        Sequences that were removed meanwhile are skipped. `times`: the step has passed so often, at most `repeats`.
        """
        self._steps += times
        running = set(self.running)
        for work, tokens in step.prefills:
            work.computed += tokens
            self._pool.fill(work.owner, work.computed * work.prompt // work.prefill)
        computed = (*(work for work, _ in step.prefills), *step.decodes)
        produced = [work for work in computed if work.decodes and work in running]
        for work in produced:
            work.produced += times
        self.running = [work for work in self.running if not work.is_done]
        if not self.running and not self.queued:
            self._steps, self._is_full = 0, False
        return produced

    @property
    def _prompts_wait(self) -> bool:
        return bool(self.waiting or self.holding) or not all(work.decodes for work in self.running)

    def _defers(self) -> bool:
        """Whether the next step computes no prompt (vLLM's `defer_prefills`)."""
        is_due = self._steps % self._limits.prefill_schedule_interval == 0
        return not is_due and not self._is_full and any(work.decodes for work in self.running)

    def _threshold(self) -> int:
        others = len(self.running) + self.queued - 1
        return self._limits.long_prefill_token_threshold if others > 0 else 0

    def _schedule_running(self, plan: _Plan) -> bool:
        """The running sequences' tokens. Whether one was preempted."""
        preempted = False
        index = 0
        while index < len(self.running) and plan.budget > 0:
            work = self.running[index]
            if plan.defers and not work.decodes:
                index += 1
                continue
            while not self._has_room(work):
                victim = self.running.pop()
                self._preempt(victim)
                preempted = True
                if victim is work:
                    return True
            plan.add(work)
            index += 1
        return preempted

    def _has_room(self, work: Work) -> bool:
        """Whether a decode has a block for its next token, which it takes if one is free."""
        tokens = work.prompt + work.produced + 1
        if tokens <= work.room or not work.decodes:
            return True
        blocks = blocks_for(tokens, self._limits.block_size)
        needed = blocks - self._pool.of(work.owner)
        if needed > 0 and not self._pool.take(work.owner, needed):
            return False
        work.room = blocks * self._limits.block_size
        return True

    def _preempt(self, work: Work) -> None:
        self._pool.free(work.owner)
        work.computed = work.room = 0
        work.prefill = work.prompt + work.produced
        work.loads = False
        self.preemptions += 1
        self.waiting.appendleft(work)

    def _admit(self, plan: _Plan) -> list[Work]:
        begun: list[Work] = []
        while plan.budget > 0 and len(self.running) < self._limits.max_num_seqs:
            queue = self.holding or self.waiting
            if not queue:
                break
            work = queue[0]
            if plan.defers and not (work.loads or work.decodes):
                break
            if queue is self.waiting and not self._take_prompt(work):
                break
            queue.popleft()
            if work.loads:
                self.loading.append(work)
                begun.append(work)
                continue
            self.running.append(work)
            plan.add(work)
        return begun

    def _take_prompt(self, work: Work) -> bool:
        needed = blocks_for(work.prompt + work.produced, self._limits.block_size)
        cached = self._pool.take_prompt(work.owner, needed, work.prefix)
        if cached is None:
            return False
        work.cached = cached
        if cached:
            work.skip(cached)
        return True
