"""The arms of a comparison: their objects, what makes them unequal, free devices, and what a killed run leaves."""

import argparse
import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pdx_api.kube.client import MissingError
from pdx_api.kube.kinds import PDDEPLOYMENT
from pdx_api.names import ConditionType, Role
from pdx_api.spec.parse import parse
from pdx_api.spec.status import Condition, RoleStatus, Status
from pdx_cli.bench import compare
from pdx_cli.bench.analysis.arms import Arm
from pdx_cli.bench.arms.cluster import LABEL, RENEWED, STALE_SECONDS, ClusterArms, not_ready, stale
from pdx_cli.bench.arms.comparable import State, differences, unequal_states
from pdx_cli.bench.arms.devices import free_devices, resource_of
from pdx_cli.bench.arms.layouts import Wish, arm_name, arms_of, devices_in_use, object_of
from pdx_cli.bench.arms.local import LocalArms, clean, leftovers
from pdx_cli.bench.compare import Choices, check_warm, clean_cluster, planned_arms
from pdx_cli.bench.load.connection import Server
from pdx_cli.bench.meters import LocalMeters
from pdx_cli.bench.targets import Target, arm_of, deployment_of
from pdx_cli.errors import CommandError, InputError
from pdx_cli.local.engines import EngineKind
from pdx_cli.runs.run_record import SCRATCH, RunDirectory

GPU = {"resources": {"limits": {"nvidia.com/gpu": 1}}}


def body(**spec: Any) -> dict[str, Any]:
    base = {"model": {"name": "m"}, "prefill": {"replicas": 1, **GPU}, "decode": {"replicas": 3, **GPU}}
    return {
        "apiVersion": "pdx.dev/v1alpha1",
        "kind": "PDDeployment",
        "metadata": {"name": "qwen", "namespace": "llm", "uid": "u", "labels": {"team": "a"}},
        "spec": {**base, **spec},
    }


def arms(devices: int = 4, **more: Any) -> list[Arm]:
    return arms_of(parse(body()).spec, Wish(devices, **more))


def test_the_arms_that_devices_allow() -> None:
    found = arms()
    assert [each.name for each in found] == [
        *("aggregated 4, chunks of 512", "aggregated 4, chunks of 2048", "P:D 1:3", "P:D 2:2", "P:D 3:1"),
    ]
    assert [each.yours for each in found] == [False, False, True, False, False]
    assert [each.name for each in arms(ratios=((2, 2),), chunks=(256,), above=1024)] == [
        *("aggregated 4, chunks of 256", "P:D 2:2", "P:D 2:2 above 1024"),
    ]
    assert devices_in_use(parse(body()).spec) == 4


def test_engines_of_several_devices() -> None:
    large = {"replicas": 1, "resources": {"limits": {"nvidia.com/gpu": 2}}, "parallelism": {"tensor": 2}}
    spec = parse(body(decode=large)).spec
    assert [each.ratio for each in arms_of(spec, Wish(8)) if each.split] == ["1:1", "2:3", "4:2", "6:1"]
    assert next(each.aggregated for each in arms_of(spec, Wish(8))) == 4


@pytest.mark.parametrize(
    ("devices", "more", "part"),
    [(4, {"ratios": ((3, 3),)}, "needs 6 devices and each arm has 4; set --devices 6"), (1, {}, "allow no pair")],
)
def test_arms_that_are_refused(devices: int, more: dict[str, Any], part: str) -> None:
    with pytest.raises(InputError, match=part):
        arms(devices, **more)


def test_an_arm_spaces_its_prompts_where_vllm_can() -> None:
    newer = parse(body(engine={"version": "0.33.0"})).spec
    name = "aggregated 4, chunks of 2048 every {} steps"
    assert [(each.name, each.chunk) for each in arms_of(newer, Wish(4)) if each.interval] == [(name.format(4), 2048)]
    chosen = [each for each in arms_of(newer, Wish(4, intervals=(2, 8))) if not each.split]
    assert [each.name for each in chosen[2:]] == [name.format(2), name.format(8)]
    unstated = parse(body(engine={"image": "registry.example/llm@sha256:" + "0" * 64})).spec
    assert not [each for each in arms_of(unstated, Wish(4)) if each.interval]
    assert len([each for each in arms_of(unstated, Wish(4, intervals=(2,))) if each.interval]) == 1
    with pytest.raises(InputError, match=r"vLLM 0\.32 ignores --prefill-schedule-interval.*leave --intervals out"):
        arms_of(parse(body(engine={"version": "0.32.0"})).spec, Wish(4, intervals=(2,)))


