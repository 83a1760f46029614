"""Replicas that the spec leaves out, paused objects, and gateways that an upgrade of the operator replaces."""

import copy
from typing import Any

import pytest

from pdx_api.names import API_VERSION, KIND, Role
from pdx_operator.kube.resources import ChildKey, Snapshot
from pdx_operator.observed.transfer_report import TransferReport
from pdx_operator.observed.workloads import PodInspection
from pdx_operator.plan.reconcile_plan import Plan, plan
from pdx_operator.render.gateway import Installation
from pdx_operator.status import conditions
from pdx_operator.status.facts import facts_of
from tests.unit.operator.status.built_facts import NOW

Body = dict[str, Any]
GATEWAY = ChildKey("Deployment", "m-gateway")
SPEC: Body = {"model": {"name": "x"}, "prefill": {}, "decode": {}, "rollout": {"maxSurge": 1}}


class World:
    """One object and its children. Pods become ready at once, and deletions are complete at once."""

    def __init__(self, spec: Body, image: str = "gateway:1") -> None:
        metadata = {"name": "m", "namespace": "ns", "uid": "u", "generation": 1, "resourceVersion": "1"}
        self.body: Body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}
        self.live: dict[ChildKey, Body] = {}
        self.image = image

    def plan(self) -> Plan:
        return plan(Snapshot(self.body, self.live), Installation(self.image))

    def step(self) -> Plan:
        step = self.plan()
        for apply in step.applies:
            before = self.live.get(apply.key, {})
            new = copy.deepcopy(apply.manifest)
            new["metadata"].setdefault("uid", f"uid of {apply.key}")
            if apply.key.kind == "Deployment" and "replicas" not in new["spec"]:
                new["spec"]["replicas"] = before.get("spec", {}).get("replicas", 1)
            self.live[apply.key] = new
        for delete in step.deletes:
            del self.live[delete.key]
        for key, body in self.live.items():
            if key.kind == "Deployment":
                n = body["spec"]["replicas"]
                body["status"] = {"observedGeneration": 1, "replicas": n, "updatedReplicas": n, "availableReplicas": n}
        after = self.plan()
        facts = facts_of(Snapshot(self.body, self.live), after, PodInspection(done=True), TransferReport(), NOW)
        self.body["status"] = conditions.build(facts, self.body.get("status") or {}, NOW)
        return step

    def settle(self) -> None:
        for _ in range(60):
            if not self.step().has_writes:
                return
        raise AssertionError("the object does not settle")

    def engines(self, role: Role) -> dict[str, int]:
        """Replicas by name of Deployment."""
        return {k.name: b["spec"]["replicas"] for k, b in self.live.items() if k.name.startswith(f"m-{role}-")
                and k.kind == "Deployment"}  # fmt: skip

    def scale(self, role: Role, replicas: int) -> None:
        (name,) = self.engines(role)
        self.live[ChildKey("Deployment", name)]["spec"]["replicas"] = replicas

    def desired(self, role: Role) -> int:
        return next(int(each["desiredReplicas"]) for each in self.body["status"]["roles"] if each["role"] == role)

    def condition(self, kind: str) -> tuple[str, str]:
        return next((c["status"], c["reason"]) for c in self.body["status"]["conditions"] if c["type"] == kind)


@pytest.fixture
def world() -> World:
    """An object that is as specified."""
    settled = World(SPEC)
    settled.settle()
    return settled


def test_a_role_without_replicas_begins_with_one_engine() -> None:
    world = World(SPEC)
    first = world.step()
    assert all("replicas" not in each.manifest["spec"] for each in first.applies if each.key.kind == "Deployment")
    assert {*world.engines(Role.PREFILL).values(), *world.engines(Role.DECODE).values()} == {1}


def test_a_number_that_another_writer_sets_stays(world: World) -> None:
    world.scale(Role.DECODE, 4)
    assert not world.step().has_writes
    assert list(world.engines(Role.DECODE).values()) == [4]
    assert world.desired(Role.DECODE) == 4
    world.scale(Role.DECODE, 0)
    world.settle()
    assert list(world.engines(Role.DECODE).values()) == [0]
    assert world.condition("Ready") == ("False", "ScaledToZero")


@pytest.mark.parametrize("surge", [0, 1, "25%"])
def test_a_rollout_keeps_the_number(surge: int | str) -> None:
    world = World({**SPEC, "rollout": {"maxSurge": surge}})
    world.settle()
    world.scale(Role.PREFILL, 3)
    world.scale(Role.DECODE, 7)
    world.settle()
    before = set(world.engines(Role.DECODE))
    world.body["spec"] = {**world.body["spec"], "engine": {"dtype": "float32"}}
    world.settle()
    assert list(world.engines(Role.PREFILL).values()) == [3]
    assert list(world.engines(Role.DECODE).values()) == [7]
    assert not before & set(world.engines(Role.DECODE))


