"""Several operators: one of an installation works, and where installations overlap each object has one writer."""

import random
import time
from functools import partial
from typing import Any

import pytest

from pdx_operator.kube.resources import LEASE, PDDEPLOYMENT
from tests.cluster.runtime.conftest import StartOperator
from tests.cluster.runtime.harness import CHILDREN, SYSTEM, Api, Operator, at_rest, essence, eventually, kubelets

pytestmark = pytest.mark.timeout(300)

PHASES: dict[str, dict[str, Any] | None] = {
    "create": None,
    "roll out": {"engine": {"dtype": "float32"}},
    "scale": {"decode": {"replicas": 2}},
}


def _flags(namespace: str, lease: str, seconds: str = "15") -> tuple[str, ...]:
    own = (
        "--own-namespace",
        SYSTEM,
        "--lease-name",
        f"{lease}-{namespace}"[:63].strip("-"),
        "--lease-seconds",
        seconds,
    )
    return ("--namespace", namespace, *own)


def _leads(operator: Operator) -> bool:
    return "pdx_operator_leading 1.0" in operator.get("/metrics")[1]


def _leader(operators: list[Operator]) -> Operator | None:
    return next((operator for operator in operators if _leads(operator)), None)


def _pair(start_operator: StartOperator, flags: tuple[str, ...]) -> tuple[Operator, Operator]:
    """One that leads, and one that has only seen it lead."""
    leader = start_operator(*flags)
    eventually(partial(_leads, leader), what="a leader")
    return leader, start_operator(*flags)


def _lease_writes(operator: Operator) -> float:
    lines = [line for line in operator.get("/metrics")[1].splitlines() if 'verb="PUT"' in line]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def test_the_other_operator_continues_when_the_leader_is_killed(
    api: Api, start_operator: StartOperator, namespace: str
) -> None:
    _killed(api, start_operator, namespace, kills=5, seed=1)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 12))
def test_fifty_kills_of_the_leader(api: Api, start_operator: StartOperator, namespace: str, seed: int) -> None:
    _killed(api, start_operator, namespace, kills=5, seed=seed)


def _killed(api: Api, start_operator: StartOperator, namespace: str, *, kills: int, seed: int) -> None:
    chance, flags, name = random.Random(seed), _flags(namespace, "pdx", "6"), "m"
    operators = list(_pair(start_operator, flags))
    phases = list(PHASES.values())
    with kubelets(api, namespace):
        for kill in range(kills):
            leader = eventually(partial(_leader, operators), what="a leader")
            standby = next(operator for operator in operators if operator is not leader)
            change = phases[kill] if kill < len(phases) else {"engine": {"maxModelLen": 1024 + kill}}
            if change is None:
                api.deploy(namespace)
            else:
                api.change(namespace, change)
            time.sleep(chance.uniform(0, 1.5))
            assert standby.writes() == 0, "a standby writes nothing"
            leader.kill()
            operators = [standby, start_operator(*flags)]
            eventually(partial(_leads, standby), what="the other leads")
        eventually(partial(_settled, api, namespace, name), within=90, what="settled")
        ended = essence(api.children(namespace))
        # A single operator, without interruptions, reaches the same end.
        spec = api.request("GET", PDDEPLOYMENT.path(namespace, name))["spec"]
        api.delete(PDDEPLOYMENT, namespace, name)
        eventually(lambda: not api.children(namespace), what="deleted")
        api.deploy(namespace, name, spec)
        eventually(partial(_settled, api, namespace, name), within=90, what="settled again")
        assert essence(api.children(namespace)) == ended


def _settled(api: Api, namespace: str, name: str) -> bool:
    progressing = api.condition(namespace, "Progressing", name)
    complete = api.is_ready(namespace, name) and progressing.get("status") == "False"
    return complete and len(api.children(namespace, name)) == CHILDREN


def test_an_end_hands_over_at_once_and_a_settled_operator_only_renews(
    api: Api, start_operator: StartOperator, namespace: str
) -> None:
    leader, standby = _pair(start_operator, _flags(namespace, "pdx"))
    with kubelets(api, namespace):
        api.deploy(namespace)
        eventually(partial(_settled, api, namespace, "m"), what="settled")
        before, renewals = at_rest(leader.object_writes), _lease_writes(leader)
        eventually(lambda: _lease_writes(leader) >= renewals + 2, what="renewals")
        assert leader.object_writes() == before
        assert standby.writes() == 0
        name = _flags(namespace, "pdx")[5]
        holder = _holder(api, name)
        leader.end()
        assert _holder(api, name) != holder, "released, so the other need not wait until it expires"
        eventually(partial(_leads, standby), what="the other leads")
        assert _holder(api, name) not in ("", holder)


def _holder(api: Api, name: str) -> str:
    """The identity in a Lease; empty when it was released."""
    holder: str = (api.get(LEASE, SYSTEM, name) or {})["spec"]["holderIdentity"]
    return holder


def test_overlapping_installations_do_not_write_each_others_objects(
    api: Api, start_operator: StartOperator, namespace: str
) -> None:
    owner = start_operator(*_flags(namespace, "one"))
    with kubelets(api, namespace):
        api.deploy(namespace)
        eventually(partial(_settled, api, namespace, "m"), what="settled")
        holder = api.status(namespace)["operator"]
        assert holder.startswith(f"{SYSTEM}/one-")
        other = start_operator(*_flags(namespace, "two"))
        metric = "pdx_operator_ownership_conflicts_total 1.0"
        eventually(lambda: metric in other.get("/metrics")[1], what="the conflict")
        api.change(namespace, {"decode": {"replicas": 2}})
        eventually(partial(_settled, api, namespace, "m"), what="settled again")
        assert other.object_writes() == 1, "it created its Lease"
        assert other.text().count("so this operator writes nothing") == 1

        new = holder.replace("/one-", "/two-")
        api.patch(PDDEPLOYMENT, namespace, "m", {"metadata": {"annotations": {"pdx.dev/operator": new}}})
        eventually(lambda: api.status(namespace)["operator"] == new, what="transferred")
        before = at_rest(owner.object_writes)
        api.change(namespace, {"decode": {"replicas": 1}})
        eventually(partial(_settled, api, namespace, "m"), what="settled by the other")
        assert owner.object_writes() == before