def test_an_older_version_spaces_prompts_with_data_parallelism() -> None:
    ranks = {"aggregated": {"parallelism": {"data": 2}, "resources": {"limits": {"nvidia.com/gpu": 2}}}}
    spec = parse(body(engine={"version": "0.32.0"}, **ranks)).spec
    assert [each.interval for each in arms_of(spec, Wish(4, intervals=(2,))) if not each.split] == [0, 0, 2]


@pytest.mark.parametrize("own", [["--prefill-schedule-interval", "2"], ["--prefill-schedule-interval=2"]])
def test_the_users_own_interval_is_in_no_arm(own: list[str]) -> None:
    mine = body(engine={"version": "0.33.0"}, decode={"replicas": 3, "args": [*own, "--seed", "1"], **GPU})
    spaced, plain = (object_of(mine, Arm("x", aggregated=4, chunk=512, interval=n), {}, {}) for n in (4, 0))
    assert spaced["spec"]["aggregated"]["args"] == ["--seed", "1", "--prefill-schedule-interval", "4"]
    assert plain["spec"]["aggregated"]["args"] == ["--seed", "1"]
    shared = body(engine={"version": "0.33.0", "args": own})
    assert object_of(shared, Arm("x", aggregated=4, chunk=512), {}, {})["spec"]["engine"]["args"] == []


