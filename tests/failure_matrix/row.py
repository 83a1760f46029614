"""A row of the failure matrix, and the words that rows are made of. The rows become docs/failure-matrix.md."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import product
from typing import Any, Final

from pdx_api.names import Order, PrefillFailure, Role
from pdx_proxy.config.settings import Deadlines
from pdx_proxy.http.upstream.failures import Reason
from pdx_proxy.telemetry.counters import Outcome, Settlement
from pdx_sim import FaultKind


class Wiring(StrEnum):
    """How KV moves: NIXL in each of its orders, through a pool, and Mooncake in each of its orders."""

    PREFILL_FIRST = Order.PREFILL_FIRST.value
    DECODE_FIRST = Order.DECODE_FIRST.value
    CONCURRENT = Order.CONCURRENT.value
    POOL = "Pool"
    MOONCAKE_PREFILL_FIRST = "Mooncake-PrefillFirst"
    MOONCAKE_DECODE_FIRST = "Mooncake-DecodeFirst"
    MOONCAKE_CONCURRENT = "Mooncake-Concurrent"

    @property
    def order(self) -> Order:
        """The order in which the legs are sent."""
        return Order.PREFILL_FIRST if self is Wiring.POOL else Order(self.value.rpartition("-")[2])

    @property
    def connector(self) -> str:
        """The connector that the rows are run with."""
        return "SharedStorage" if self is Wiring.POOL else "Mooncake" if self in MOONCAKE_ALL else "NIXL"


PULL: Final = (Wiring.PREFILL_FIRST,)
PUSH: Final = (Wiring.DECODE_FIRST, Wiring.CONCURRENT)
PEERS: Final = (*PULL, *PUSH)
POOL: Final = (Wiring.POOL,)
PULL_AND_POOL: Final = (*PULL, *POOL)
"""P finishes before D gets its leg."""
ALL: Final = (*PEERS, *POOL)
MOONCAKE_P_FIRST: Final = (Wiring.MOONCAKE_PREFILL_FIRST,)
MOONCAKE_D_WAITS: Final = (Wiring.MOONCAKE_DECODE_FIRST, Wiring.MOONCAKE_CONCURRENT)
"""D has its leg before P has finished."""
MOONCAKE_ALL: Final = (*MOONCAKE_P_FIRST, *MOONCAKE_D_WAITS)
BOTH: Final = (False, True)
WHOLE: Final = (False,)
STREAM: Final = (True,)
RETRY: Final = (PrefillFailure.RETRY,)
POLICIES: Final = tuple(PrefillFailure)
TEST: Final = "component/handoff/test_failures.py::test_row[{id}-{order}-{stream}-{policy}]"
LONG: Final = Deadlines(
    connect_seconds=2.0,
    prefill_seconds=20.0,
    handoff_seconds=20.0,
    first_event_seconds=20.0,
    settle=1.0,
    nearly_done=0.1,
)
SHORT: Final = replace(LONG, prefill_seconds=0.5, handoff_seconds=0.5, first_event_seconds=1.3, warm_up=1.0)
IDLE: Final = replace(LONG, idle_seconds=0.2)
TOTAL: Final = replace(LONG, total_seconds=0.7, prefill_seconds=1.5, settle=0.3)


class Phase(StrEnum):
    """The phase of a request."""

    QUEUE = "not sent yet"
    PREFILL = "P prefills"
    BETWEEN = "between the legs"
    DECODE = "D before its first event"
    ANSWER = "D answers"


class Client(StrEnum):
    """The result for the client."""

    RIGHT = "the right answer"
    UNAVAILABLE = "503 with `Retry-After`"
    ENGINES = "the engine's 5xx"
    LATE = "504"
    EVENT = "an error event and `[DONE]`"
    REFUSED = "D's 4xx"
    CUT = "a cut"
    AS_IT_CAME = "what D sent"


@dataclass(frozen=True, slots=True)
class Strike:
    """The fault of a row. It hits the engines of one role: once, at any of them, or always, at all of them."""

    role: Role
    kind: FaultKind
    always: bool = False
    used: bool = False
    """Whether it hits a connection that was used before. Otherwise every connection is new."""
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Row:
    """One row: a failure and its results. A row with `strike` or `ready` is run by test_failures.py."""

    id: str
    phase: Phase
    fails: str
    client: Client | str
    outcomes: Mapping[Outcome, int] = field(default_factory=dict)
    retries: Mapping[Reason, int] = field(default_factory=dict)
    settled: Mapping[Settlement, int] | tuple[Settlement | None, ...] = field(default_factory=dict)
    """How hand-offs are settled. A tuple allows some of its members, and none only if it contains None."""
    legs: tuple[int | None, int | None, int] = (0, 0, 0)
    """Legs that reach P, legs that reach D, and whole requests that reach D. None: it depends on timing."""
    orders: tuple[Wiring, ...] = PEERS
    streams: tuple[bool, ...] = BOTH
    alternate: bool = False
    """Whether orders alternate between streamed and not streamed, instead of running both."""
    policies: tuple[PrefillFailure, ...] = RETRY
    strike: Strike | None = None
    ready: tuple[int, int] = (2, 2)
    """Engines of each role."""
    requests: int = 1
    """Number of requests, so that one of them reaches the faulty engine: two for a D, three for a P (see `pick`)."""
    deadlines: Deadlines = LONG
    stranded: bool = False
    """D keeps blocks that P never pushes into."""
    lease: bool = False
    """P keeps blocks until their lease ends."""
    engines: str = ""
    """What engines see, if the leg counts do not show it."""
    counters: str = ""
    test: str = TEST
    """The test of the row, below tests/, for each order, stream and policy.

    `{shape}` is the form that `make test` runs of a test for both APIs, and `{text}` that of a test for texts alone.
    """

    @property
    def runs(self) -> bool:
        """Whether test_failures.py runs the row."""
        return self.test == TEST

    @property
    def settled_lost(self) -> bool:
        """Whether D is sure to keep blocks."""
        return Settlement.DECODE_LOST in self.settled and not isinstance(self.settled, tuple)

    def cases(self) -> Iterator["Case"]:
        """Every combination that the row covers."""
        for number, order in enumerate(self.orders):
            streams = (bool(number % 2),) if self.alternate else self.streams
            for stream, policy in product(streams, self.policies):
                yield Case(self, order, stream, policy)


@dataclass(frozen=True, slots=True)
class Case:
    """One combination of a row."""

    row: Row
    order: Wiring
    stream: bool
    policy: PrefillFailure

    @property
    def test(self) -> str:
        """Its test, below tests/."""
        return self.row.test.format(
            id=self.row.id,
            order=self.order,
            stream="stream" if self.stream else "whole",
            shape="chat-stream" if self.stream else "text",
            text="text-stream" if self.stream else "text",
            policy=self.policy,
            plain=self.order.order,
        )
