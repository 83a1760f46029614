"""The CRD on a real API server: what it refuses and how, what it fills in, what kubectl shows."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client

from pdx_api.names import API_VERSION, GROUP, KIND, PLURAL, VERSION, ConditionType, Mode, Order
from pdx_api.spec.parse import parse
from pdx_api.spec.status import Condition, GatewayStatus, RoleStatus, Status
from pdx_cluster.app.cluster import Cluster
from pdx_cluster.errors import ClusterError
from tests.broken_rules import RULES
from tests.pddeployments import FULL, GOOD, Body, as_stored, changed
from tests.wrong_shapes import ERRORS, NONEXISTENT

ROOT = Path(__file__).parents[2]
CRD = ROOT / "crds" / f"{GROUP}_{PLURAL}.yaml"
EXAMPLES = sorted((ROOT / "examples").rglob("*.yaml"))

Cause = tuple[str, str]


@pytest.fixture(scope="module")
def installed(control_plane: Cluster) -> Cluster:
    """The cluster with the CRD, installed by a client-side apply: it must fit into an annotation."""
    control_plane.kubectl("apply", "-f", str(CRD))
    control_plane.kubectl("wait", "--for=condition=Established", f"crd/{PLURAL}.{GROUP}", "--timeout=20s")
    return control_plane


@pytest.fixture(scope="module")
def api(installed: Cluster) -> Iterator[client.CustomObjectsApi]:
    settings = client.Configuration(host=installed.url, ssl_ca_cert=str(installed.authority))
    settings.api_key = {"authorization": f"Bearer {installed.token}"}
    with client.ApiClient(settings) as connection:
        yield client.CustomObjectsApi(connection)


def create(api: client.CustomObjectsApi, body: Body) -> Body:
    """What the API server would store."""
    stored = api.create_namespaced_custom_object(
        GROUP, VERSION, "default", PLURAL, body, dry_run="All", field_validation="Strict"
    )
    assert isinstance(stored, dict)
    return stored


def refusal(api: client.CustomObjectsApi, body: Body) -> Body:
    """The API server's answer to an object that it must refuse."""
    with pytest.raises(client.ApiException) as raised:
        create(api, body)
    answer = json.loads(raised.value.body or "")
    assert isinstance(answer, dict)
    return answer


def causes(api: client.CustomObjectsApi, body: Body) -> list[Cause]:
    """Field and message of each cause, without the remark that rules wait for a right shape."""
    found = refusal(api, body)["details"]["causes"]
    return [(cause["field"], cause["message"]) for cause in found if cause["field"] != "<nil>"]


def at(body: Any, field: str) -> Any:
    """The value at a field as the API server writes it: a.b[0].c[key]."""
    for step in re.findall(r"[^.\[\]]+|(?<=\[)[^\]]+", field):
        if body is None:
            return None
        body = body[int(step)] if isinstance(body, list) else body.get(step)
    return body


def invalid(body: Body, field: str, message: str) -> Cause:
    """A broken rule: with the value where that is no object."""
    value = at(body, field) if field != "metadata.name" else None
    shown = f"{json.dumps(value)}: " if isinstance(value, str | int) else ""
    return field, f"Invalid value: {shown}{message}"


def test_there_are_enough_wrong_objects() -> None:
    assert len(RULES) + len(ERRORS) + len(NONEXISTENT) >= 70


@pytest.mark.parametrize(("path", "value", "field", "message"), RULES)
def test_a_broken_rule_is_refused(
    api: client.CustomObjectsApi, path: str, value: object, field: str, message: str
) -> None:
    body = changed(path, value)
    assert causes(api, body) == [invalid(body, field, message)]


@pytest.mark.parametrize(("path", "value", "field", "message", "_sentence"), ERRORS)
def test_a_wrong_shape_is_refused(
    api: client.CustomObjectsApi, path: str, value: object, field: str, message: str, _sentence: str
) -> None:
    assert causes(api, changed(path, value)) == [(field, message)]


@pytest.mark.parametrize(("path", "value", "field", "_sentence"), NONEXISTENT)
def test_an_undefined_field_is_refused(
    api: client.CustomObjectsApi, path: str, value: object, field: str, _sentence: str
) -> None:
    prefix = f'{KIND} in version "{VERSION}" cannot be handled as a {KIND}: strict decoding error'
    assert refusal(api, changed(path, value))["message"] == f'{prefix}: unknown field "{field}"'


@pytest.mark.parametrize("body", [GOOD, FULL, *(yaml.safe_load(path.read_text()) for path in EXAMPLES)])
def test_a_good_object_is_stored_with_the_defaults_of_the_types(api: client.CustomObjectsApi, body: Body) -> None:
    stored = create(api, body)["spec"]
    config = stored["kvTransfer"].pop("config")
    expected = parse(body).spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    expected["kvTransfer"].pop("config")
    assert stored == as_stored(expected, stored)
    assert config == parse(body).spec.kv_transfer.config


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("order", Order)
def test_mode_and_order_are_free(api: client.CustomObjectsApi, mode: Mode, order: Order) -> None:
    body = changed("spec.kvTransfer.order", str(order))
    body["spec"]["mode"] = str(mode)
    assert create(api, body)["spec"]["kvTransfer"]["order"] == order