@pytest.mark.parametrize(
    ("engine", "version"),
    [
        ({"version": "0.33.1"}, "0.33.0"),
        ({"version": "0.32.0"}, "0.33.0"),
        ({"image": "registry.example/llm@sha256:" + "0" * 64}, "0.33.0"),
    ],
)
def test_simulated_engines_of_such_an_arm_space_their_prompts(
    engine: dict[str, str], version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pdx_cli.local.ports.allocate", lambda number, **_: list(range(9000, 9000 + number)))
    arm = Arm("x", aggregated=4, chunk=2048, interval=4)
    deployment = parse(object_of(body(engine=engine), arm, {}, {}))
    layout = LocalArms(Path("/run"), EngineKind.SIM)._layout(deployment, arm, "/run/kv")
    for each in layout.engines:
        parser = argparse.ArgumentParser()
        parser.add_argument("--vllm-version")
        parser.add_argument("--prefill-schedule-interval")
        found, _ = parser.parse_known_args(each.argv)
        assert (found.vllm_version, found.prefill_schedule_interval) == (version, "4")


def test_the_engines_of_such_an_arm_get_the_flag() -> None:
    mine = body(engine={"version": "0.33.0"}, decode={"replicas": 3, "args": ["--seed", "1"], **GPU})
    arm = Arm("x", aggregated=4, chunk=2048, interval=4)
    found = object_of(mine, arm, {}, {})
    assert found["spec"]["aggregated"]["args"] == ["--seed", "1", "--prefill-schedule-interval", "4"]
    assert found["spec"]["decode"]["args"] == ["--seed", "1"]
    assert found["metadata"]["name"] == "qwen-bench-a2048-4"
    own = {"aggregated": {"replicas": 4, "args": ["--prefill-schedule-interval", "2"], **GPU}}
    assert differences(parse(body(**own)).spec) == [], "it differs on purpose"


def test_the_objects_of_arms_leave_the_users_alone() -> None:
    mine = body(routing={"disaggregateAboveTokens": 100})
    kept = str(mine)
    names = set()
    for arm in arms(above=1024):
        found = object_of(mine, arm, {LABEL: "qwen"}, {RENEWED: "7"})
        spec = parse(found).spec
        names.add(found["metadata"]["name"])
        assert found["metadata"] == {
            "name": arm_name("qwen", arm),
            "namespace": "llm",
            "labels": {LABEL: "qwen"},
            "annotations": {RENEWED: "7"},
        }
        assert {str(role): pool.replicas for role, pool in spec.pools().items()} == (
            {"prefill": arm.prefill, "decode": arm.decode} if arm.split else {"aggregated": arm.aggregated}
        )
        if arm.split:
            assert spec.routing.disaggregate_above_tokens == arm.above
        else:
            assert spec.aggregated is not None
            assert spec.aggregated.chunked_prefill.max_batched_tokens == arm.chunk
            assert spec.aggregated.resources.limits == {"nvidia.com/gpu": 1}
    assert len(names) == len(arms(above=1024))
    assert str(mine) == kept


def test_names_are_valid_however_long_the_users_is() -> None:
    arm = Arm("x", True, 100, 100, above=16_777_216)
    found = arm_name("a" * 41, arm)
    assert len(found) <= 41
    assert "-bench-" in found
    assert found != arm_name("a" * 40 + "b", arm)


@pytest.mark.parametrize(
    ("prefill", "part"),
    [
        ({"args": ["--enforce-eager"]}, r"different args \(--enforce-eager\)"),
        ({"args": ["--seed", "1"]}, "--seed"),
        ({"env": [{"name": "A", "value": "1"}]}, r"different env \(A\)"),
        ({"chunkedPrefill": {"enabled": False}}, "chunkedPrefill.enabled"),
        ({"podTemplate": {"spec": {"containers": [{"name": "engine", "image": "other:1"}]}}}, "podTemplates"),
    ],
)
def test_arms_that_differ_are_refused(prefill: dict[str, Any], part: str) -> None:
    spec = parse(body(prefill={"replicas": 1, **GPU, **prefill})).spec
    assert any(re.search(part, each) for each in differences(spec))


def test_what_may_differ() -> None:
    prefill = {"replicas": 1, **GPU, "args": ["--seed=1", "--max-num-batched-tokens", "8192"]}
    decode = {"replicas": 1, "args": ["--seed", "1"], "parallelism": {"tensor": 2}}
    assert differences(parse(body(prefill=prefill, decode=decode)).spec) == []
    assert differences(parse(body()).spec) == []


def test_arms_that_begin_unequally() -> None:
    first = State("a", prefix_caching=True, images=("vllm@1",))
    assert unequal_states([first, replace(first, name="b")]) == []
    assert unequal_states([first]) == []
    assert unequal_states([first, State("b")]) == []
    assert "has a prefix cache and b has none" in unequal_states([first, State("b", prefix_caching=False)])[0]
    assert "runs vllm@1 and b runs vllm@2" in unequal_states([first, State("b", images=("vllm@2",))])[0]


def test_an_arm_that_is_not_warm_fails_alone() -> None:
    check_warm(State("a"))
    with pytest.raises(CommandError, match="b would begin while decode-0 is not warm") as failure:
        check_warm(State("b", ("decode-0",)))
    assert not isinstance(failure.value, InputError), "an InputError would end the whole comparison"


class Gateway:
    """A gateway's admin port whose engine becomes warm after so many readings."""

    def __init__(self, readings: int) -> None:
        self.readings = readings

    async def text(self, url: str, *, seconds: float) -> str:
        if "/metrics" in url:
            return ""
        self.readings -= 1
        state = "Warm" if self.readings < 0 else "Warming"
        engine = {"url": "http://h:1/", "name": "h:1", "role": "decode", "state": state}
        return json.dumps({"endpoints": [engine, {**engine, "url": "http://h:2/", "name": "h:2", "state": "Warm"}]})


@pytest.mark.parametrize(("readings", "seconds", "cold"), [(0, 0.01, ()), (2, 60.0, ()), (9**9, 0.01, ("h:1",))])
async def test_an_arm_begins_when_its_engines_are_warm(
    readings: int, seconds: float, cold: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "_POLL_SECONDS", 0.001)
    meters = LocalMeters("http://admin", Gateway(readings))  # type: ignore[arg-type]
    target = Target("n", Server.of("http://h:3"), meters, arms()[0])
    assert (await compare.state_of(arms()[0], target, seconds)).cold == cold


def node(name: str, gpus: int, *, ready: bool = True, cordoned: bool = False) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    status = {"allocatable": {"nvidia.com/gpu": str(gpus)}, "conditions": conditions}
    return {"metadata": {"name": name}, "spec": {"unschedulable": cordoned}, "status": status}


def pod(on: str, gpus: int, phase: str = "Running", init: int = 0) -> dict[str, Any]:
    def containers(count: int) -> list[dict[str, Any]]:
        return [{"resources": {"requests": {"nvidia.com/gpu": str(count)}}}]

    spec = {"nodeName": on, "containers": containers(gpus), "initContainers": containers(init)}
    return {"spec": spec, "status": {"phase": phase}}


def test_free_devices() -> None:
    nodes = [node("a", 8), node("b", 8), node("c", 8, ready=False), node("d", 8, cordoned=True)]
    pods = [pod("a", 3), pod("a", 1, init=2), pod("a", 4, "Succeeded"), pod("c", 8), {"spec": {}}]
    assert free_devices(nodes, pods, "nvidia.com/gpu") == 8 - 3 - 2 + 8
    assert free_devices(nodes, pods, "amd.com/gpu") == 0
    assert resource_of(parse(body()).spec) == "nvidia.com/gpu"


def test_too_few_devices_are_refused_with_their_number() -> None:
    choices = Choices(None, (512,), (), (), 0)
    with pytest.raises(InputError, match="Each arm needs 4 devices and 3 devices are free"):
        planned_arms(parse(body()), choices, 3)
    found, devices = planned_arms(parse(body()), choices, 4)
    assert (len(found), devices) == (4, 4)
    assert planned_arms(parse(body()), Choices(2, (512,), (), (), 0), 3)[1] == 2


def test_unequal_arms_are_refused_before_anything_starts() -> None:
    differing = body(prefill={"replicas": 1, "args": ["--enforce-eager"]})
    with pytest.raises(InputError, match="different args"):
        planned_arms(parse(differing), Choices(None, (512,), (), (), 0), None)


def arm_object(name: str, renewed: float) -> dict[str, Any]:
    metadata = {"name": name, "uid": name, "labels": {LABEL: "qwen"}, "annotations": {RENEWED: f"{renewed:.0f}"}}
    return {"metadata": metadata, "spec": {}}


def test_arms_of_killed_runs() -> None:
    found = stale(
        [arm_object("old", 1000), arm_object("new", 2000), {"metadata": {"name": "odd"}}], 2000 + STALE_SECONDS
    )
    assert found == (["old", "odd"], ["new"])


class Api:
    """As much of the API server as arms need."""

    def __init__(self, *objects: dict[str, Any]) -> None:
        self.objects = {each["metadata"]["name"]: each for each in objects}
        self.written: list[str] = []
        self.was_written = asyncio.Event()

    async def list(self, kind: object, namespace: str, labelSelector: str = "") -> dict[str, Any]:  # noqa: N803
        key, _, value = labelSelector.partition("=")
        return {"items": [o for o in self.objects.values() if (o["metadata"].get("labels") or {}).get(key) == value]}

    async def get(self, kind: object, namespace: str, name: str) -> dict[str, Any]:
        if name not in self.objects:
            raise MissingError("gone", status=404)
        return self.objects[name]

    async def apply(self, kind: object, manifest: Mapping[str, Any], *, uid: object, manager: str) -> None:
        assert kind is PDDEPLOYMENT
        name = manifest["metadata"]["name"]
        self.written.append(name)
        self.was_written.set()
        self.objects[name] = {**manifest, "metadata": {**manifest["metadata"], "uid": name}}

    async def delete(self, kind: object, namespace: str, name: str, *, uid: str, foreground: bool) -> None:
        assert foreground
        assert self.objects[name]["metadata"]["uid"] == uid
        del self.objects[name]


def cluster(*objects: dict[str, Any], now: float = 5000.0) -> tuple[Api, ClusterArms]:
    api = Api(body(), *objects)
    access = SimpleNamespace(kube=api, namespace="llm", name="qwen")
    return api, ClusterArms(access, body(), "http://x", lambda: now)  # type: ignore[arg-type]


async def test_a_killed_run_is_cleaned_up_and_the_users_object_stays() -> None:
    api, found = cluster(arm_object("qwen-bench-p1d3", 100), arm_object("other", 100))
    assert await clean_cluster(found, everything=False) == ["qwen-bench-p1d3", "other"]
    assert list(api.objects) == ["qwen"]
    assert api.written == []


async def test_a_run_that_goes_on_is_not_disturbed_unless_that_is_requested() -> None:
    api, found = cluster(arm_object("qwen-bench-p1d3", 4990))
    with pytest.raises(CommandError, match="Another `pdx bench` of qwen runs"):
        await clean_cluster(found, everything=False)
    assert len(api.objects) == 2
    assert await clean_cluster(found, everything=True) == ["qwen-bench-p1d3"]
    assert list(api.objects) == ["qwen"]


async def test_only_arms_are_deleted() -> None:
    _, found = cluster()
    with pytest.raises(CommandError, match="is not an arm"):
        await found.remove(["qwen"])


async def test_an_arm_that_is_interrupted_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    api, found = cluster()
    arm = arms()[0]

    async def use() -> None:
        async with found.running(arm):
            raise AssertionError("it never gets ready")

    task = asyncio.create_task(use())
    await api.was_written.wait()
    assert api.written == ["qwen-bench-a512"]
    task.cancel()
    with pytest.raises((asyncio.CancelledError, AttributeError)):
        await task
    assert list(api.objects) == ["qwen"]


def test_when_an_arm_is_ready() -> None:
    def status(**more: Any) -> dict[str, Any]:
        return {"metadata": {"generation": 2}, "status": {"observedGeneration": 2, **more}}

    ready = [{"type": "Ready", "status": "True"}]
    assert not_ready(status(conditions=ready)) == ""
    assert "no condition Ready" in not_ready(status())
    assert "earlier generation" in not_ready({"metadata": {"generation": 3}, "status": {"observedGeneration": 2}})
    assert not_ready(status(conditions=[{"type": "Ready", "status": "False", "message": "No engine."}])) == "No engine"


@pytest.mark.parametrize(
    ("desired", "exist", "ready", "part"),
    [
        (2, 2, 2, ""),
        (2, 2, 1, "1 of 2 decode engines are ready"),
        (2, 1, 1, "1 of 2 decode engines are ready"),
        (2, 0, 0, "0 of 2 decode engines are ready"),
    ],
)
def test_an_arm_waits_for_every_engine(desired: int, exist: int, ready: int, part: str) -> None:
    """With the status as the operator writes it."""
    role = RoleStatus(
        role=Role.DECODE,
        desired_replicas=desired,
        replicas=exist,
        ready_replicas=ready,
        updated_replicas=exist,
        revision="r",
    )
    now = "2026-11-23T00:00:00Z"
    condition = Condition(
        type=ConditionType.READY,
        status="True",
        reason="Ready",
        message="So it is.",
        observed_generation=2,
        last_transition_time=now,
    )
    written = Status(observed_generation=2, roles=[role], conditions=[condition])
    status = written.model_dump(mode="json", by_alias=True, exclude_none=True)
    assert not_ready({"metadata": {"generation": 2}, "status": status}) == part


def test_directories_of_killed_runs(tmp_path: Path) -> None:
    for name in ("qwen-bench-a512", "qwen-bench-p1d3", "qwen", "other-bench-a512"):
        (tmp_path / name / "logs").mkdir(parents=True)
    precious = tmp_path / "home"
    precious.mkdir()
    run = tmp_path / "qwen-bench-a512"
    (run / SCRATCH).write_text(json.dumps({"run": str(run.resolve()), "directories": [str(precious)]}))
    assert clean(leftovers(tmp_path, "qwen")) == ["qwen-bench-a512", "qwen-bench-p1d3"]
    assert precious.is_dir(), "no run made it"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "other-bench-a512", "qwen"]
    assert leftovers(tmp_path / "nowhere", "qwen") == []


