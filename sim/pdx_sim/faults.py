"""The faults that an engine can simulate, and the choice of the fault that strikes a request."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from pdx_sim.core.sequence import Leg


class FaultKind(StrEnum):
    """A kind of fault."""

    REFUSE = "refuse"
    """The HTTP port refuses connections for `seconds`; strikes when set, not by request."""
    STATUS = "status"
    """Answers `status` at once, without work. On a 4xx or 503 D notifies P, as it does when validation refuses."""
    HANG_BEFORE_HEAD = "hang_before_head"
    """Reads the request and sends nothing for `seconds`, without work."""
    HANG_AFTER_HEAD = "hang_after_head"
    """Sends the head, works, and then sends nothing for `seconds`."""
    DIE_BEFORE_HEAD = "die_before_head"
    """Closes the connection instead of answering, without work."""
    LOSE_ANSWER = "lose_answer"
    """Works to the end, then closes the connection instead of sending an answer that is not streamed."""
    DIE_AFTER_HEAD = "die_after_head"
    """Closes after the head; in the middle of the body if the answer is not streamed."""
    DIE_AFTER_EVENTS = "die_after_events"
    """Closes a stream after `events` events."""
    DIE_IN_EVENT = "die_in_event"
    """Closes a stream in the middle of the event that follows `events` whole ones."""
    GARBAGE_BYTES = "garbage_bytes"
    """Answers bytes that are no HTTP and closes."""
    GARBAGE_JSON = "garbage_json"
    """Works, then answers 200 with a body that is no JSON; in a stream, the event after `events` is no JSON."""
    NO_PARAMS = "no_params"
    """P finishes and pins its blocks, but answers kv_transfer_params null."""
    ERROR_EVENT = "error_event"
    """A stream's next event after `events` is an error, then [DONE]; an answer that is not streamed is a 500."""
    ABORT = "abort"
    """Answers 200 with finish_reason abort and no text, without work, as vLLM does while it shuts down."""
    HANG_CORE = "hang_core"
    """The engine core hangs for `seconds`, while HTTP answers: /health is 200, nothing progresses, and the metrics stay
    as they are. Strikes when set, not by request."""
    BLOCK_TRANSFER = "block_transfer"
    """For `seconds`, the engine reaches neither the side channel of another engine nor the shared storage, as behind a
    firewall, so it moves no KV. Strikes when set, not by request."""
    DROP_TRANSFER = "drop_transfer"
    """The same, as behind a firewall that drops packets of working connections: a transfer between engines that have
    exchanged KV neither fails nor ends until then. Strikes when set, not by request."""
    SCALING = "scaling"
    """Answers 503 to whatever comes but /health, as vLLM while data-parallel ranks are added. Strikes when set, until
    faults are cleared."""
    RETIRED = "retired"
    """The same, as a rank that was removed (vLLM 0.33). Strikes when set, until faults are cleared."""
    LONG_PREFILL = "long_prefill"
    """The prefill of the request takes `seconds`, whatever its length."""
    SLOW = "slow"
    """Every simulated time of the request is multiplied by `factor`."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. It strikes the next `count` requests of `leg`, each with `probability`."""

    kind: FaultKind
    count: int | None = 1
    """How often it strikes; None: for ever."""
    probability: float = 1.0
    leg: Leg | None = None
    """Only requests of this leg; None: all."""
    status: int = 500
    """For STATUS."""
    retry_after: int = 0
    """For STATUS: the seconds of its Retry-After header; 0: it has none."""
    seconds: float = 3600.0
    """For REFUSE, LONG_PREFILL, the TRANSFER and the HANG kinds."""
    error: bytes = b""
    """For ERROR_EVENT: an error of the client, which a stream sends without any work; other answers are then as usual.
    Empty: the engine's own error."""
    events: int = 0
    """Events that are sent first, for the kinds that name them."""
    factor: float = 10.0
    """For SLOW."""


class Faults:
    """The faults of one engine. The first that matches a request strikes it."""

    __slots__ = ("_active", "_at_once", "_rng")

    def __init__(self, rng: random.Random, at_once: Mapping[FaultKind, Callable[[float], None]] | None = None) -> None:
        self._rng = rng
        self._at_once = at_once or {}
        """What strikes when it is set: called with its seconds; with 0 it ends."""
        self._active: list[Fault] = []

    @property
    def active(self) -> tuple[Fault, ...]:
        """The faults that may still strike."""
        return tuple(self._active)

    def add(self, kind: FaultKind, **fields: Any) -> Fault:
        """Add a fault with these fields of `Fault`."""
        fault = Fault(kind, **fields)
        self.put(fault)
        return fault

    def put(self, fault: Fault) -> None:
        """Add a fault."""
        if fault.kind in self._at_once:
            self._at_once[fault.kind](fault.seconds)
        else:
            self._active.append(fault)

    def clear(self) -> None:
        """Remove every fault; what struck when it was set ends: a closed port opens, a core that hangs resumes."""
        self._active.clear()
        for strike in self._at_once.values():
            strike(0.0)

    def take(self, leg: Leg) -> Fault | None:
        """The fault that strikes a request of this leg, if any. A fault that has struck `count` times is removed."""
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
    """A fault from JSON; KeyError, TypeError or ValueError if it is none."""
    values = dict(fields)
    kind = FaultKind(values.pop("kind"))
    if values.get("leg") is not None:
        values["leg"] = Leg(values["leg"])
    return Fault(kind, **values)