@pytest.mark.parametrize("how", [(), ("--server-side",)], ids=["client-side", "server-side"])
def test_a_second_apply_changes_nothing(installed: Cluster, namespace: str, how: tuple[str, ...]) -> None:
    for _ in range(2):
        installed.kubectl("apply", "-n", namespace, *how, "-f", "-", stdin=json.dumps(FULL))
    stored = json.loads(installed.kubectl("get", "pdd", "qwen", "-n", namespace, "-o", "json"))
    assert stored["metadata"]["generation"] == 1
    assert parse(stored).spec == parse(FULL).spec


def test_kubectl_reports_what_is_wrong(installed: Cluster) -> None:
    misspelt, impossible = changed("spec.modell", {}), changed("spec.decode", None)
    with pytest.raises(ClusterError, match=r'unknown field "spec\.modell"'):
        installed.kubectl("apply", "-f", "-", stdin=json.dumps(misspelt))
    message = (
        r"The PDDeployment \"qwen\" is invalid: spec: Invalid value: mode Disaggregated needs spec\.decode; write "
    )
    with pytest.raises(ClusterError, match=message):
        installed.kubectl("apply", "-f", "-", stdin=json.dumps(impossible))


def test_kubectl_get_shows_what_is_in_force(installed: Cluster, namespace: str) -> None:
    installed.kubectl("apply", "-n", namespace, "-f", "-", stdin=json.dumps(GOOD))
    fresh = installed.kubectl("get", "pdd", "-n", namespace).splitlines()
    assert fresh[0].split() == ["NAME", "PREFILL", "DECODE", "READY", "KV", "REASON", "AGE"]
    patch = {"status": STATUS.model_dump(mode="json", by_alias=True, exclude_none=True)}
    arguments = ("pdd", "qwen", "-n", namespace, "--subresource=status", "--type=merge")
    installed.kubectl("patch", *arguments, "-p", json.dumps(patch))
    row = installed.kubectl("get", "pdd", "-n", namespace).splitlines()[1].split()
    assert row[:6] == ["qwen", "1/2", "2/3", "False", "Unknown", LONGEST_REASON]
    head, line = installed.kubectl("get", "pdd", "-n", namespace, "-o", "wide").splitlines()
    wide = {
        title: line[head.index(title) :].split()[0] for title in ("MODEL", "GATEWAY", "MODE ", "CONNECTOR", "ORDER")
    }
    assert list(wide.values()) == [GOOD["spec"]["model"]["name"], "1/1", "Disaggregated", "NIXL", "PrefillFirst"]
    stored = json.loads(installed.kubectl("get", "pdd", "qwen", "-n", namespace, "-o", "json"))
    assert stored["status"] == patch["status"]
    installed.kubectl("wait", "--for=condition=Available", "pdd/qwen", "-n", namespace, "--timeout=5s")


def test_what_kubectl_get_shows_fits_into_a_terminal(installed: Cluster, namespace: str) -> None:
    name = "q" * 20
    installed.kubectl("apply", "-n", namespace, "-f", "-", stdin=json.dumps({**GOOD, "metadata": {"name": name}}))
    many = [role.model_copy(update={"ready": "100/100"}) for role in STATUS.roles or ()]
    unknown = [_condition(kind, "Unknown") for kind in ConditionType]
    status = STATUS.model_copy(update={"roles": many, "conditions": unknown})
    patch = json.dumps({"status": status.model_dump(mode="json", by_alias=True, exclude_none=True)})
    installed.kubectl("patch", "pdd", name, "-n", namespace, "--subresource=status", "--type=merge", "-p", patch)
    shown = installed.kubectl("get", "pdd", "-n", namespace).splitlines()
    assert name in shown[1]
    assert max(map(len, shown)) + len("365d") - len("0s") <= TERMINAL


def _condition(kind: ConditionType, status: Any) -> Condition:
    return Condition(
        type=kind,
        status=status,
        reason="Tested",
        message="A test wrote this.",
        observed_generation=1,
        last_transition_time="2026-01-02T03:04:05Z",
    )


LONGEST_REASON = "UnexpectedAdmissionError"
TERMINAL = 100
"""Columns."""
STATUS = Status(
    observed_generation=1,
    url="http://qwen-gateway.llm.svc",
    mode=Mode.DISAGGREGATED,
    connector="NIXL",
    order=Order.PREFILL_FIRST,
    image="vllm/vllm-openai:v0.32.0",
    revision="0123456789",
    roles=[
        RoleStatus(
            role=role,
            desired_replicas=desired,
            replicas=desired,
            ready_replicas=ready,
            updated_replicas=desired,
            revision="0123456789",
            ready=f"{ready}/{desired}",
        )
        for role, desired, ready in (("prefill", 2, 1), ("decode", 3, 2))
    ],
    gateway=GatewayStatus(desired_replicas=1, ready_replicas=1, ready="1/1"),
    reason=LONGEST_REASON,
    conditions=[
        _condition(ConditionType.AVAILABLE, "True"),
        _condition(ConditionType.READY, "False"),
        _condition(ConditionType.KV_TRANSFER_VERIFIED, "Unknown"),
    ],
)


def test_kubectl_explains_fields(installed: Cluster) -> None:
    spec = installed.kubectl("explain", "pdd.spec", f"--api-version={API_VERSION}")
    for field in FULL["spec"]:
        assert re.search(rf"^  {field}\t", spec, re.MULTILINE), field
    order = installed.kubectl("explain", "pdd.spec.kvTransfer.order")
    assert "ENUM:\n    PrefillFirst\n    DecodeFirst\n    Concurrent\n" in order
    assert "The engine that gets its request first." in order