def test_the_directory_of_a_run_that_goes_on_is_not_left_over(tmp_path: Path) -> None:
    """Also before it has a record: it holds the lock from its beginning."""
    directory = RunDirectory(tmp_path / "qwen-bench-a512")
    with directory.held("qwen-bench-a512"):
        assert leftovers(tmp_path, "qwen") == []
    assert leftovers(tmp_path, "qwen") == [directory]


def test_engines_that_something_else_scales_count_once() -> None:
    spec = parse(body(prefill={"parallelism": {"data": 2}}, decode={"replicas": None})).spec
    assert devices_in_use(spec) == 2 + 1
    assert arm_of(spec).name == "P:D 1:1"


def test_the_arm_that_an_object_is() -> None:
    assert arm_of(parse(body(routing={"disaggregateAboveTokens": 100})).spec) == Arm(
        "P:D 1:3", True, 1, 3, above=100, yours=True
    )
    assert arm_of(parse(body(mode="Aggregated")).spec) == Arm("aggregated 4", aggregated=4, yours=True)
    own = body(mode="Aggregated", aggregated={"replicas": 2})
    assert arm_of(parse(own).spec) == Arm("aggregated 2", aggregated=2, yours=True)


def test_an_object_that_is_invalid_is_one_sentence() -> None:
    with pytest.raises(CommandError, match=r"The object is invalid, so no gateway serves it: spec\.model") as found:
        deployment_of(body(model=None))
    assert found.value.code == 2
