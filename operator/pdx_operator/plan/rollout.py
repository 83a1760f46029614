"""The next step from the existing engines to the engines of the spec: numbers in, numbers out.

Each step follows from the observed engines alone, so the operator may restart at any point.

It differs from two independent rolling updates:

* Engines of one revision pair only among themselves. A new engine counts only in proportion to its ready
  counterparts: with the *share* f = min(ready / desired) over the roles, floor(f * desired) engines of each role are
  usable.
* A decode engine alone can serve a whole request; a prefill engine alone cannot.
* Without spare devices (surge 0) capacity is lost. Roles then give up engines one role after the other, each only once
  the role before it is complete again, so that at most one role is short of engines.

Invariants, for every role with desired replicas n, surge s, unavailable u:

* replicas of all revisions together do not exceed n + s, except while surplus engines are being drained;
* old engines are not reduced below n - u - floor(f * n): usable new and old engines together are at least n - u;
* old revisions never grow, so every rollout ends once the new engines become ready.

When the mode changes, old and new engines have different roles. All roles then form one track, in which any engine
replaces any other. Old prefill engines are drained first, and new decode engines are created first.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from math import prod
from typing import Final

from pdx_api.names import Role
from pdx_operator.observed.workloads import ObservedPool
from pdx_operator.plan.proof import Unproven

PoolKey = tuple[str, Role]
"""A pool: revision and role."""

PRIORITY: Final = (Role.PREFILL, Role.DECODE, Role.AGGREGATED)
"""The order in which roles give up engines: while prefill engines are missing, the old decode engines serve alone."""


class Phase(StrEnum):
    """Progress of a rollout. Also the reason of the condition Progressing."""

    ROLLING = "RollingOut"
    STOPPED = "RolloutStopped"
    """KV does not move between the new engines, so the old ones stay."""
    RETIRING = "Retiring"
    STARTING = "Starting"
    COMPLETE = "Complete"


@dataclass(frozen=True, slots=True)
class Budget:
    """How far a rollout may deviate from the desired replicas: numbers, or percentages of each role's replicas."""

    max_surge: int | str = "25%"
    max_unavailable: int | str = 0


@dataclass(frozen=True, slots=True)
class Allowance:
    """A budget for one role, in engines. One of the two is at least 1."""

    surge: int
    unavailable: int


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """The engine Deployments that should exist now."""

    replicas: Mapping[PoolKey, int]
    """Replicas of every pool that stays, including the new revision."""
    remove: tuple[str, ...]
    """Names of old Deployments and Services whose last pod is gone."""
    phase: Phase
    message: str
    """One sentence for the condition Progressing."""
    revision: str
    """The new revision."""
    surges: bool
    """New engines run in addition to old ones, so they need more devices than the desired replicas."""

    @property
    def done(self) -> bool:
        """Only the new revision exists, and all its engines are ready."""
        return self.phase is Phase.COMPLETE


@dataclass(frozen=True, slots=True)
class _Old:
    """A pool of an old revision."""

    key: PoolKey
    replicas: int
    ready: int
    useful: int
    """Engines that are ready or may come back. The other ones are removed at once: they only occupy devices."""


@dataclass(frozen=True, slots=True)
class _Track:
    """Engines that may replace one another: all engines of one role, or all engines when the mode changes."""

    roles: tuple[Role, ...]
    """Roles of the new revision, in the order in which their engines are created."""
    old: tuple[_Old, ...]
    """The last pool is drained first."""


def allowance(budget: Budget, replicas: int) -> Allowance:
    """Resolve a budget for `replicas` engines: surge is rounded up, unavailable down, as in Kubernetes.

    If both are zero, no engine could be replaced, so unavailable becomes 1.
    """
    surge = _resolve(budget.max_surge, replicas, up=True)
    unavailable = min(_resolve(budget.max_unavailable, replicas, up=False), replicas)
    return Allowance(surge, unavailable or (0 if surge else 1))


def _resolve(amount: int | str, replicas: int, *, up: bool) -> int:
    if isinstance(amount, int):
        return amount
    hundredths = int(amount.removesuffix("%")) * replicas
    return (hundredths + 99) // 100 if up else hundredths // 100


