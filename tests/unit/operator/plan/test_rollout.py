"""Rollouts step by step, on a cluster where every engine is ready at once."""

import pytest

from pdx_api.names import Role
from pdx_api.verification import Broken, Cause
from pdx_operator.observed.workloads import ObservedPool
from pdx_operator.plan.proof import Unproven
from pdx_operator.plan.rollout import Allowance, Budget, Phase, PoolKey, allowance, plan_rollout

P, D, A = Role.PREFILL, Role.DECODE, Role.AGGREGATED


def pool(
    key: PoolKey, replicas: int, ready: int | None = None, *, pods: int | None = None, proven: bool = True
) -> ObservedPool:
    revision, role = key
    return ObservedPool(
        name=f"{revision}-{role}",
        role=role,
        revision=revision,
        replicas=replicas,
        ready=replicas if ready is None else ready,
        settled=True,
        pods=replicas if pods is None else pods,
        created=revision,
        proven=proven,
    )


def run(before: dict[PoolKey, int], desired: dict[Role, int], budget: Budget) -> list[dict[str, int]]:
    """The replicas after each step towards revision b, until a step changes nothing."""
    steps: list[dict[str, int]] = []
    now = before
    while not steps or now != before:
        before = now
        now = dict(plan_rollout("b", desired, [pool(key, n) for key, n in before.items()], budget).replicas)
        steps.append({f"{revision}{role[0].upper()}": n for (revision, role), n in now.items()})
    return steps[:-1]


@pytest.mark.parametrize(
    ("budget", "replicas", "expected"),
    [
        pytest.param(Budget(), 1, Allowance(1, 0), id="the default is one more of one"),
        pytest.param(Budget(), 9, Allowance(3, 0), id="surge is rounded up"),
        pytest.param(Budget(0, "25%"), 7, Allowance(0, 1), id="unavailable is rounded down"),
        pytest.param(Budget(0, "25%"), 3, Allowance(0, 1), id="both zero: one may be missing"),
        pytest.param(Budget(0, 0), 5, Allowance(0, 1), id="no spare device"),
        pytest.param(Budget(1, 5), 2, Allowance(1, 2), id="no more are missing than there are"),
        pytest.param(Budget("29%", 0), 100, Allowance(29, 0), id="without the errors of binary fractions"),
    ],
)
def test_a_budget_is_resolved_as_kubernetes_does(budget: Budget, replicas: int, expected: Allowance) -> None:
    assert allowance(budget, replicas) == expected


def test_without_a_rollout_replicas_follow_the_spec_at_once() -> None:
    step = plan_rollout("a", {P: 5, D: 0}, [pool(("a", P), 1), pool(("a", D), 3)], Budget(0))
    assert step.replicas == {("a", P): 5, ("a", D): 0}
    assert step.phase is Phase.STARTING


def test_a_new_object_gets_all_its_engines_at_once() -> None:
    step = plan_rollout("a", {P: 4, D: 2}, [], Budget())
    assert (step.replicas, step.remove) == ({("a", P): 4, ("a", D): 2}, ())
    assert step.message == "0 of 4 prefill and 0 of 2 decode engines of revision a are ready"


def test_pairs_come_up_and_drain_in_ratio() -> None:
    assert run({("a", P): 4, ("a", D): 2}, {P: 4, D: 2}, Budget()) == [
        {"bP": 1, "bD": 1, "aP": 4, "aD": 2},
        {"bP": 1, "bD": 1, "aP": 3, "aD": 2},
        {"bP": 2, "bD": 1, "aP": 3, "aD": 2},
        {"bP": 2, "bD": 1, "aP": 2, "aD": 1},
        {"bP": 3, "bD": 2, "aP": 2, "aD": 1},
        {"bP": 3, "bD": 2, "aP": 1, "aD": 1},
        {"bP": 4, "bD": 2, "aP": 1, "aD": 1},
        {"bP": 4, "bD": 2, "aP": 0, "aD": 0},
        {"bP": 4, "bD": 2},
    ]


BROKEN_PAIR = Broken(
    "x-prefill-b-1", "x-decode-b-1", "the decode engine has computed a whole prompt by itself", Cause.PORTS
)


@pytest.mark.parametrize("why", [Unproven(), Unproven(BROKEN_PAIR)], ids=["no probe yet", "broken"])
def test_new_engines_replace_no_old_one_while_kv_is_unproven(why: Unproven) -> None:
    old, new = [pool(("a", P), 4), pool(("a", D), 2)], [pool(("b", P), 1), pool(("b", D), 1)]
    kept = {("a", P): 4, ("a", D): 2, ("b", P): 1, ("b", D): 1}
    step = plan_rollout("b", {P: 4, D: 2}, [*old, *new], Budget(), why)
    assert step.replicas == kept
    assert plan_rollout("b", {P: 4, D: 2}, [*old, *new], Budget()).replicas[("a", P)] == 3
    if why.broken is None:
        assert (step.phase, step.message.rpartition("; ")[2]) == (
            Phase.ROLLING,
            "the old engines stay until the gateway has probed KV between the new ones",
        )
    else:
        assert step.phase is Phase.STOPPED
        assert step.message.startswith("the rollout to b has stopped, and the old engines serve: KV does not move")
        assert "x-prefill-b-1 to x-decode-b-1" in step.message


