"""The next step from the engines that exist to those the spec asks for: numbers in, numbers out.

Each step is derived from what is observed; nothing is remembered, so the operator may be started anew at any point.

What makes it more than two rolling updates side by side:

* Engines of one revision pair only among themselves. A new engine counts only as far as its counterparts are ready:
  with the *share* f = min(ready / desired) over the roles, floor(f * desired) engines of each role are usable.
* A decode engine alone can serve a whole request; a prefill engine alone serves nobody.
* Without spare devices (surge 0) something must be lost. Roles then give up engines in turn, each only after the one
  before has come up again, so that at most one of them is short.

Invariants, for every role with desired replicas n, surge s, unavailable u:

* replicas of all revisions together do not exceed n + s, except while more than that exist and are drained;
* old engines are not taken below n - u - floor(f * n): usable new ones and old ones together are at least n - u;
* old revisions are never enlarged, so every rollout ends once the new engines become ready.

When the mode changes, old and new engines have different roles. All roles then share one account, in which any engine
replaces any other; old prefill engines go first, and new decode engines come first.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from math import prod
from typing import Final

from pdx_api.names import Role
from pdx_operator.observed.workloads import PoolState

Key = tuple[str, Role]
"""A pool: revision and role."""

TURNS: Final = (Role.PREFILL, Role.DECODE, Role.AGGREGATED)
"""In which order roles give up engines: while prefill is short, the old decode engines serve alone."""


class Phase(StrEnum):
    """How far the engines are. Also the reason of the condition Progressing."""

    ROLLING = "RollingOut"
    RETIRING = "Retiring"
    STARTING = "Starting"
    COMPLETE = "Complete"


@dataclass(frozen=True, slots=True)
class Budget:
    """How far a rollout may leave the desired replicas, as numbers or percentages of each role's replicas."""

    max_surge: int | str = "25%"
    max_unavailable: int | str = 0


@dataclass(frozen=True, slots=True)
class Allowance:
    """A budget for one role, in engines. One of the two is at least 1."""

    surge: int
    unavailable: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What the engines' Deployments should be now."""

    replicas: Mapping[Key, int]
    """Of every pool that stays, the new revision's included."""
    remove: tuple[str, ...]
    """Names of Deployments and Services of old revisions whose last pod is gone."""
    phase: Phase
    message: str
    """One sentence for the condition Progressing."""
    revision: str
    """Where it leads."""
    surges: bool
    """New engines come up beside old ones, so they need devices beyond those of the desired replicas."""

    @property
    def done(self) -> bool:
        """Only the new revision is left, and all of it is ready."""
        return self.phase is Phase.COMPLETE


@dataclass(frozen=True, slots=True)
class _Old:
    """A pool of an old revision."""

    key: Key
    replicas: int
    ready: int
    standing: int
    """Engines that are ready or may come back. The others are dropped at once: they only hold devices."""


@dataclass(frozen=True, slots=True)
class _Lane:
    """Engines that may replace one another: those of one role, or all of them when the mode changes."""

    roles: tuple[Role, ...]
    """Roles of the new revision, in the order in which they come up."""
    old: tuple[_Old, ...]
    """The last one is drained first."""


def allowance(budget: Budget, replicas: int) -> Allowance:
    """Resolve a budget for `replicas` engines: surge is rounded up, unavailable down, as in Kubernetes.

    If both come out as zero nothing could move, so unavailable counts as 1.
    """
    surge = _resolve(budget.max_surge, replicas, up=True)
    unavailable = min(_resolve(budget.max_unavailable, replicas, up=False), replicas)
    return Allowance(surge, unavailable or (0 if surge else 1))


def _resolve(amount: int | str, replicas: int, *, up: bool) -> int:
    if isinstance(amount, int):
        return amount
    hundredths = int(amount.removesuffix("%")) * replicas
    return (hundredths + 99) // 100 if up else hundredths // 100


