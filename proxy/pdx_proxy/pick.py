"""Which engines serve a request: pure choice over a snapshot."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from pdx_api.names import Role
from pdx_proxy.endpoints import Endpoint, Snapshot

LegCount = Callable[[Endpoint], float]
Peers = Mapping[str, Sequence[Endpoint]]


@dataclass(frozen=True, slots=True)
class Choice:
    """The engines of one attempt. Without a P, D does all of it."""

    decode: Endpoint
    prefill: Endpoint | None = None


def pick(snapshot: Snapshot, legs: LegCount, *, split: bool, avoid: Collection[str], turn: int) -> Choice | None:
    """The least loaded D and, to split, the least loaded P of its revision.

    To split, a D whose revision has a P comes before one whose revision has none: so a rollout is used as far as its
    pairs are complete. Between revisions the queue at their P counts too. An aggregated engine is complete by itself
    and never splits. `avoid` names endpoints that have failed this request; they are taken when nothing else is left.
    `turn` decides between equals, so that equals are used in turn. None when no engine can answer.
    """
    decodes, complete, peers = snapshot.decode, snapshot.complete, snapshot.peers
    if avoid:
        decodes = _spared(decodes, avoid) or decodes
        peers = {revision: left for revision, all_of in peers.items() if (left := _spared(all_of, avoid))}
        complete = tuple(d for d in decodes if d.role is Role.AGGREGATED or d.revision in peers)
    if not decodes:
        return None
    if not split:
        return Choice(_least(decodes, legs, turn))
    decode = _least(complete or decodes, legs if len(peers) < 2 else _with_queue(legs, peers), turn)
    if decode.role is Role.AGGREGATED or decode.revision not in peers:
        return Choice(decode)
    return Choice(decode, _least(peers[decode.revision], legs, turn))


def stand_in(snapshot: Snapshot, legs: LegCount, decode: Endpoint, *, turn: int) -> Endpoint:
    """The D for KV that was made for `decode`: itself as it is now, or else the least loaded of its revision.

    A D that has begun to leave or died meanwhile is kept when its revision has no other.
    """
    peers = [d for d in snapshot.decode if d.revision == decode.revision]
    same = next((d for d in peers if d.name == decode.name), None)
    return same or (_least(peers, legs, turn) if peers else decode)


def _spared(endpoints: Sequence[Endpoint], avoid: Collection[str]) -> tuple[Endpoint, ...]:
    return tuple(e for e in endpoints if e.name not in avoid)


def _with_queue(legs: LegCount, peers: Peers) -> LegCount:
    """Legs at a D and at the least loaded P of its revision."""
    queues = {revision: min(map(legs, all_of)) for revision, all_of in peers.items()}
    return lambda decode: legs(decode) + queues.get(decode.revision, 0)


def _least(endpoints: Sequence[Endpoint], legs: LegCount, turn: int) -> Endpoint:
    if len(endpoints) == 1:
        return endpoints[0]
    counts = [legs(e) for e in endpoints]
    fewest = min(counts)
    equals = [e for e, count in zip(endpoints, counts, strict=True) if count == fewest]
    return equals[turn % len(equals)]