def test_without_an_old_engine_nothing_is_held() -> None:
    step = plan_rollout("b", {P: 1, D: 1}, [pool(("b", P), 1), pool(("b", D), 1)], Budget(), Unproven(BROKEN_PAIR))
    assert step.phase is Phase.COMPLETE


def test_one_pair_without_a_spare_device_moves_prefill_while_the_old_decode_serves() -> None:
    assert run({("a", P): 1, ("a", D): 1}, {P: 1, D: 1}, Budget(0)) == [
        {"bP": 0, "bD": 0, "aP": 0, "aD": 1},
        {"bP": 1, "bD": 0, "aD": 1},
        {"bP": 1, "bD": 0, "aD": 0},
        {"bP": 1, "bD": 1},
    ]


def test_without_a_spare_device_decode_waits_until_the_new_prefill_is_ready() -> None:
    pools = [pool(("b", P), 1, 0), pool(("b", D), 0), pool(("a", D), 1)]
    assert plan_rollout("b", {P: 1, D: 1}, pools, Budget(0)).replicas == {("b", P): 1, ("b", D): 0, ("a", D): 1}


def test_to_one_pool_old_decode_engines_serve_to_the_end() -> None:
    assert run({("a", P): 2, ("a", D): 2}, {A: 4}, Budget()) == [
        {"bA": 1, "aP": 2, "aD": 2},
        {"bA": 1, "aP": 1, "aD": 2},
        {"bA": 2, "aP": 1, "aD": 2},
        {"bA": 2, "aP": 0, "aD": 2},
        {"bA": 3, "aD": 2},
        {"bA": 3, "aD": 1},
        {"bA": 4, "aD": 1},
        {"bA": 4, "aD": 0},
        {"bA": 4},
    ]


def test_from_one_pool_without_a_spare_device_nothing_stops_serving() -> None:
    assert run({("a", A): 2}, {P: 1, D: 1}, Budget(0)) == [
        {"bP": 0, "bD": 0, "aA": 1},
        {"bP": 0, "bD": 1, "aA": 1},
        {"bP": 0, "bD": 1, "aA": 0},
        {"bP": 1, "bD": 1},
    ]


def test_a_superseded_revision_that_never_served_goes_first() -> None:
    pools = [pool(("a", P), 2), pool(("a", D), 2)] + [pool(("x", role), 1, 0, proven=False) for role in (P, D)]
    step = plan_rollout("b", {P: 2, D: 2}, pools, Budget())
    assert step.replicas == {**{("a", r): 2 for r in (P, D)}, **{("x", r): 0 for r in (P, D)}, ("b", P): 0, ("b", D): 0}
    assert step.message.startswith("rolling from a and x to b: 0 of 2 prefill and 0 of 2 decode engines")


def test_of_two_old_revisions_the_one_with_fewer_servers_drains_first() -> None:
    old = [pool((revision, role), n) for revision, n in (("a", 3), ("x", 1)) for role in (P, D)]
    step = plan_rollout("b", {P: 4, D: 4}, [*old, pool(("b", P), 1), pool(("b", D), 1)], Budget())
    assert [step.replicas[key] for key in [("a", P), ("a", D), ("x", P), ("x", D)]] == [3, 3, 0, 0]


def test_old_prefill_engines_without_any_decode_engine_free_their_devices() -> None:
    pools = [pool(("a", P), 1), pool(("a", D), 1, 0, proven=False)]
    assert plan_rollout("b", {P: 1, D: 1}, pools, Budget()).replicas == {
        ("a", P): 0,
        ("a", D): 0,
        ("b", P): 1,
        ("b", D): 1,
    }


def test_engines_that_were_ready_once_are_given_time_to_come_back() -> None:
    pools = [pool(("a", P), 2), pool(("a", D), 2, 0)]
    assert plan_rollout("b", {P: 2, D: 2}, pools, Budget()).replicas == {
        ("a", P): 2,
        ("a", D): 2,
        ("b", P): 1,
        ("b", D): 1,
    }


def test_an_old_pool_is_removed_only_when_its_last_pod_is_gone() -> None:
    new = [pool(("b", P), 1), pool(("b", D), 1)]
    step = plan_rollout("b", {P: 1, D: 1}, [*new, pool(("a", P), 0), pool(("a", D), 0, 0, pods=1)], Budget())
    assert (step.remove, step.phase) == (("a-prefill",), Phase.RETIRING)
    assert step.replicas == {("b", P): 1, ("b", D): 1, ("a", D): 0}
    assert step.message == "all engines run revision b; the last engines of a are terminating"


def test_a_reversed_rollout_goes_back_from_where_it_is() -> None:
    pools = [pool(("b", P), 3), pool(("b", D), 3), pool(("x", P), 1, 0), pool(("x", D), 1, 0)]
    assert plan_rollout("b", {P: 4, D: 4}, pools, Budget()).replicas == {
        ("b", P): 4,
        ("b", D): 4,
        ("x", P): 1,
        ("x", D): 1,
    }


def test_the_message_names_a_rollout_without_surge() -> None:
    pools = [pool(("a", P), 1), pool(("a", D), 1)]
    step = plan_rollout("b", {P: 1, D: 1}, pools, Budget(0))
    assert step.message == (
        "rolling from a to b: 0 of 1 prefill and 0 of 1 decode engines of the new revision are ready; "
        "spec.rollout.maxSurge is 0, so engines are replaced in place"
    )