def plan(revision: str, desired: Mapping[Role, int], pools: Sequence[PoolState], budget: Budget) -> Plan:
    """The step that follows from `pools` (all engines of one object) towards `desired` engines of `revision`."""
    new = {pool.role: pool for pool in pools if pool.revision == revision and pool.role in desired}
    old = [pool for pool in pools if new.get(pool.role) is not pool]
    replicas = {(revision, role): n for role, n in desired.items()}
    if any(pool.replicas for pool in old):
        replicas |= _step(revision, desired, new, old, budget)
    replicas |= {_key(pool): 0 for pool in old if not pool.replicas}
    gone = [pool for pool in old if _is_gone(pool)]
    for pool in gone:
        del replicas[_key(pool)]
    phase = _phase(desired, new, old)
    message = _sentence(phase, revision, desired, new, old)
    surge = any(allowance(budget, n).surge for n in desired.values())
    if phase is Phase.ROLLING and not surge:
        message += "; spec.rollout.maxSurge is 0, so engines are replaced in their places"
    return Plan(replicas, tuple(pool.name for pool in gone), phase, message, revision, phase is Phase.ROLLING and surge)


@dataclass(frozen=True, slots=True)
class _Account:
    """What a step is decided from, by role of the new revision."""

    desired: Mapping[Role, int]
    allowed: Mapping[Role, Allowance]
    present: Mapping[Role, int]
    ready: Mapping[Role, int]
    lanes: Sequence[_Lane]

    def keep(self, lane: _Lane, drawing: Container[Role]) -> dict[Key, int]:
        """What must stay of the lane's old engines while the roles of `drawing` may be short."""
        share = min((Fraction(self.ready[role], n) for role, n in self.desired.items() if n), default=Fraction(1))
        engines = 0
        for role in lane.roles:
            short = self.allowed[role].unavailable if role in drawing else 0
            engines += max(0, self.desired[role] - short - int(share * self.desired[role]))
        # An old engine that may come back takes no place from a new one that serves.
        return _keep(lane.old, engines, self.room(lane, sum(self.ready[role] for role in lane.roles)))

    def room(self, lane: _Lane, taken: int) -> int:
        """How many engines the lane has room for beside `taken` ones."""
        return sum(self.desired[role] + self.allowed[role].surge for role in lane.roles) - taken

    def fit(self, lane: _Lane, room: int) -> dict[Role, int]:
        """The lane's new engines, without those that must make way for others of it or for old ones."""
        present = {role: self.present[role] for role in lane.roles}
        if sum(present.values()) < room:
            return present
        fair = _grow(dict.fromkeys(lane.roles, 0), self.desired, self.desired, {lane.roles: room})
        return {role: min(n, fair[role]) for role, n in present.items()}


def _step(
    revision: str, desired: Mapping[Role, int], new: Mapping[Role, PoolState], old: Sequence[PoolState], budget: Budget
) -> dict[Key, int]:
    """Replicas of all pools while old engines are left."""
    present = {role: min(new[role].replicas, n) if role in new else 0 for role, n in desired.items()}
    account = _Account(
        desired=desired,
        allowed={role: allowance(budget, n) for role, n in desired.items()},
        present=present,
        ready={role: min(new[role].ready, present[role]) if role in new else 0 for role in desired},
        lanes=_lanes(desired, old),
    )
    limit = _reach(account)
    drawing = _drawing(account, limit)
    replicas: dict[Key, int] = {}
    for lane in account.lanes:
        kept = account.keep(lane, drawing)
        start = account.fit(lane, account.room(lane, sum(kept.values())))
        # Only what has left already makes room, so that the order in which a plan is applied does not matter.
        leaving = sum(new[role].replicas - start[role] for role in lane.roles if role in new)
        free = account.room(lane, sum(pool.replicas for pool in lane.old) + leaving)
        counts = _grow(start, limit, desired, {lane.roles: free})
        replicas |= {(revision, role): n for role, n in counts.items()} | kept
    return replicas


def _reach(account: _Account) -> dict[Role, int]:
    """How far the new engines may come up, in ratio over all roles, once every role has given what it may."""
    rooms = {lane.roles: account.room(lane, sum(account.keep(lane, TURNS).values())) for lane in account.lanes}
    start: dict[Role, int] = {}
    for lane in account.lanes:
        start |= account.fit(lane, rooms[lane.roles])
    return _grow(start, account.desired, account.desired, rooms)


def _drawing(account: _Account, limit: Mapping[Role, int]) -> list[Role]:
    """The roles that may leave engines unavailable: each only once those before it have all that they may have."""
    drawing: list[Role] = []
    for lane, role in [(place, role) for place in account.lanes for role in place.roles]:
        drawing.append(role)
        room = account.room(lane, sum(account.keep(lane, drawing).values()))
        target = _grow(account.fit(lane, room), limit, account.desired, {lane.roles: room})
        if account.ready[role] < target[role]:
            break
    return drawing