def plan_rollout(
    revision: str,
    desired: Mapping[Role, int],
    pools: Sequence[ObservedPool],
    budget: Budget,
    unproven: Unproven | None = None,
) -> RolloutPlan:
    """The next step from `pools` (all engines of one object) to `desired` engines of `revision`.

    While KV is `unproven` between new engines, they replace no old one.
    """
    new = {pool.role: pool for pool in pools if pool.revision == revision and pool.role in desired}
    old = [pool for pool in pools if new.get(pool.role) is not pool]
    replicas = {(revision, role): n for role, n in desired.items()}
    if any(pool.replicas for pool in old):
        replicas |= _step(revision, desired, new, old, budget, counts_ready=unproven is None)
    replicas |= {_key(pool): 0 for pool in old if not pool.replicas}
    gone = [pool for pool in old if _is_gone(pool)]
    for pool in gone:
        del replicas[_key(pool)]
    phase = _phase(desired, new, old)
    message = _message(phase, revision, desired, new, old)
    if phase is Phase.ROLLING and unproven is not None:
        phase, message = _unproven(unproven, revision, message)
    surge = any(allowance(budget, n).surge for n in desired.values())
    if phase is Phase.ROLLING and not surge:
        message += "; spec.rollout.maxSurge is 0, so engines are replaced in place"
    return RolloutPlan(
        replicas, tuple(pool.name for pool in gone), phase, message, revision, phase is Phase.ROLLING and surge
    )


@dataclass(frozen=True, slots=True)
class _Account:
    """The inputs of a step, by role of the new revision."""

    desired: Mapping[Role, int]
    allowed: Mapping[Role, Allowance]
    present: Mapping[Role, int]
    ready: Mapping[Role, int]
    tracks: Sequence[_Track]

    def keep(self, track: _Track, short_roles: Container[Role]) -> dict[PoolKey, int]:
        """The old engines that the track keeps while the roles in `short_roles` may have unavailable engines."""
        share = min((Fraction(self.ready[role], n) for role, n in self.desired.items() if n), default=Fraction(1))
        engines = 0
        for role in track.roles:
            short = self.allowed[role].unavailable if role in short_roles else 0
            engines += max(0, self.desired[role] - short - int(share * self.desired[role]))
        # An old engine that may come back does not displace a new engine that serves.
        return _keep(track.old, engines, self.room(track, sum(self.ready[role] for role in track.roles)))

    def room(self, track: _Track, taken: int) -> int:
        """How many engines the track has room for, in addition to `taken` engines."""
        return sum(self.desired[role] + self.allowed[role].surge for role in track.roles) - taken

    def fit(self, track: _Track, room: int) -> dict[Role, int]:
        """The track's new engines, reduced to the room that is left for them."""
        present = {role: self.present[role] for role in track.roles}
        if sum(present.values()) < room:
            return present
        fair = _grow(dict.fromkeys(track.roles, 0), self.desired, self.desired, {track.roles: room})
        return {role: min(n, fair[role]) for role, n in present.items()}


def _step(
    revision: str,
    desired: Mapping[Role, int],
    new: Mapping[Role, ObservedPool],
    old: Sequence[ObservedPool],
    budget: Budget,
    *,
    counts_ready: bool,
) -> dict[PoolKey, int]:
    """Replicas of all pools while old engines exist; `counts_ready`: ready new engines replace old ones."""
    present = {role: min(new[role].replicas, n) if role in new else 0 for role, n in desired.items()}
    account = _Account(
        desired=desired,
        allowed={role: allowance(budget, n) for role, n in desired.items()},
        present=present,
        ready={role: min(new[role].ready, present[role]) if role in new and counts_ready else 0 for role in desired},
        tracks=_tracks(desired, old),
    )
    limit = _reach(account)
    short_roles = _short_roles(account, limit)
    replicas: dict[PoolKey, int] = {}
    for track in account.tracks:
        kept = account.keep(track, short_roles)
        start = account.fit(track, account.room(track, sum(kept.values())))
        # Only engines that are gone make room, so the order in which a plan is applied does not matter.
        surplus = sum(new[role].replicas - start[role] for role in track.roles if role in new)
        free = account.room(track, sum(pool.replicas for pool in track.old) + surplus)
        counts = _grow(start, limit, desired, {track.roles: free})
        replicas |= {(revision, role): n for role, n in counts.items()} | kept
    return replicas


def _reach(account: _Account) -> dict[Role, int]:
    """The most new engines in the desired ratio, once every role has given up all engines that it may."""
    rooms = {track.roles: account.room(track, sum(account.keep(track, PRIORITY).values())) for track in account.tracks}
    start: dict[Role, int] = {}
    for track in account.tracks:
        start |= account.fit(track, rooms[track.roles])
    return _grow(start, account.desired, account.desired, rooms)


def _short_roles(account: _Account, limit: Mapping[Role, int]) -> list[Role]:
    """The roles that may have unavailable engines: each only once the roles before it have reached their target."""
    short_roles: list[Role] = []
    for track, role in [(each, role) for each in account.tracks for role in each.roles]:
        short_roles.append(role)
        room = account.room(track, sum(account.keep(track, short_roles).values()))
        target = _grow(account.fit(track, room), limit, account.desired, {track.roles: room})
        if account.ready[role] < target[role]:
            break
    return short_roles


