"""The families of KV hand-off, as data: what a gateway sends on each leg.

A family is a protocol, not a connector: the gateway implements the families and names no connector. A connector fills
its family with the parameters that its vLLM class reads.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import Any, Final, NamedTuple

KVParams = Mapping[str, Any]
"""The content of a leg's `kv_transfer_params`."""


MOST_CHARACTERS: Final = 512
"""The longest text that P names itself or a request by."""
MOST_PORT: Final = 65_535
MOST_DEVICES: Final = 65_536
"""The most ranks of one kind that P may have."""


class Kind(Enum):
    """The values that a member of P's parameters may have. Every other value can end D's EngineCore."""

    TRUE = auto()
    FALSE = auto()
    TEXT = auto()
    """ASCII, from 1 to `MOST_CHARACTERS` characters."""
    PORT = auto()
    DEVICES = auto()
    """A whole number from 1 to `MOST_DEVICES`."""
    COUNT = auto()
    """A whole number from 0."""
    NUMBER = auto()
    """A finite number."""
    SCALAR = auto()
    """Anything but a list or an object: D only relays it, or does not read it."""
    BLOCKS = auto()
    """The IDs of blocks by group of the KV cache. Groups may be empty, but not all of them."""


class Member(NamedTuple):
    """A member of P's parameters that D reads. A tuple, because each request unpacks all of them."""

    name: str
    kind: Kind
    required: bool = True
    """If not, it may be missing or null."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The address of one start of a prefill engine, for a decode engine. Raises ValueError for an impossible one.

    Each data-parallel rank has its own. An engine that restarts has another.
    """

    engine_id: str
    host: str
    port: int
    tensor_parallel: int = 1
    pipeline_parallel: int = 1

    def __post_init__(self) -> None:
        for text in (self.engine_id, self.host):
            if not (isinstance(text, str) and 0 < len(text) <= MOST_CHARACTERS and text.isprintable()):
                raise ValueError(f"{str(text)[:40]!r} is no ID and no host of an engine")
        for number, most in (
            (self.port, MOST_PORT),
            (self.tensor_parallel, MOST_DEVICES),
            (self.pipeline_parallel, MOST_DEVICES),
        ):
            if not 0 < number <= most:
                raise ValueError(f"a number is not from 1 to {most}")


@dataclass(frozen=True, slots=True)
class Pull:
    """P answers first; the parameters of its answer go to D unchanged, and D reads the KV from P.

    If P answers no parameters, there is no KV to hand over, and D prefills by itself.
    """

    prefill_params: KVParams
    kept_seconds: float | None = None
    """Seconds that P pins a finished prefill that no D reads; None: as long as `lease_config` sets."""
    host_param: str = "remote_host"
    """Parameter of P's answer that names the host from which D reads. vLLM's connectors share this name."""
    answered: tuple[Member, ...] = ()
    """The members of P's answer that D reads. Members that are not named here go to D unchecked."""


@dataclass(frozen=True, slots=True)
class InPrefillAnswer:
    """P's identity is in the parameters of each of its answers."""

    read: Callable[[KVParams], Identity]
    """Parameters of P's answer -> P's identity; KeyError, TypeError or ValueError if they contain none."""


@dataclass(frozen=True, slots=True)
class AtBootstrap:
    """P's identity is read over HTTP from another port than its API; P's answers do not contain it."""

    port: str
    """Name of the port among the connector's `port_names`."""
    path: str
    read: Callable[[Any, str, int, int], Identity]
    """(JSON answer, host, port, data-parallel rank) -> P's identity; LookupError, TypeError or ValueError if none."""


class Settles(StrEnum):
    """How a push hand-off is settled when a leg is missing."""

    BY_DECODE_LEG = "by a decode leg"
    """If D refuses its leg, P is not notified: a D leg of one token under the same transfer id frees P's blocks. P's
    leg may be stopped while no D waits for it, and may be repeated under the same id."""
    BY_PREFILL_LEG = "by a prefill leg"
    """If D refuses its leg, or its leg is closed, D notifies P, and P remembers D until a P leg under the same transfer
    id has ended. So each id that a D has received needs a P leg: a short one if D has refused its leg. A P leg that P
    has begun is not stopped, and none follows it: after an abort nothing wakes D."""


@dataclass(frozen=True, slots=True)
class Push:
    """Both legs carry one transfer ID, which is new for every attempt, and P writes the KV to D.

    The transfer ID is the `X-Request-Id` of both legs, and both use the same path.
    """

    prefill_params: Callable[[str], KVParams]
    """Transfer ID -> P's parameters."""
    decode_params: Callable[[str, Identity], KVParams]
    """(transfer ID, P's identity) -> D's parameters."""
    identity: InPrefillAnswer | AtBootstrap
    """The source of P's identity."""
    settles: Settles
    """Which leg frees the blocks of an abandoned hand-off (docs/settling.md)."""
    kept_seconds: float | None = None
    """As in `Pull`."""


@dataclass(frozen=True, slots=True)
class Pool:
    """P saves its KV to a pool, and D finds it there by the prompt; no leg carries parameters.

    P pins nothing for a D, so P and D need no address of each other. A D that finds nothing prefills by itself: a miss
    costs time, never a request, and only the engine reports it.
    """

    saved_after: float = 0.0
    """Seconds from P's answer until its KV can be found; D's leg is sent only then. 0: P saves before it answers."""
    stops_prefill: bool = True
    """Whether P may be stopped when a client disconnects. False: P finishes, and its KV serves later requests."""


Family = Pull | Push | Pool
