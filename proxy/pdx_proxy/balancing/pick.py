"""Which engines serve a request: a pure choice over a snapshot."""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from pdx_api.names import Role
from pdx_proxy.balancing.decode.placement import Place
from pdx_proxy.balancing.policies import LEAST, LoadOf, Policy, least
from pdx_proxy.endpoints.endpoint import Endpoint, Pairing
from pdx_proxy.endpoints.snapshot import Snapshot, partners
from pdx_proxy.payload.body import Body

Peers = Mapping[str, Sequence[Endpoint]]


_AGGREGATED: Final = Role.AGGREGATED


class Choice:
    """The engines of one attempt. Without a P, D serves the whole request."""

    __slots__ = ("decode", "place", "policy", "prefill", "prefill_policy", "suspended")

    def __init__(
        self,
        decode: Endpoint,
        prefill: Endpoint | None = None,
        place: Place | None = None,
        policy: Policy = LEAST,
        prefill_policy: Policy = LEAST,
        suspended: bool = False,
    ) -> None:
        self.decode = decode
        self.prefill = prefill
        self.place = place
        """Why D prefills a request that a P could have prefilled; None for any other reason."""
        self.policy = policy
        """What selected D."""
        self.prefill_policy = prefill_policy
        """What selected P, if there is one."""
        self.suspended = suspended
        """Whether one engine serves the request because no KV reaches D."""


def pick(
    snapshot: Snapshot,
    load_of: LoadOf,
    body: Body,
    *,
    split: bool,
    avoid: Collection[str],
    cursor: int,
    prefill: Policy = LEAST,
    decode: Policy = LEAST,
) -> Choice | None:
    """Select a D and, to split, a P of its revision; None when no engine can answer.

    To split, a D whose revision has a P comes before a D whose revision has none, so a rollout is used as far as its
    pairs are complete. With several revisions the queue at their P counts as well. An aggregated engine is complete by
    itself and never splits; nor does a D whose queue is longer than a push survives, or that no KV reaches. For such a
    D, a P that reaches no D may serve the request. `avoid` names endpoints that have failed this request; they are
    selected only when no other is left. `cursor` alternates between equals.
    """
    decodes, complete, peers, suspended = snapshot.decode, snapshot.complete, snapshot.peers, snapshot.suspended
    if avoid:
        decodes = _without(decodes, avoid) or decodes
        peers = {revision: left for revision, group in peers.items() if (left := _without(group, avoid))}
        complete = tuple([d for d in decodes if d.role is _AGGREGATED or d.revision in peers])
        if suspended:
            complete = tuple(d for d in complete if d.role is _AGGREGATED or partners(d, peers[d.revision], suspended))
    if not decodes:
        return None
    if not split:
        return Choice(decode.choose(body, decodes, load_of, cursor), None, None, decode)
    load_of_pair = load_of if len(peers) < 2 else _with_queue(load_of, peers)
    d = decode.choose(body, complete or decodes, load_of_pair, cursor)
    group = peers.get(d.revision, ())
    if suspended:
        group = partners(d, group, suspended)
    if d.role is _AGGREGATED or d.long_queue or not group:
        if d.long_queue or not any(pair[2:] == d.start for pair in suspended):
            return Choice(d, None, None, decode)
        idle = [p for p in peers.get(d.revision, ()) if not _reaches(p, snapshot.decode, suspended)]
        return Choice(least((d, *idle), load_of, cursor), None, None, decode, suspended=True)
    # P's cursor moves one further each time that D's has gone round. With one cursor, equal numbers of both would
    # always meet in the same pairs, and the first KV between the others would move under load.
    number = len(decodes)
    p = prefill.choose(body, group, load_of, cursor // number + cursor % number)
    return Choice(d, p, None, decode, prefill)


def pick_whole(
    snapshot: Snapshot, load_of: LoadOf, body: Body, *, avoid: Collection[str], cursor: int, decode: Policy = LEAST
) -> Choice | None:
    """Select one engine for a request that is not split although it could be: a D, or a P with less load.

    P has D's revision, and has not failed the request.
    """
    found = pick(snapshot, load_of, body, split=False, avoid=avoid, cursor=cursor, decode=decode)
    if found is None or found.decode.role is _AGGREGATED:
        return found
    prefills = _without(snapshot.peers.get(found.decode.revision, ()), avoid)
    engines = prefills if prefills and found.decode.name in avoid else (found.decode, *prefills)
    return Choice(least(engines, load_of, cursor), None, None, decode, suspended=True)


def pick_prefill(snapshot: Snapshot, load_of: LoadOf, *, avoid: Collection[str], cursor: int) -> Choice | None:
    """Select a P that serves a whole request; None if there is no P that has not failed it."""
    prefills = _without(snapshot.prefill, avoid)
    return Choice(least(prefills, load_of, cursor)) if prefills else None


def replacement_decode(snapshot: Snapshot, load_of: LoadOf, decode: Endpoint, *, cursor: int) -> Endpoint:
    """Return the D for KV that was made for `decode`: its present state, or else the least loaded of its revision.

    If its revision has no other D, `decode` itself is returned, even if it is terminating or lost.
    """
    peers = [d for d in snapshot.decode if d.revision == decode.revision and d.wire == decode.wire]
    same = next((d for d in peers if d.name == decode.name), None)
    return same or (least(peers, load_of, cursor) if peers else decode)


def _without(endpoints: Sequence[Endpoint], avoid: Collection[str]) -> tuple[Endpoint, ...]:
    return tuple(e for e in endpoints if e.name not in avoid)


def _reaches(prefill: Endpoint, decodes: Sequence[Endpoint], suspended: frozenset[Pairing]) -> bool:
    """Whether some D takes KV from the P."""
    return any(d.revision == prefill.revision and partners(d, (prefill,), suspended) for d in decodes)


def _with_queue(load_of: LoadOf, peers: Peers) -> LoadOf:
    """Return the load of a D plus the load of the least loaded P of its revision."""
    queues = {revision: min(map(load_of, group)) for revision, group in peers.items()}
    return lambda decode: load_of(decode) + queues.get(decode.revision, 0)
