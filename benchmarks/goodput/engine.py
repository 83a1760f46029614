"""One simulated engine in a simulation of discrete events: the scheduler and the prefix cache of `pdx_sim.core`.

An engine passes one step at a time, or all steps until something changes. What comes meanwhile waits for the end of the
step that is under way, as in vLLM.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pdx_api.names import Role
from pdx_sim.core.links import Link
from pdx_sim.core.prefix_cache import PrefixCache
from pdx_sim.core.scheduler import Limits, Scheduler, Step, StepCost, Work
from pdx_sim.profiles import Profile
from pdx_sim.settings import SimSettings

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class EngineModel:
    """What all engines of a simulation have in common."""

    cost: StepCost
    limits: Limits
    blocks: int
    """KV blocks."""
    kv_bytes_per_token: int
    gigabytes_per_second: float
    """Of the engine's link, which all its transfers of KV share; 0: transfers take no time."""

    @classmethod
    def of(cls, profile: Profile, **changes: float) -> "EngineModel":
        """The model of a profile; `changes` are settings of `pdx sim` that differ from it."""
        return cls.from_settings(profile.apply(SimSettings()), changes)

    @classmethod
    def from_settings(cls, settings: SimSettings, changes: Mapping[str, float] | None = None) -> "EngineModel":
        """The model of the settings of `pdx sim`."""
        found = {name: (changes or {}).get(name, getattr(settings, name)) for name in _SETTINGS}
        tokens = int(found["max_num_batched_tokens"])
        threshold, block = int(found["long_prefill_token_threshold"]), int(found["block_size"])
        interval = int(found["prefill_schedule_interval"])
        return cls(
            StepCost(found["step_seconds"], found["step_sequence_seconds"], found["step_token_seconds"]),
            Limits(min(int(found["max_running"]), tokens), tokens, threshold, block, interval),
            int(found["num_blocks"]),
            int(found["kv_bytes_per_token"]),
            found["engine_gigabytes_per_second"],
        )

    @property
    def tokens(self) -> int:
        """Tokens of KV that an engine has room for."""
        return self.blocks * self.limits.block_size


_SETTINGS = (
    *("step_seconds", "step_sequence_seconds", "step_token_seconds", "max_running", "max_num_batched_tokens"),
    *("long_prefill_token_threshold", "prefill_schedule_interval", "block_size", "num_blocks", "kv_bytes_per_token"),
    "engine_gigabytes_per_second",
)


@dataclass(frozen=True, slots=True)
class Progress:
    """What the steps that have just passed have produced."""

    first: tuple[tuple[Work, float], ...]
    """Sequences that have generated their first token, and when."""
    done: tuple[Work, ...]


class Engine:
    """One engine. The caller passes the time and delivers what `plan` and `interrupt` announce."""

    __slots__ = (
        "_began",
        "_block_size",
        "_step",
        "_times",
        "completed",
        "ends",
        "index",
        "latency",
        "link",
        "pool",
        "role",
        "scheduler",
    )

    def __init__(self, index: int, role: Role, model: EngineModel) -> None:
        self.index = index
        self.role = role
        self.pool = PrefixCache(model.blocks, model.limits.block_size)
        self._block_size = model.limits.block_size
        self.scheduler = Scheduler(model.limits, model.cost, self.pool)
        self.link = Link(model.gigabytes_per_second) if model.gigabytes_per_second else None
        self.ends = math.inf
        """When the steps under way end; infinite while nothing runs."""
        self.completed = 0
        """Requests that have ended."""
        self.latency = 0.0
        """The sum of their durations."""
        self._step: Step | None = None
        self._began = 0.0
        self._times = 0

    @property
    def running(self) -> int:
        """Sequences that compute (vllm:num_requests_running)."""
        return len(self.scheduler.running)

    @property
    def waiting(self) -> int:
        """Sequences that wait, also for their KV (vllm:num_requests_waiting)."""
        return self.scheduler.queued

    @property
    def kv_use(self) -> float:
        """Share of the KV blocks in use (vllm:kv_cache_usage_perc)."""
        return self.pool.held / self.pool.size

    def plan(self, now: float) -> list[Work]:
        """Begin the next steps if none is under way; return the sequences whose KV must be loaded from now on."""
        begun, self._step = self.scheduler.schedule()
        if self._step is None:
            self.ends = math.inf
        else:
            self._began, self._times = now, self.scheduler.repeats(self._step)
            self.ends = now + self._step.seconds * self._times
        return begun

    def interrupt(self, now: float) -> None:
        """Something has come: end with the step that is under way, not with the last one that was planned."""
        if self._step is None or self._times == 1:
            return
        passed = math.ceil((now - self._began) / self._step.seconds - _ROUNDING)
        self._times = min(self._times, max(1, passed))
        self.ends = self._began + self._step.seconds * self._times

    @property
    def tokens(self) -> int:
        """Tokens of KV that it has room for (vllm:cache_config_info)."""
        return self.pool.size * self._block_size

    def produced(self, work: Work, now: float) -> int:
        """Tokens that a sequence has generated by now, those of the steps under way included."""
        step = self._step
        if step is None or self._times == 1 or work not in step.decodes:
            return work.produced
        passed = int((now - self._began) / step.seconds + _ROUNDING)
        return work.produced + min(passed, self._times - 1)

    @property
    def idle(self) -> bool:
        """Whether no step is under way."""
        return self._step is None

    def finish(self) -> Progress:
        """Account for the steps that end now."""
        step, times = self._step, self._times
        assert step is not None
        self._step = None
        after_one = self._began + step.seconds
        new = {work for work in step.decodes if not work.produced}
        new.update(work for work, _ in step.prefills if not work.produced)
        produced = self.scheduler.complete(step, times)
        first = tuple((work, after_one) for work in produced if work in new)
        return Progress(first, tuple(work for work in produced if work.is_done))