def test_a_rollout_that_is_undone_keeps_the_number(world: World) -> None:
    world.scale(Role.DECODE, 7)
    world.settle()
    world.body["spec"] = {**SPEC, "engine": {"dtype": "float32"}}
    for _ in range(3):
        world.step()
    assert len(world.engines(Role.DECODE)) == 2, "the rollout is half done"
    world.body["spec"] = SPEC
    world.settle()
    assert list(world.engines(Role.DECODE).values()) == [7]


def test_without_a_status_the_engines_are_counted(world: World) -> None:
    world.scale(Role.DECODE, 5)
    world.settle()
    del world.body["status"]
    world.body["spec"] = {**SPEC, "engine": {"dtype": "float32"}}
    world.settle()
    assert list(world.engines(Role.DECODE).values()) == [5]


def test_aggregated_engines_without_replicas_begin_with_one() -> None:
    world = World({**SPEC, "mode": "Aggregated"})
    world.settle()
    assert list(world.engines(Role.AGGREGATED).values()) == [1]


def test_the_gateways_number_stays_too(world: World) -> None:
    world.live[GATEWAY]["spec"]["replicas"] = 6
    assert not world.step().has_writes
    assert world.body["status"]["gateway"] == {"desiredReplicas": 6, "readyReplicas": 6, "ready": "6/6"}


def test_a_paused_object_is_not_written(world: World) -> None:
    world.body["spec"] = {**SPEC, "paused": True, "engine": {"dtype": "float32"}}
    key = ChildKey("Service", "m-gateway")
    world.live[key]["spec"]["selector"] = {"app": "other"}
    del world.live[GATEWAY]
    assert not world.step().has_writes
    assert world.condition("Progressing") == ("Unknown", "Paused")
    assert world.condition("Ready") == ("False", "GatewayNotReady")
    assert world.live[key]["spec"]["selector"] == {"app": "other"}
    world.body["spec"] = SPEC
    world.settle()
    assert world.live[key]["spec"]["selector"] != {"app": "other"}
    assert GATEWAY in world.live


def test_a_paused_object_is_available_and_may_differ_from_its_spec(world: World) -> None:
    world.body["spec"] = {**SPEC, "paused": True, "gateway": {"workers": 2}}
    world.settle()
    assert world.condition("Available") == ("True", "Serving")
    assert world.condition("Ready") == ("Unknown", "Paused")
    world.body["spec"] = {**SPEC, "paused": True, "engine": {"dtype": "float32"}}
    world.settle()
    assert world.condition("Ready")[0] == "False"


def test_without_a_gateway_its_children_are_deleted_and_engines_serve(world: World) -> None:
    world.body["spec"] = {**SPEC, "gateway": {"enabled": False}}
    world.settle()
    assert not [key for key in world.live if key.name.startswith("m-gateway")]
    assert world.condition("Available") == ("True", "Serving")
    assert world.condition("Ready") == ("True", "AsSpecified")
    assert world.condition("Progressing") == ("False", "Complete")
    assert world.condition("KVTransferVerified") == ("Unknown", "NoGateway")
    assert {"url", "gateway"}.isdisjoint(world.body["status"])
    assert not world.plan().awaits_pods


def test_a_new_default_image_is_an_upgrade_of_the_gateway(world: World) -> None:
    assert not world.plan().upgrades_gateway
    world.image = "gateway:2"
    step = world.plan()
    assert step.upgrades_gateway
    assert [each.key for each in step.applies] == [GATEWAY]
    waiting = step.without_gateway_upgrade()
    assert not waiting.has_writes
    facts = facts_of(Snapshot(world.body, world.live), waiting, PodInspection(done=True), TransferReport(), NOW)
    status = conditions.build(facts, world.body["status"], NOW)
    assert next(c["reason"] for c in status["conditions"] if c["type"] == "Progressing") == "GatewayUpgradeWaiting"
    assert next(c["status"] for c in status["conditions"] if c["type"] == "Available") == "True"


def test_a_change_of_the_spec_is_no_upgrade(world: World) -> None:
    world.image = "gateway:2"
    for changed in (
        {"gateway": {"workers": 2}},
        {"routing": {"retries": {"attempts": 1}}},
        {"slo": {"ttftMilliseconds": 500}},
        {"kvTransfer": {"verification": {"periodSeconds": 5}}},
        {"engine": {"drainSeconds": 900}},
    ):
        world.body["spec"] = {**SPEC, **changed}
        assert not world.plan().upgrades_gateway, changed
    world.body["spec"] = {**SPEC, "gateway": {"replicas": 2}}
    assert world.plan().upgrades_gateway


HALF: Body = {**SPEC, "decode": {"resources": {"limits": {"rdma/hca": 1}}}}


def test_half_of_rdma_is_invalid_for_new_engines_only(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "could not lock memory" in World(HALF).plan().invalid
    world = World(HALF)
    with monkeypatch.context() as patched:
        patched.setattr("pdx_operator.plan.reconcile_plan.check_rdma", lambda *_: None)
        world.settle()
    assert not world.step().has_writes
    assert world.plan().invalid == ""
    world.body["spec"] = {**HALF, "engine": {"dtype": "float32"}}
    assert "write spec.engine.rdma: {resource: rdma/hca}" in world.plan().invalid
