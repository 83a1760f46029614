"""The faults that the rows of engines.txt and mooncake.txt are named after, and how such a row goes on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pdx_api.names import Role
from pdx_sim import FaultKind as K
from tests.failure_matrix.row import Phase, Strike


@dataclass(frozen=True, slots=True)
class Fault:
    """One way in which an engine fails. Without a kind there is no engine that could fail."""

    text: str
    kind: K | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    used: bool = False
    """Whether it hits a connection that was used before."""


_EVENTS: Final = {"events": 3}
_ANYWHERE: Final = {
    "500": Fault("answers 500", K.STATUS, {"status": 500}),
    "503": Fault("answers 503", K.STATUS, {"status": 503}),
    "4xx": Fault("answers 4xx", K.STATUS, {"status": 400}),
    "abort": Fault('answers "abort" by itself', K.ABORT),
    "dies": Fault("dies before it answers", K.DIE_BEFORE_HEAD),
    "garbage": Fault("answers bytes that are not HTTP", K.GARBAGE_BYTES),
    "garbage-json": Fault("answers bytes that are not JSON", K.GARBAGE_JSON),
    "hangs": Fault("hangs", K.HANG_BEFORE_HEAD),
    "refuses": Fault("refuses the connection", K.REFUSE),
    "stale": Fault("closes an idle connection as it is used again", K.DIE_BEFORE_HEAD, used=True),
    "expires": Fault("", K.HANG_BEFORE_HEAD),
}
_OF_PREFILL: Final = {
    "dies-amid-answer": Fault("dies amid its answer", K.DIE_AFTER_HEAD),
    "error": Fault("fails inside (500)", K.ERROR_EVENT),
    "hangs-amid-answer": Fault("hangs amid its answer", K.HANG_AFTER_HEAD),
    "loses-answer": Fault("dies when it has finished", K.LOSE_ANSWER),
    "no-params": Fault("answers without parameters", K.NO_PARAMS),
}
_OF_DECODE: Final = {
    "500-always": Fault("answers 500", K.STATUS, {"status": 500, "leg": None}),
    "dies-after-head": Fault("dies after its head, before its first event", K.DIE_AFTER_HEAD),
    "expires-after-head": Fault("hangs after its head", K.HANG_AFTER_HEAD),
    "hangs-after-head": Fault("hangs after its head", K.HANG_AFTER_HEAD),
    "load-fails": Fault("could not load the KV", K.ERROR_EVENT),
    "loses-answer": Fault("dies when it has worked, before its first event", K.LOSE_ANSWER),
}
_OF_STREAM: Final = {
    "dies": Fault("dies between two events", K.DIE_AFTER_EVENTS, _EVENTS),
    "dies-in-event": Fault("dies inside an event", K.DIE_IN_EVENT, _EVENTS),
    "error": Fault("sends an error event", K.ERROR_EVENT, _EVENTS),
    "expires": Fault("is too slow for the whole request's deadline", K.HANG_AFTER_HEAD, _EVENTS),
    "garbage": Fault("sends an event that is no JSON", K.GARBAGE_JSON, _EVENTS),
    "hangs": Fault("sends nothing more", K.HANG_AFTER_HEAD, _EVENTS),
}
_NOBODY: Final = {"prefill": Fault("no P is ready"), "decode": Fault("no D is ready")}


@dataclass(frozen=True, slots=True)
class Place:
    """The engine and the phase that the first word of a row's id names, and the faults that it can have."""

    phase: Phase
    role: Role
    faults: Mapping[str, Fault]


PLACES: Final = {
    "no": Place(Phase.QUEUE, Role.DECODE, _NOBODY),
    "prefill": Place(Phase.PREFILL, Role.PREFILL, _ANYWHERE | _OF_PREFILL),
    "decode": Place(Phase.DECODE, Role.DECODE, _ANYWHERE | _OF_DECODE),
    "stream": Place(Phase.ANSWER, Role.DECODE, _OF_STREAM),
}
ENDS: Final = {
    "-": "{fault}",
    "other": "{fault}; another {engine} does not",
    "alone": "{fault}; a D serves the request alone",
    "every": "{fault}, and so does every {engine}",
    "for-good": "{fault}, and so does every {engine}, for good",
    "all-legs": "{fault}, and so does every {engine}, also to whole requests",
    "again": "{fault}; on a second leg the same P does not",
    "params": "{fault}; on a second leg, with",
    "again-id": "{fault}; on a second leg under the ID, it does not",
    "blocks": "{fault}; a second leg, only for D's blocks, succeeds",
    "frees-d": "{fault}; a short leg under the ID frees D",
    "has-kv": "{fault}; D has its KV",
    "in-vain": "{fault}; D waits for nothing",
    "in-vain-kv": "{fault}; D waits for nothing, or has its KV",
    "pair-kv": "{fault}; another pair does not, and the first D has its KV",
    "pair": "{fault}; another pair does not, and the first D waits for nothing",
    "not-d": "{fault}, D does not",
    "as-pool": "{fault}, as every P of a pool does",
    "as-all": "{fault}, as every P of Mooncake does",
    "500": "{fault}: 500; another {engine} does not",
    "event": "{fault}: an error event in its 200; another {engine} does not",
    "read": "{fault}. It may have read the KV: P runs again",
    "deadline": "the whole request's deadline passes",
    "expires": "{fault} until the whole request's deadline passes",
}
"""What a row says about the fault: the words of the column `ends`."""


def text(place: Place, fault: Fault, ends: str) -> str:
    """What fails, as docs/failure-matrix.md shows it."""
    engine = "P" if place.role is Role.PREFILL else "D"
    subject = fault.text if fault.kind is None else f"{engine} {fault.text}"
    return ENDS[ends].format(fault=subject, engine=engine)


def strike(place: Place, fault: Fault, *, always: bool) -> Strike | None:
    """The fault that the simulator is to have."""
    return None if fault.kind is None else Strike(place.role, fault.kind, always, fault.used, fault.fields)
