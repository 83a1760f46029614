"""The protocol families of KV hand-off, as data: what a gateway must send on each leg.

A family is a way of speaking, not a connector: the gateway runs families and knows no connector by name. A connector
fills a family with the parameters that its vLLM class reads.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

KVParams = Mapping[str, Any]
"""The content of a leg's `kv_transfer_params`."""


@dataclass(frozen=True, slots=True)
class Identity:
    """How one start of one prefill engine is addressed by a decode engine.

    It belongs to a data-parallel rank and to one start of the engine: an engine that restarts has another.
    """

    engine_id: str
    host: str
    port: int
    tensor_parallel: int = 1
    pipeline_parallel: int = 1


@dataclass(frozen=True, slots=True)
class Pull:
    """P is called and awaited; the parameters it answers go to D verbatim, and D pulls.

    A P that answers without parameters has nothing to hand over; D then prefills by itself.
    """

    prefill_params: KVParams
    kept_seconds: float | None = None
    """How long P keeps what it has finished and nobody takes; None: as long as `keeping` tells it to."""
    host_param: str = "remote_host"
    """Parameter of P's answer that names the host from which D reads. vLLM's connectors share this name."""


@dataclass(frozen=True, slots=True)
class InPrefillAnswer:
    """P names itself in the parameters of every answer."""

    read: Callable[[KVParams], Identity]
    """P's answered parameters -> P's identity; KeyError, TypeError or ValueError when they name none."""


@dataclass(frozen=True, slots=True)
class AtBootstrap:
    """P is asked over HTTP at a port beside its API, and its answers say nothing."""

    port: str
    """Name of the port among the connector's `port_names`."""
    path: str
    read: Callable[[Any, str, int, int], Identity]
    """(JSON answered, host, port, data-parallel rank) -> P's identity; LookupError, TypeError, ValueError for none."""


class Settles(StrEnum):
    """How a rendezvous comes to its end where a leg is missing."""

    BY_DECODE_LEG = "by taking"
    """Of a leg that D refuses, P hears nothing: what P has finished is freed by a D leg of one token under its id. P
    may be stopped while no D waits for it, and its leg sent again under the id."""
    BY_PREFILL_LEG = "by meeting"
    """Of a leg that D refuses or that is closed, D tells P, which keeps a place for it until its own leg under that id
    has ended: so every id that a D has been told is met by a P leg, a short one where D has refused its own. A P leg
    that P has begun is not stopped, and none follows it: nothing would wake D any more."""


@dataclass(frozen=True, slots=True)
class Push:
    """Both legs are told of each other beforehand and meet under one id, which is fresh for every attempt.

    The id is the `X-Request-Id` of both legs, and both use the same path.
    """

    prefill_params: Callable[[str], KVParams]
    """Meeting id -> P's parameters."""
    decode_params: Callable[[str, Identity], KVParams]
    """(meeting id, P's identity) -> D's parameters."""
    identity: InPrefillAnswer | AtBootstrap
    """Where P's identity comes from."""
    settles: Settles
    """What frees the blocks of a hand-off that nobody wants any more (docs/settling.md)."""
    kept_seconds: float | None = None
    """As in `Pull`."""


@dataclass(frozen=True, slots=True)
class Pool:
    """P saves what it has computed where D looks it up by the prompt itself; no leg carries parameters.

    Nothing is kept for a D, so P and D need not know each other. A D that finds nothing prefills by itself: a miss
    costs time, never a request, and only the engine knows of it.
    """

    saved_after: float = 0.0
    """Seconds from P's answer until what it saves can be found; D is asked only then. 0: P saves before it answers."""
    stops_prefill: bool = True
    """Whether P may be stopped when a client leaves; False: P is left to finish, and what it saves serves the next."""


Family = Pull | Push | Pool