def _tracks(desired: Mapping[Role, int], old: Sequence[ObservedPool]) -> list[_Track]:
    entries = _by_worth(old)
    if all(pool.role in desired for pool in old if pool.replicas):
        return [
            _Track((role,), tuple(entry for entry in entries if entry.key[1] is role))
            for role in PRIORITY
            if role in desired
        ]
    entries.sort(key=lambda entry: entry.key[1] is Role.PREFILL)
    return [
        _Track(tuple(role for role in (Role.DECODE, Role.PREFILL, Role.AGGREGATED) if role in desired), tuple(entries))
    ]


def _by_worth(old: Sequence[ObservedPool]) -> list[_Old]:
    """Old pools: first the revision with the most engines that serve requests; among equal ones the youngest."""
    useful = {_key(pool): pool.replicas if pool.proven else min(pool.ready, pool.replicas) for pool in old}
    servers = {pool.revision: 0 for pool in old}
    created = {pool.revision: pool.created for pool in old}
    for pool in old:
        if pool.role is not Role.PREFILL:
            servers[pool.revision] += useful[_key(pool)]
        created[pool.revision] = min(created[pool.revision], pool.created)
    ranked = sorted(old, key=lambda pool: (servers[pool.revision], created[pool.revision], *_key(pool)), reverse=True)
    # Prefill engines of a revision without decode engines cannot serve.
    useful = {key: n if servers[key[0]] else 0 for key, n in useful.items()}
    return [_Old(_key(p), p.replicas, min(p.ready, useful[_key(p)]), useful[_key(p)]) for p in ranked]


def _keep(old: Sequence[_Old], engines: int, most: int) -> dict[PoolKey, int]:
    """Old engines that stay: ready engines first, then engines that may come back; `most` bounds the sum."""
    kept: dict[PoolKey, int] = {}
    for pool in old:
        kept[pool.key] = min(pool.ready, engines)
        engines -= kept[pool.key]
        most -= kept[pool.key]
    engines = max(0, min(engines, most))
    for pool in old:
        more = min(pool.useful - pool.ready, engines)
        kept[pool.key] += more
        engines -= more
    return kept


def _grow(
    start: Mapping[Role, int],
    limit: Mapping[Role, int],
    desired: Mapping[Role, int],
    rooms: Mapping[tuple[Role, ...], int],
) -> dict[Role, int]:
    """Add engines one by one to the role that is furthest below the ratio, until its track has no room."""
    counts = {role: start[role] for roles in rooms for role in roles}
    free = {role: roles for roles in rooms for role in roles}
    used = {roles: sum(counts[role] for role in roles) for roles in rooms}
    unit = prod(n for n in desired.values() if n)
    while short := [role for role in counts if counts[role] < limit[role]]:
        role = min(short, key=lambda role: counts[role] * unit // desired[role])
        if used[free[role]] >= rooms[free[role]]:
            break
        counts[role] += 1
        used[free[role]] += 1
    return counts


def _key(pool: ObservedPool) -> PoolKey:
    return pool.revision, pool.role


def _is_gone(pool: ObservedPool) -> bool:
    return pool.replicas == 0 and pool.pods == 0 and pool.settled


def _phase(desired: Mapping[Role, int], new: Mapping[Role, ObservedPool], old: Sequence[ObservedPool]) -> Phase:
    complete = all(role in new and _is_complete(new[role], n) for role, n in desired.items())
    if any(pool.replicas for pool in old) or (old and not complete):
        return Phase.ROLLING
    if not complete:
        return Phase.STARTING
    return Phase.RETIRING if old else Phase.COMPLETE


def _unproven(unproven: Unproven, revision: str, message: str) -> tuple[Phase, str]:
    if unproven.broken is None:
        return Phase.ROLLING, f"{message}; the old engines stay until the gateway has probed KV between the new ones"
    text = f"the rollout to {revision} has stopped, and the old engines serve: KV does not move between the new ones"
    return Phase.STOPPED, f"{text} ({unproven.broken.sentence}); correct the spec, or set it back"


def _is_complete(pool: ObservedPool, desired: int) -> bool:
    return pool.settled and pool.replicas == desired and pool.ready >= desired


def _message(
    phase: Phase,
    revision: str,
    desired: Mapping[Role, int],
    new: Mapping[Role, ObservedPool],
    old: Sequence[ObservedPool],
) -> str:
    ready = " and ".join(
        f"{min(new[role].ready, n) if role in new else 0} of {n} {role}" for role, n in desired.items()
    )
    old_revisions = " and ".join(sorted({pool.revision for pool in old if pool.replicas or phase is Phase.RETIRING}))
    match phase:
        case Phase.ROLLING if old_revisions:
            return f"rolling from {old_revisions} to {revision}: {ready} engines of the new revision are ready"
        case Phase.RETIRING:
            return f"all engines run revision {revision}; the last engines of {old_revisions} are terminating"
        case Phase.ROLLING | Phase.STOPPED | Phase.STARTING:
            return f"{ready} engines of revision {revision} are ready"
        case Phase.COMPLETE:
            return f"all engines run revision {revision}"
