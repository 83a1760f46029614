"""Faults that an engine can be told to have, and which of them strikes a request."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from pdx_sim.core.sequence import Leg


class FaultKind(StrEnum):
    """What goes wrong."""

    REFUSE = "refuse"
    """The HTTP port refuses connections for `seconds`; strikes when set, not by request."""
    STATUS = "status"
    """Answers `status` at once, without work; D tells P of a 4xx or 503 as it does when it refuses by itself."""
    HANG_BEFORE_HEAD = "hang_before_head"
    """Reads the request and says nothing for `seconds`, without work."""
    HANG_AFTER_HEAD = "hang_after_head"
    """Sends the head, works, and then says nothing for `seconds`."""
    DIE_BEFORE_HEAD = "die_before_head"
    """Closes the connection in place of an answer, without work."""
    LOSE_ANSWER = "lose_answer"
    """Works to the end, then closes the connection in place of an answer that is not streamed."""
    DIE_AFTER_HEAD = "die_after_head"
    """Closes after the head (of an answer that is not streamed: amid the body)."""
    DIE_AFTER_EVENTS = "die_after_events"
    """Closes a stream after `events` events."""
    DIE_IN_EVENT = "die_in_event"
    """Closes a stream in the middle of the event that follows `events` whole ones."""
    GARBAGE_BYTES = "garbage_bytes"
    """Answers bytes that are no HTTP and closes."""
    GARBAGE_JSON = "garbage_json"
    """Works, then answers 200 with a body that is no JSON; in a stream, the event after `events` is no JSON."""
    NO_PARAMS = "no_params"
    """P finishes and keeps its blocks, but answers kv_transfer_params null."""
    ERROR_EVENT = "error_event"
    """A stream's next event after `events` is an error, then [DONE]; an answer that is not streamed is a 500."""
    ABORT = "abort"
    """200 with finish_reason abort and no text, without work: what vLLM answers while it shuts down."""
    SLOW = "slow"
    """Every simulated time of the request is multiplied by `factor`."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, and whom it strikes: the next `count` requests of `leg`, each with `probability`."""

    kind: FaultKind
    count: int | None = 1
    """Times it strikes; None for ever."""
    probability: float = 1.0
    leg: Leg | None = None
    """Only requests of this leg; None for all."""
    status: int = 500
    """For STATUS."""
    seconds: float = 3600.0
    """For REFUSE and the HANG kinds."""
    events: int = 0
    """For the kinds that let events through first."""
    factor: float = 10.0
    """For SLOW."""


class Faults:
    """The faults of one engine; the first that fits a request strikes it."""

    __slots__ = ("_active", "_on_refuse", "_rng")

    def __init__(self, rng: random.Random, on_refuse: Callable[[float], None] = lambda _seconds: None) -> None:
        self._rng = rng
        self._on_refuse = on_refuse
        self._active: list[Fault] = []

    @property
    def active(self) -> tuple[Fault, ...]:
        """What may still strike."""
        return tuple(self._active)

    def add(self, kind: FaultKind, **fields: Any) -> Fault:
        """Add a fault; `fields` are those of `Fault`."""
        fault = Fault(kind, **fields)
        self.put(fault)
        return fault

    def put(self, fault: Fault) -> None:
        """Add a fault made elsewhere."""
        if fault.kind is FaultKind.REFUSE:
            self._on_refuse(fault.seconds)
        else:
            self._active.append(fault)

    def clear(self) -> None:
        """Take every fault away; a port that refuses connections opens again."""
        self._active.clear()
        self._on_refuse(0.0)

    def take(self, leg: Leg) -> Fault | None:
        """The fault that strikes a request of this leg, if any; what has struck often enough is gone."""
        for index, fault in enumerate(self._active):
            if fault.leg not in (None, leg) or self._rng.random() >= fault.probability:
                continue
            if fault.count is not None:
                if fault.count > 1:
                    self._active[index] = replace(fault, count=fault.count - 1)
                else:
                    del self._active[index]
            return fault
        return None


def fault_of(fields: Mapping[str, Any]) -> Fault:
    """A fault from JSON; ValueError or TypeError when it is none."""
    known = dict(fields)
    kind = FaultKind(known.pop("kind"))
    if known.get("leg") is not None:
        known["leg"] = Leg(known["leg"])
    return Fault(kind, **known)
