"""Which engines serve a request: pure choice over a snapshot."""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from pdx_api.names import Role
from pdx_proxy.balancing.policies import Load, Policy, least
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.endpoints.snapshot import Snapshot

Peers = Mapping[str, Sequence[Endpoint]]


_AGGREGATED: Final = Role.AGGREGATED


class Choice:
    """The engines of one attempt. Without a P, D does all of it."""

    __slots__ = ("decode", "prefill")

    def __init__(self, decode: Endpoint, prefill: Endpoint | None = None) -> None:
        self.decode = decode
        self.prefill = prefill


def pick(
    snapshot: Snapshot,
    load: Load,
    *,
    split: bool,
    avoid: Collection[str],
    turn: int,
    prefill: Policy = least,
    decode: Policy = least,
) -> Choice | None:
    """A D and, to split, a P of its revision: by default the least loaded ones.

    To split, a D whose revision has a P comes before one whose revision has none: so a rollout is used as far as its
    pairs are complete. Between revisions the queue at their P counts too. An aggregated engine is complete by itself
    and never splits. `avoid` names endpoints that have failed this request; they are taken when nothing else is left.
    `turn` decides between equals, so that equals are used in turn. None when no engine can answer.
    """
    decodes, complete, peers = snapshot.decode, snapshot.complete, snapshot.peers
    if avoid:
        decodes = _spared(decodes, avoid) or decodes
        peers = {revision: left for revision, all_of in peers.items() if (left := _spared(all_of, avoid))}
        complete = tuple(d for d in decodes if d.role is _AGGREGATED or d.revision in peers)
    if not decodes:
        return None
    if not split:
        return Choice(decode(decodes, load, turn))
    d = decode(complete or decodes, load if len(peers) < 2 else _with_queue(load, peers), turn)
    if d.role is _AGGREGATED or d.revision not in peers:
        return Choice(d)
    return Choice(d, prefill(peers[d.revision], load, turn))


def stand_in(snapshot: Snapshot, load: Load, decode: Endpoint, *, turn: int) -> Endpoint:
    """The D for KV that was made for `decode`: itself as it is now, or else the least loaded of its revision.

    A D that has begun to leave or died meanwhile is kept when its revision has no other.
    """
    peers = [d for d in snapshot.decode if d.revision == decode.revision]
    same = next((d for d in peers if d.name == decode.name), None)
    return same or (least(peers, load, turn) if peers else decode)


def _spared(endpoints: Sequence[Endpoint], avoid: Collection[str]) -> tuple[Endpoint, ...]:
    return tuple(e for e in endpoints if e.name not in avoid)


def _with_queue(load: Load, peers: Peers) -> Load:
    """The load of a D and of the least loaded P of its revision."""
    queues = {revision: min(map(load, all_of)) for revision, all_of in peers.items()}
    return lambda decode: load(decode) + queues.get(decode.revision, 0)
