"""The ways in which an engine fails, and what rows about them share."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pdx_api.names import Role
from pdx_proxy.http.upstream.failures import Reason
from pdx_proxy.telemetry.counters import Outcome, Settlement
from pdx_sim import FaultKind
from tests.failure_matrix.row import Strike


@dataclass(frozen=True, slots=True)
class Way:
    """One way in which an engine fails."""

    id: str
    text: str
    kind: FaultKind
    reason: Reason
    fields: Mapping[str, Any] = field(default_factory=dict)
    works: bool = False
    """Whether P has finished. Its blocks then wait for their lease."""
    hangs: bool = False


K = FaultKind
REFUSES: Final = Way("refuses", "refuses the connection", K.REFUSE, Reason.CONNECT)
REFUSED: Final = Way("4xx", "answers 4xx", K.STATUS, Reason.STATUS, {"status": 400})
IDLE_WAYS: Final = (
    Way("500", "answers 500", K.STATUS, Reason.STATUS, {"status": 500}),
    Way("503", "answers 503", K.STATUS, Reason.STATUS, {"status": 503}),
    Way("dies", "dies before it answers", K.DIE_BEFORE_HEAD, Reason.LOST),
    Way("hangs", "hangs", K.HANG_BEFORE_HEAD, Reason.DEADLINE, hangs=True),
    Way("garbage", "answers bytes that are not HTTP", K.GARBAGE_BYTES, Reason.LOST),
    Way("abort", 'answers "abort" by itself', K.ABORT, Reason.ABORT),
)
"""Ways in which P fails without having worked."""
WORKED_WAYS: Final = (
    Way("loses-answer", "dies when it has finished", K.LOSE_ANSWER, Reason.LOST, works=True),
    Way("dies-amid-answer", "dies amid its answer", K.DIE_AFTER_HEAD, Reason.LOST, works=True),
    Way("garbage-json", "answers bytes that are not JSON", K.GARBAGE_JSON, Reason.LOST, works=True),
    Way("error", "fails inside (500)", K.ERROR_EVENT, Reason.STATUS, works=True),
)
NO_PARAMS: Final = Way("no-params", "answers without parameters", K.NO_PARAMS, Reason.STATUS, works=True)
HANGS_LATE: Final = Way(
    "hangs-amid-answer", "hangs amid its answer", K.HANG_AFTER_HEAD, Reason.DEADLINE, works=True, hangs=True
)
FREED: Final = (Settlement.RELEASED, Settlement.LEASE)
ANY_SETTLED: Final = (*FREED, Settlement.FINISHED, Settlement.PREFILL_STOPPED, None)
SPLIT: Final = {Outcome.SPLIT: 1}
ALONE: Final = {Outcome.WHOLE: 1}
NONE: Final = {Outcome.UNAVAILABLE: 1}
DECODE_WAYS: Final = (
    *IDLE_WAYS,
    Way("loses-answer", "dies when it has worked, before its first event", K.LOSE_ANSWER, Reason.LOST, works=True),
    Way("dies-after-head", "dies after its head, before its first event", K.DIE_AFTER_HEAD, Reason.LOST, works=True),
    Way("hangs-after-head", "hangs after its head", K.HANG_AFTER_HEAD, Reason.DEADLINE, works=True, hangs=True),
)
"""Ways in which D fails before its first event."""


def strike(role: Role, way: Way, *, always: bool = False) -> Strike:
    """The fault that makes engines of a role fail in this way."""
    return Strike(role, way.kind, always, fields=way.fields)
