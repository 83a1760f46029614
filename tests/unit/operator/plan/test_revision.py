"""Version skew between engines: which revision is in force when another version of PDX rendered the engines."""

import copy
import json
from dataclasses import replace
from typing import Any

import pytest

from pdx_api.connectors import CONNECTORS
from pdx_api.connectors.base import Site
from pdx_api.names import API_VERSION, KIND, Role
from pdx_api.render.engines import pairing_revision
from pdx_api.spec.parse import parse
from pdx_operator.kube.resources import ChildKey, Snapshot
from pdx_operator.plan.reconcile_plan import Plan, plan
from pdx_operator.render.gateway import Installation
from pdx_operator.render.objects import digest

Body = dict[str, Any]
Live = dict[ChildKey, Body]

SPEC: Body = {"model": {"name": "x"}, "prefill": {"replicas": 1}, "decode": {"replicas": 1}}
LMCACHE: Body = {**SPEC, "kvTransfer": {"connector": "LMCache"}}
IMAGE: Body = {"podTemplate": {"spec": {"containers": [{"name": "engine", "image": "mirror/vllm:1"}]}}}


def _body(spec: Body) -> Body:
    metadata = {"name": "m", "namespace": "ns", "uid": "u", "generation": 1, "resourceVersion": "1"}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}


def _plan(spec: Body, live: Live | None = None) -> Plan:
    return plan(Snapshot(_body(spec), live or {}), Installation("gateway:1"))


def _settled(spec: Body) -> Live:
    """The children once all pods serve."""
    live: Live = {}
    for apply in _plan(spec).applies:
        body = live[apply.key] = copy.deepcopy(apply.manifest)
        body["metadata"]["uid"] = f"uid of {apply.key}"
        if apply.key.kind == "Deployment":
            n = body["spec"].setdefault("replicas", 1)
            body["status"] = {"observedGeneration": 1, "replicas": n, "updatedReplicas": n, "availableReplicas": n}
    return live


@pytest.fixture
def next_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on as a version of PDX whose connectors have the next wiring number, another port and another flag."""
    for name, connector in list(CONNECTORS.items()):
        services = tuple(
            replace(each, ports={port: number + 1 for port, number in each.ports.items()})
            for each in connector.services
        )
        monkeypatch.setitem(CONNECTORS, name, replace(connector, wiring=connector.wiring + 1, services=services))


def _revisions(step: Plan) -> set[str]:
    return {
        apply.manifest["metadata"]["labels"]["pdx.dev/revision"]
        for apply in step.applies
        if "pdx.dev/role" in apply.manifest["metadata"]["labels"]
        and apply.key.name != "m-gateway"
        and apply.key.kind == "Deployment"
    }


def test_an_upgrade_and_a_rollback_replace_no_engine(request: pytest.FixtureRequest) -> None:
    previous = _settled(SPEC)
    request.getfixturevalue("next_version")
    assert pairing_revision(parse(_body(SPEC)).spec) not in str(previous)
    assert not _plan(SPEC, previous).has_writes
    request.getfixturevalue("monkeypatch").undo()
    assert not _plan(SPEC, previous).has_writes


def test_a_rollback_leaves_engines_of_the_newer_version(request: pytest.FixtureRequest) -> None:
    request.getfixturevalue("next_version")
    newer = _settled(SPEC)
    request.getfixturevalue("monkeypatch").undo()
    assert not _plan(SPEC, newer).has_writes


def test_scaling_adds_engines_of_the_version_in_force(request: pytest.FixtureRequest) -> None:
    previous = _settled(SPEC)
    request.getfixturevalue("next_version")
    (apply,) = _plan({**SPEC, "decode": {"replicas": 3}}, previous).applies
    assert "pdx.dev/wiring" not in apply.manifest["metadata"]["annotations"]
    assert apply.manifest["spec"]["replicas"] == 3


def test_a_role_that_is_rendered_again_gets_a_new_revision_with_its_counterpart(request: pytest.FixtureRequest) -> None:
    previous = _settled(SPEC)
    request.getfixturevalue("next_version")
    changed = {**SPEC, "prefill": {"replicas": 1, "resources": {"limits": {"cpu": 2}}}}
    step = _plan(changed, previous)
    old = {key.name.rpartition("-")[2] for key in previous if key.kind == "Deployment" and "prefill" in key.name}
    assert len(_revisions(step)) == 1
    assert not _revisions(step) & old, "engines with different wiring numbers never pair"
    wiring = {
        a.manifest["metadata"]["annotations"].get("pdx.dev/wiring") for a in step.applies if "decode-" in a.key.name
    }
    assert wiring == {"2"}


def test_with_equal_numbers_a_role_is_rendered_again_in_its_revision() -> None:
    previous = _settled(SPEC)
    step = _plan({**SPEC, "prefill": {"replicas": 1, "resources": {"limits": {"cpu": 2}}}}, previous)
    (apply,) = step.applies
    assert apply.uid


def test_side_services_stay_as_their_engines_expect_them(request: pytest.FixtureRequest) -> None:
    previous = _settled(LMCACHE)
    request.getfixturevalue("next_version")
    step = _plan(LMCACHE, previous)
    assert not step.has_writes, [(apply.key, apply.reason) for apply in step.applies]
    # Another pool restarts the server, so its engines are replaced with it.
    larger = {**LMCACHE, "kvTransfer": {"connector": "LMCache", "poolSize": "8Gi"}}
    servers = {apply.key.name for apply in _plan(larger, previous).applies if "-lmcache-" in apply.key.name}
    assert servers
    assert not servers & {key.name for key in previous}


def test_the_template_of_a_side_service_is_pinned() -> None:
    previous = _settled(LMCACHE)
    (key,) = (key for key in previous if key.kind == "Deployment" and "-lmcache-" in key.name)
    template = previous[key]["spec"]["template"]
    template["spec"]["containers"][0]["args"] = ["as", "another", "version"]
    previous[key]["metadata"]["annotations"]["pdx.dev/template"] = json.dumps(template)
    applied = {apply.key: apply.manifest for apply in _plan(LMCACHE, previous).applies}
    assert all(manifest["spec"]["template"] == template for manifest in applied.values())


WIRINGS = {
    "Custom": (1, "4ac65a1ab1335a35"),
    "LMCache": (1, "1f4a01e0c209a1c7"),
    "LMCacheP2P": (1, "625fafdeabdc247b"),
    "Mooncake": (1, "eff5a07bd2b2645e"),
    "MooncakeStore": (1, "2dd9da81accf1c4b"),
    "NIXL": (1, "0672a1fdb260bea5"),
    "SharedStorage": (1, "8ef2d1c41ca2f7ef"),
}


def _wiring(name: str) -> str:
    connector = CONNECTORS[name]
    site = Site("h", dict(connector.port_names), "/kv", "/code", files="/files", pool_bytes=2**30, revision="r")
    sites = {each.name: Site("s", each.ports) for each in connector.services}
    engines = [
        repr(connector.engine(role, order, replace(site, services=sites), {}))
        for order in connector.orders
        for role in (Role.PREFILL, Role.DECODE)
    ]
    services = [each.command(Site("s", each.ports, services=sites), 1.0, None) for each in connector.services]
    return digest([engines, [list(command) for command in services], [dict(each.ports) for each in connector.services]])


@pytest.mark.parametrize("name", sorted(CONNECTORS))
def test_another_wiring_needs_another_number(name: str) -> None:
    """If this fails, raise the connector's `wiring` unless both versions work together, and record the new hash."""
    assert (CONNECTORS[name].wiring, _wiring(name)) == WIRINGS[name]