def _lanes(desired: Mapping[Role, int], old: Sequence[PoolState]) -> list[_Lane]:
    entries = _by_worth(old)
    if all(pool.role in desired for pool in old if pool.replicas):
        return [
            _Lane((role,), tuple(entry for entry in entries if entry.key[1] is role))
            for role in TURNS
            if role in desired
        ]
    entries.sort(key=lambda entry: entry.key[1] is Role.PREFILL)
    return [
        _Lane(tuple(role for role in (Role.DECODE, Role.PREFILL, Role.AGGREGATED) if role in desired), tuple(entries))
    ]


def _by_worth(old: Sequence[PoolState]) -> list[_Old]:
    """Old pools, those of the revision with the most servers first; among equals the youngest."""
    standing = {_key(pool): pool.replicas if pool.proven else min(pool.ready, pool.replicas) for pool in old}
    servers = {pool.revision: 0 for pool in old}
    created = {pool.revision: pool.created for pool in old}
    for pool in old:
        if pool.role is not Role.PREFILL:
            servers[pool.revision] += standing[_key(pool)]
        created[pool.revision] = min(created[pool.revision], pool.created)
    ranked = sorted(old, key=lambda pool: (servers[pool.revision], created[pool.revision], *_key(pool)), reverse=True)
    # Prefill engines whose revision has no server are of no use to anybody.
    useful = {key: n if servers[key[0]] else 0 for key, n in standing.items()}
    return [_Old(_key(p), p.replicas, min(p.ready, useful[_key(p)]), useful[_key(p)]) for p in ranked]


def _keep(old: Sequence[_Old], engines: int, most: int) -> dict[Key, int]:
    """Which old engines stay: those that are ready before those that may come back, of whom `most` bounds the sum."""
    kept: dict[Key, int] = {}
    for pool in old:
        kept[pool.key] = min(pool.ready, engines)
        engines -= kept[pool.key]
        most -= kept[pool.key]
    engines = max(0, min(engines, most))
    for pool in old:
        more = min(pool.standing - pool.ready, engines)
        kept[pool.key] += more
        engines -= more
    return kept


def _grow(
    start: Mapping[Role, int],
    limit: Mapping[Role, int],
    desired: Mapping[Role, int],
    rooms: Mapping[tuple[Role, ...], int],
) -> dict[Role, int]:
    """Add engines one by one where the ratio lacks them most, until that role's lane has no room."""
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


def _key(pool: PoolState) -> Key:
    return pool.revision, pool.role


def _is_gone(pool: PoolState) -> bool:
    return pool.replicas == 0 and pool.pods == 0 and pool.settled


def _phase(desired: Mapping[Role, int], new: Mapping[Role, PoolState], old: Sequence[PoolState]) -> Phase:
    complete = all(role in new and _is_complete(new[role], n) for role, n in desired.items())
    if any(pool.replicas for pool in old) or (old and not complete):
        return Phase.ROLLING
    if not complete:
        return Phase.STARTING
    return Phase.RETIRING if old else Phase.COMPLETE


def _is_complete(pool: PoolState, desired: int) -> bool:
    return pool.settled and pool.replicas == desired and pool.ready >= desired


def _sentence(
    phase: Phase,
    revision: str,
    desired: Mapping[Role, int],
    new: Mapping[Role, PoolState],
    old: Sequence[PoolState],
) -> str:
    ready = " and ".join(
        f"{min(new[role].ready, n) if role in new else 0} of {n} {role}" for role, n in desired.items()
    )
    leaving = " and ".join(sorted({pool.revision for pool in old if pool.replicas or phase is Phase.RETIRING}))
    match phase:
        case Phase.ROLLING if leaving:
            return f"rolling from {leaving} to {revision}: {ready} engines of the new revision are ready"
        case Phase.RETIRING:
            return f"all engines run revision {revision}; the last ones of {leaving} are ending"
        case Phase.ROLLING | Phase.STARTING:
            return f"{ready} engines of revision {revision} are ready"
        case Phase.COMPLETE:
            return f"all engines run revision {revision}"
