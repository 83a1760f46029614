"""Connector Custom: its description becomes engines, and a protocol for the gateway."""

import json
from typing import Any

import pytest

from pdx_api.connectors import choose, family_of
from pdx_api.connectors.base import Site
from pdx_api.connectors.families import Pool, Pull
from pdx_api.names import Order, Role
from pdx_api.render.engines import engine_command, pairing_revision
from pdx_api.spec.parse import parse
from pdx_api.spec.types import Spec
from tests.pddeployments import changed, custom


def spec(**fields: object) -> Spec:
    return parse(changed("spec.kvTransfer", custom(**fields))).spec


def wiring(spec: Spec, role: Role, code: str | None = None) -> tuple[dict[str, Any], dict[str, str]]:
    command = engine_command(spec, role, site=Site("h", {}, code=code), listen="h", port=1)
    return json.loads(command.args[command.args.index("--kv-transfer-config") + 1]), dict(command.env)


@pytest.mark.parametrize(("role", "kv_role"), [(Role.PREFILL, "kv_producer"), (Role.DECODE, "kv_consumer")])
def test_engines_receive_the_class_and_its_module(role: Role, kv_role: str) -> None:
    config, env = wiring(spec(), role)
    assert config == {
        "kv_connector": "MyConnector",
        "kv_connector_module_path": "my.connector",
        "kv_role": kv_role,
        "kv_load_failure_policy": "fail",
    }
    assert "PYTHONPATH" not in env


def test_a_class_of_vllm_needs_no_module() -> None:
    config, _ = wiring(spec(modulePath=None), Role.PREFILL)
    assert "kv_connector_module_path" not in config


def test_only_the_users_settings_are_passed_on() -> None:
    kv = {**custom(), "config": {"folder": "/kv"}}
    config, _ = wiring(parse(changed("spec.kvTransfer", kv)).spec, Role.DECODE)
    assert config["kv_connector_extra_config"] == {"folder": "/kv"}


def test_code_comes_before_the_users_own_search_path() -> None:
    body = changed("spec.kvTransfer", custom(code={"configMap": {"name": "code"}}))
    assert wiring(parse(body).spec, Role.PREFILL, "/code")[1]["PYTHONPATH"] == "/code"
    body["spec"]["decode"]["env"] = [{"name": "PYTHONPATH", "value": "/mine"}]
    assert wiring(parse(body).spec, Role.DECODE, "/code")[1]["PYTHONPATH"] == "/code:/mine"
    assert wiring(parse(body).spec, Role.DECODE)[1]["PYTHONPATH"] == "/mine"


@pytest.mark.parametrize("params", [{"do_remote_decode": True}, {"save": {"deep": [1, "two"]}}, {}])
def test_the_protocol_contains_prefill_params(params: dict[str, Any]) -> None:
    found = spec(prefillParams=params)
    assert family_of("Custom", found.order, found.protocol) == Pull(params)
    assert found.order is Order.PREFILL_FIRST


def test_vllms_parameter_is_the_default() -> None:
    assert family_of("Custom", Order.PREFILL_FIRST, spec().protocol) == Pull({"do_remote_decode": True})


def test_a_pool_takes_no_parameters() -> None:
    found = spec(family="Pool", savedAfterMilliseconds=1500)
    assert family_of("Custom", found.order, found.protocol) == Pool(saved_after=1.5)


def test_engines_receive_the_shared_directory() -> None:
    command = engine_command(spec(), Role.DECODE, site=Site("h", {}, "/kv/1"), listen="h", port=1)
    assert dict(command.env)["PDX_KV_STORAGE"] == "/kv/1"


def test_other_connectors_have_no_protocol() -> None:
    assert parse(changed("spec.kvTransfer", {})).spec.protocol == ""


@pytest.mark.parametrize(
    "protocol",
    [
        *("x", "{}", "[]", '{"family": "Rendezvous"}', '{"family": "Pull", "prefillParams": 1}'),
        '{"family": "Pool", "savedAfterSeconds": "x"}',
    ],
)
def test_an_invalid_protocol_is_refused(protocol: str) -> None:
    with pytest.raises(ValueError, match=r"the protocol of connector Custom is .*; write JSON"):
        choose("Custom", None, protocol)


@pytest.mark.parametrize("fields", [{"className": "Other"}, {"prefillParams": {"save": True}}, {"modulePath": "m"}])
def test_engines_of_another_protocol_do_not_pair(fields: dict[str, Any]) -> None:
    assert pairing_revision(spec(**fields)) != pairing_revision(spec())
