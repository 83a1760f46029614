"""Several operators: one of an installation works, and where installations overlap each object has one writer."""

import os
import random
import time
from functools import partial
from typing import Any

import pytest

from benchmarks.operator import FOLDER
from benchmarks.soak.results import print_line, record
from pdx_api.kube.kinds import LEASE, PDDEPLOYMENT
from pdx_cluster.app.cluster import Cluster
from tests.cluster.runtime.audit import Audit, terms
from tests.cluster.runtime.conftest import StartOperator
from tests.cluster.runtime.harness import CHILDREN, SYSTEM, Api, Operator, at_rest, essence, eventually, kubelets

pytestmark = pytest.mark.timeout(300)

PHASES: dict[str, dict[str, Any] | None] = {
    "create": None,
    "roll out": {"engine": {"dtype": "float32"}},
    "scale": {"decode": {"replicas": 2}},
}

STEPS = 24
"""A leader is killed after fewer writes than this; a rollout of one pair takes about as many."""


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


def _pair(start_operator: StartOperator, flags: tuple[str, ...]) -> tuple[Operator, Operator]:
    """One that leads, and one that has only seen it lead."""
    leader = start_operator(*flags)
    eventually(partial(_leads, leader), what="a leader")
    return leader, start_operator(*flags)


def _lease_writes(operator: Operator) -> float:
    lines = [line for line in operator.get("/metrics")[1].splitlines() if 'verb="PUT"' in line]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def test_the_other_operator_continues_when_the_leader_is_killed(
    api: Api, start_operator: StartOperator, namespace: str, control_plane: Cluster
) -> None:
    print_line("kills", _killed(api, start_operator, namespace, control_plane, kills=len(PHASES), seed=1))


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_fifty_kills_of_the_leader(
    api: Api, start_operator: StartOperator, namespace: str, control_plane: Cluster
) -> None:
    seed = int(os.environ.get("SEED") or random.SystemRandom().randrange(1 << 32))
    record("kills", _killed(api, start_operator, namespace, control_plane, kills=50, seed=seed), FOLDER)


def _killed(
    api: Api, start_operator: StartOperator, namespace: str, cluster: Cluster, *, kills: int, seed: int
) -> dict[str, Any]:
    """Kill the leader after a random number of writes of each change. Returns the result."""
    chance, flags, began = random.Random(seed), _flags(namespace, "pdx", "6"), time.monotonic()
    audit, steps = Audit(cluster.audit_log), list[int]()
    leader, standby = _pair(start_operator, flags)
    with kubelets(api, namespace):
        for kill in range(kills):
            before, step = len(audit.of_operators(namespace)), chance.randrange(STEPS)
            _begin(api, namespace, kill)
            eventually(partial(_is_at, step + before, audit, api, namespace), what=f"step {step}")
            if _leads(standby):  # the leader had no processor for so long that its Lease expired, and ended
                leader.kill()
                leader, standby = standby, start_operator(*flags)
            leader.kill()
            steps.append(len(audit.of_operators(namespace)) - before)
            eventually(partial(_leads, standby), what="the other leads")
            leader, standby = standby, start_operator(*flags)
        eventually(partial(_settled, api, namespace, "m"), within=90, what="settled")
        ended = essence(api.children(namespace))
        _assert_one_writer_in_each_term(audit, namespace, flags[5], kills + 1)
        # A single operator, without interruptions, reaches the same end.
        spec = api.request("GET", PDDEPLOYMENT.path(namespace, "m"))["spec"]
        api.delete(PDDEPLOYMENT, namespace, "m")
        eventually(lambda: not api.children(namespace), within=100, what="deleted")
        api.deploy(namespace, "m", spec)
        eventually(partial(_settled, api, namespace, "m"), within=90, what="settled again")
        assert essence(api.children(namespace)) == ended
    seconds = round(time.monotonic() - began)
    return {
        "kills": kills,
        "seed": seed,
        "seconds": seconds,
        "steps": steps,
        "writes": len(audit.of_operators(namespace)),
    }


def _begin(api: Api, namespace: str, kill: int) -> None:
    """Each change but the first and the third is a rollout."""
    change = list(PHASES.values())[kill] if kill < len(PHASES) else {"engine": {"maxModelLen": 1024 + kill}}
    if change is None:
        api.deploy(namespace)
    else:
        api.change(namespace, change)


def _is_at(step: int, audit: Audit, api: Api, namespace: str) -> bool:
    """Whether the operators have written so often, or have nothing left to write."""
    if len(audit.of_operators(namespace)) >= step:
        return True
    return api.is_ready(namespace) and api.condition(namespace, "Progressing")["status"] == "False"


def _assert_one_writer_in_each_term(audit: Audit, namespace: str, lease: str, count: int) -> None:
    found = list(terms(audit.writes(), namespace, lease))
    assert len(found) >= count
    strangers = [
        (term.agent, writers) for term in found for writers in term.writers().items() if writers[1] != {term.agent}
    ]
    assert not strangers
    assert sum(len(term.writes) for term in found) > CHILDREN, "the log shows what is written"


def _settled(api: Api, namespace: str, name: str) -> bool:
    progressing = api.condition(namespace, "Progressing", name)
    complete = api.is_ready(namespace, name) and progressing.get("status") == "False"
    return complete and len(api.children(namespace, name)) == CHILDREN


def test_an_end_hands_over_at_once_and_a_settled_operator_only_renews(
    api: Api, start_operator: StartOperator, namespace: str
) -> None:
    flags = _flags(namespace, "pdx", "9")  # it is renewed every 3 s
    leader, standby = _pair(start_operator, flags)
    with kubelets(api, namespace):
        api.deploy(namespace)
        eventually(partial(_settled, api, namespace, "m"), what="settled")
        before, renewals = at_rest(leader.object_writes), _lease_writes(leader)
        eventually(lambda: _lease_writes(leader) >= renewals + 2, what="renewals")
        assert leader.object_writes() == before
        assert standby.writes() == 0
        name = flags[5]
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
