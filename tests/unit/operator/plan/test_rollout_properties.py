"""Rollouts on a simulated cluster: the invariants hold at every step, and every rollout ends."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from pdx_api.names import Role
from pdx_operator.observed.workloads import ObservedPool
from pdx_operator.plan.rollout import Budget, PoolKey, RolloutPlan, allowance, plan_rollout

P, D, A = Role.PREFILL, Role.DECODE, Role.AGGREGATED
Desired = Mapping[Role, int]
STEPS = 600


@dataclass
class Engines:
    """A Deployment: its replicas, its pods (True: ready), and its last status."""

    created: str
    replicas: int = 0
    pods: list[bool] = field(default_factory=list)
    seen: tuple[int, int, int] = (0, 0, 0)
    """Replicas of the spec, pods and ready pods when the status was written."""
    proven: bool = False


class Cluster:
    """Deployments whose controllers lag behind, and whose pods become ready at random."""

    def __init__(self, dice: random.Random, devices: int = 10_000) -> None:
        self.dice, self.devices, self.time = dice, devices, 0
        self.pools: dict[PoolKey, Engines] = {}
        self.broken: set[str] = set()
        self.flaky = 0.0
        """Probability per step that a ready engine becomes unready."""

    def observe(self) -> list[ObservedPool]:
        return [
            ObservedPool(
                name=f"{revision}-{role}",
                role=role,
                revision=revision,
                replicas=pool.replicas,
                ready=pool.seen[2],
                settled=pool.seen[:2] == (pool.replicas, pool.replicas),
                pods=pool.seen[1],
                created=pool.created,
                proven=pool.proven,
            )
            for (revision, role), pool in self.pools.items()
        ]

    def apply(self, step: RolloutPlan, *, killed: bool) -> None:
        """Write a plan in any order; a killed operator writes a part of it."""
        writes = [*step.replicas.items(), *((name, None) for name in step.remove)]
        self.dice.shuffle(writes)
        for target, replicas in writes[: self.dice.randrange(len(writes) + 1) if killed else None]:
            if replicas is None:
                del self.pools[next(key for key in self.pools if f"{key[0]}-{key[1]}" == target)]
            else:
                self.pools.setdefault(target, Engines(f"{self.time:06}")).replicas = replicas  # type: ignore[arg-type]

    def live(self, *, lag: float) -> None:
        """One step of the controllers, the scheduler and the engines."""
        self.time += 1
        for (revision, _), pool in self.pools.items():
            if self.dice.random() < lag:
                continue
            pool.pods.sort(reverse=True)
            free = self.devices - sum(len(other.pods) for other in self.pools.values())
            missing = pool.replicas - len(pool.pods)
            pool.pods[pool.replicas :] = []
            pool.pods += [False] * max(0, min(missing, free))
            if revision not in self.broken:
                pool.pods = [self.dice.random() >= self.flaky if up else self.dice.random() < 0.5 for up in pool.pods]
            count = sum(pool.pods)
            pool.proven |= count == pool.replicas > 0
            pool.seen = (pool.replicas, pool.replicas if free <= 0 else len(pool.pods), count)

    def run(
        self,
        revision: str,
        desired: Desired,
        budget: Budget,
        *,
        steps: int = STEPS,
        lag: float = 0.3,
    ) -> bool:
        """Whether the rollout ends; every step is checked."""
        for _ in range(steps):
            pools = self.observe()
            step = plan_rollout(revision, desired, pools, budget)
            assert step == plan_rollout(revision, desired, list(pools), budget)
            if step.done:
                assert {key: pool.replicas for key, pool in self.pools.items()} == dict(step.replicas)
                assert step.replicas == {(revision, role): n for role, n in desired.items()}
                return True
            check(revision, desired, pools, step, budget)
            self.apply(step, killed=self.dice.random() < 0.3)
            self.live(lag=lag)
        return False


def check(revision: str, desired: Desired, pools: list[ObservedPool], step: RolloutPlan, budget: Budget) -> None:
    """Check the invariants of one step."""
    before = {(pool.revision, pool.role): pool for pool in pools}
    ready = {key: min(pool.ready, pool.replicas) for key, pool in before.items()}
    after = {key: min(ready.get(key, 0), n) for key, n in step.replicas.items()}
    check_totals(desired, before, step, budget)
    check_ratio(revision, desired, before, step, budget)
    servers = sum(n for role, n in desired.items() if role is not P)
    short = sum(allowance(budget, n).unavailable for role, n in desired.items() if role is not P)
    assert serving(after) >= min(serving(ready), servers - short), "fewer servers than allowed"
    for (old, role), pool in before.items():
        if old != revision:
            assert step.replicas.get((old, role), 0) <= pool.replicas, "an old revision grows"
    for name in step.remove:
        gone = next(pool for pool in pools if pool.name == name)
        assert (gone.replicas, gone.pods, gone.settled) == (0, 0, True)
        assert gone.revision != revision


def check_totals(desired: Desired, before: Mapping[PoolKey, ObservedPool], step: RolloutPlan, budget: Budget) -> None:
    """Totals hold even if the plan is applied in the worst order."""
    same_mode = all(role in desired for (_, role), pool in before.items() if pool.replicas)
    for roles in [[role] for role in desired] if same_mode else [[P, D, A]]:
        limit = sum(desired[r] + allowance(budget, desired[r]).surge for r in roles if r in desired)
        present = {key: pool.replicas for key, pool in before.items() if key[1] in roles}
        planned = {key: n for key, n in step.replicas.items() if key[1] in roles}
        most = sum(max(present.get(key, 0), planned.get(key, 0)) for key in present.keys() | planned.keys())
        assert most <= max(limit, sum(present.values())), f"more {roles} than desired and surge"


def check_ratio(
    revision: str, desired: Desired, before: Mapping[PoolKey, ObservedPool], step: RolloutPlan, budget: Budget
) -> None:
    """New engines keep P and D within one engine of their ratio, if no engine may be unavailable."""
    old = sum(pool.replicas for (name, _), pool in before.items() if name != revision)
    if any(step.replicas.get(key, 0) < pool.replicas for key, pool in before.items()):
        return  # Drained engines make room in the next step.
    roles = [role for role, n in desired.items() if n]
    if not old or len(roles) < 2 or any(allowance(budget, desired[role]).unavailable for role in roles):
        return
    grown = {r: n for r in roles if (n := step.replicas[revision, r]) > replicas_of(before, revision, r)}
    for role, n in grown.items():
        least = min(Fraction(step.replicas[revision, other], desired[other]) for other in roles)
        assert Fraction(n - 1, desired[role]) <= least + max(Fraction(1, desired[other]) for other in roles)


def replicas_of(before: Mapping[PoolKey, ObservedPool], revision: str, role: Role) -> int:
    return before[revision, role].replicas if (revision, role) in before else 0


def pairs(engines: Mapping[PoolKey, int], desired: Desired) -> Fraction:
    """The share of the desired pairs that exists, by complete pairs of one revision."""
    roles = [role for role, n in desired.items() if n]
    revisions = {revision for revision, _ in engines}
    return sum((min(Fraction(engines.get((v, r), 0), desired[r]) for r in roles) for v in revisions), Fraction(0))


def serving(engines: Mapping[PoolKey, int]) -> int:
    return sum(n for (_, role), n in engines.items() if role is not P)


counts = st.integers(0, 6)
shapes = st.one_of(
    st.fixed_dictionaries({P: counts, D: st.integers(1, 6)}),
    st.fixed_dictionaries({A: st.integers(1, 8)}),
)
amounts = st.one_of(st.integers(0, 4), st.sampled_from(["0%", "10%", "25%", "34%", "50%", "100%"]))
budgets = st.builds(Budget, amounts, amounts)
dice = st.integers(0, 2**32).map(random.Random)
quick = settings(max_examples=60)


@quick
@given(dice, shapes, shapes, budgets)
def test_every_rollout_ends_and_no_step_breaks_the_budget(
    dice: random.Random, first: Desired, second: Desired, budget: Budget
) -> None:
    cluster = Cluster(dice)
    assert cluster.run("a", first, budget)
    assert cluster.run("b", second, budget)


@quick
@given(dice, st.lists(st.tuples(st.sampled_from("abc"), shapes, budgets, st.integers(1, 12)), min_size=2, max_size=6))
def test_reversed_superseded_and_scaled_rollouts_end(
    dice: random.Random, changes: list[tuple[str, Desired, Budget, int]]
) -> None:
    cluster = Cluster(dice)
    for name, desired, budget, steps in changes:
        # A revision includes the mode.
        cluster.run(name + str(len(desired)), desired, budget, steps=steps)
    name, desired, budget, _ = changes[-1]
    assert cluster.run(name + str(len(desired)), desired, budget)


@quick
@given(dice, shapes, budgets)
def test_complete_pairs_are_never_fewer_than_the_budget_allows(
    dice: random.Random, desired: Desired, budget: Budget
) -> None:
    cluster = Cluster(dice)
    assert cluster.run("a", desired, budget)
    roles = [role for role, n in desired.items() if n]
    allowed = min(Fraction(desired[r] - allowance(budget, desired[r]).unavailable, desired[r]) for r in roles)
    for _ in range(STEPS):
        step = plan_rollout("b", desired, cluster.observe(), budget)
        if step.done:
            return
        cluster.apply(step, killed=dice.random() < 0.3)
        running = {key: min(sum(pool.pods), pool.replicas) for key, pool in cluster.pools.items()}
        assert pairs(running, desired) >= allowed
        cluster.live(lag=0.3)
    raise AssertionError("the rollout does not end")


@quick
@given(dice, shapes, shapes, budgets)
def test_a_revision_that_never_gets_ready_takes_only_what_may_be_unavailable(
    dice: random.Random, first: Desired, second: Desired, budget: Budget
) -> None:
    cluster = Cluster(dice)
    assert cluster.run("a", first, budget)
    cluster.broken.add("b")
    assert not cluster.run("b", second, budget, steps=60)
    servers = sum(n for role, n in first.items() if role is not P)
    planned = sum(n - allowance(budget, n).unavailable for role, n in second.items() if role is not P)
    assert serving({key: sum(pool.pods) for key, pool in cluster.pools.items()}) >= min(servers, planned)
    assert cluster.run("a", first, budget), "reversed"


@quick
@given(dice, shapes, shapes, budgets)
def test_a_revision_that_never_served_makes_way_even_without_spare_devices(
    dice: random.Random, first: Desired, second: Desired, budget: Budget
) -> None:
    cluster = Cluster(dice, devices=max(sum(first.values()), sum(second.values())))
    cluster.broken.add("a")
    cluster.run("a", first, budget, steps=20)
    assert cluster.run("b", second, budget)


@quick
@given(dice, shapes, st.integers(1, 3))
def test_without_spare_devices_a_rollout_in_place_ends(dice: random.Random, desired: Desired, unavailable: int) -> None:
    cluster = Cluster(dice, devices=sum(desired.values()))
    assert cluster.run("a", desired, Budget(0, unavailable))
    assert cluster.run("b", desired, Budget(0, unavailable))


@quick
@given(dice, shapes, shapes, budgets)
def test_scaling_to_zero_and_back_ends_in_any_revision(
    dice: random.Random, first: Desired, second: Desired, budget: Budget
) -> None:
    cluster = Cluster(dice)
    for revision, desired in [
        ("a", first),
        ("a", dict.fromkeys(first, 0)),
        ("b", dict.fromkeys(second, 0)),
        ("b", second),
    ]:
        assert cluster.run(revision, desired, budget)


@quick
@given(dice, st.lists(st.tuples(shapes, budgets), min_size=2, max_size=3))
def test_engines_that_come_and_go_break_no_budget_and_delay_a_rollout_only(
    dice: random.Random, changes: list[tuple[Desired, Budget]]
) -> None:
    cluster = Cluster(dice)
    for number, (desired, budget) in enumerate(changes):
        cluster.flaky = 0.2
        cluster.run(str(number), desired, budget, steps=25)
    cluster.flaky = 0.0
    assert cluster.run(str(number), desired, budget)
