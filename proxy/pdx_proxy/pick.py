"""Which engines serve a request: pure choice over a snapshot."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from pdx_proxy.endpoints import Endpoint, Snapshot

LegCount = Callable[[Endpoint], int]


@dataclass(frozen=True, slots=True)
class Choice:
    """The engines of one attempt. Without a P, D does all of it."""

    decode: Endpoint
    prefill: Endpoint | None = None


def pick(snapshot: Snapshot, legs: LegCount, *, split: bool, avoid: Collection[str], turn: int) -> Choice | None:
    """The least loaded D and, to split, the least loaded P of its revision.

    `avoid` names endpoints that have failed this request; they are taken only when nothing else is left. `turn` decides
    between equals, so that equals are used in turn. None when no engine can answer.
    """
    decode = _least(snapshot.decode, legs, avoid, turn)
    if decode is None:
        return None
    if not split:
        return Choice(decode)
    revision = decode.revision
    peers = [p for p in snapshot.prefill if p.spec.revision == revision and p.name not in avoid]
    return Choice(decode, _least(peers, legs, avoid, turn))


def _least(endpoints: Sequence[Endpoint], legs: LegCount, avoid: Collection[str], turn: int) -> Endpoint | None:
    if avoid:
        endpoints = [e for e in endpoints if e.name not in avoid] or endpoints
    if len(endpoints) < 2:
        return endpoints[0] if endpoints else None
    counts = [legs(e) for e in endpoints]
    fewest = min(counts)
    equals = [e for e, count in zip(endpoints, counts, strict=True) if count == fewest]
    return equals[turn % len(equals)]
