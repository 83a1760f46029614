"""Checks of engines: connectors, arguments, and pairs that do not match."""

from typing import Any

import pytest

from pdx_api.names import Mode, Role
from pdx_api.spec.parse import parse
from pdx_cli.checks.findings import Severity
from pdx_cli.sources.observation import Engine
from tests.doctor_observations import BODY, SPEC, args, assert_found, engine, found, without_kv

OTHER_MODEL = ("serve", "/models/qwen", *args(Role.DECODE)[2:])

SETUPS: list[Any] = [
    pytest.param(
        {"engines": (engine(Role.PREFILL), engine(Role.DECODE, args=OTHER_MODEL, rendered=OTHER_MODEL))},
        "ModelsDiffer",
        ["'Qwen/Qwen3-8B'", "'/models/qwen'", "qwen-decode-a-1", "spec.model"],
        id="another model string, by the flags",
    ),
    pytest.param(
        {"engines": (engine(Role.PREFILL, args=()), engine(Role.DECODE, args=(), model="/models/qwen"))},
        "ModelsDiffer",
        ["'/models/qwen'", "vLLM refuses KV"],
        id="another model string, by /v1/models",
    ),
    pytest.param(
        {"engines": (engine(Role.PREFILL, args=without_kv(Role.PREFILL)), engine(Role.DECODE))},
        "ConnectorOff",
        ["prefill engine qwen-prefill-a-1", "--kv-transfer-config"],
        id="P's connector removed",
    ),
    pytest.param(
        {"engines": (engine(Role.PREFILL, names=("q", "sql")), engine(Role.DECODE, names=("q",)))},
        "AdapterMissing",
        ["decode engine qwen-decode-a-1 does not serve 'sql'", "404", "spec.model.adapters"],
        id="D lacks an adapter",
    ),
    pytest.param(
        {"engines": (engine(Role.PREFILL, names=("q",)), engine(Role.DECODE, names=("q", "sql")))},
        "AdapterMissing",
        ["prefill engine qwen-prefill-a-1 does not serve 'sql'", "decode engines then compute its prompts"],
        id="P lacks an adapter",
    ),
    pytest.param(
        {"engines": (engine(Role.PREFILL), engine(Role.DECODE, version="0.31.0"))},
        "VersionsDiffer",
        ["vLLM 0.32.0", "0.31.0", "spec.engine.image"],
        id="another version of vLLM",
    ),
    pytest.param(
        {"engines": (engine(Role.PREFILL), engine(Role.DECODE, args=(*args(Role.DECODE), "--dtype", "float16")))},
        "ArgumentsDiffer",
        ["--dtype is float16 instead of unset"],
        id="other flags than the operator wrote",
    ),
]


@pytest.mark.parametrize(("changes", "cause", "parts"), SETUPS)
def test_cause(changes: dict[str, Any], cause: str, parts: list[str]) -> None:
    assert_found(changes, cause, parts)


@pytest.mark.parametrize(
    ("transfer", "version", "differs"),
    [
        ({"connector": "NIXL"}, "0.32.1", True),
        ({"connector": "NIXL", "config": {"enforce_handshake_compat": False}}, "0.32.0+cpu", False),
        ({"connector": "NIXL", "config": {"enforce_handshake_compat": False}}, "0.33.0", True),
        ({"connector": "Mooncake"}, "0.32.1", False),
        ({"connector": "Mooncake"}, "0.33.0", True),
        ({"connector": "LMCache"}, "0.33.0", False),
    ],
)
def test_versions_differ_as_the_gateway_compares_them(transfer: dict[str, Any], version: str, differs: bool) -> None:
    deployment = parse({**BODY, "spec": {**SPEC, "kvTransfer": transfer}})
    findings = found(deployment=deployment, engines=(engine(Role.PREFILL), engine(Role.DECODE, version=version)))
    assert ("VersionsDiffer" in {each.cause for each in findings}) is differs


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        ('block_size="16",mamba_block_size="512",sliding_window="None"', "layers with state (Mamba)"),
        ('block_size="16",mamba_block_size="None",sliding_window="4096"', "a sliding window"),
        ('block_size="16",mamba_block_size="None",sliding_window="None"', ""),
    ],
)
def test_a_hybrid_model_over_nixl_is_noted(labels: str, text: str) -> None:
    """Once for a deployment. A pool has no parameters that could be read twice."""
    page = f'# HELP\nvllm:cache_config_info{{{labels},engine="0"}} 1.0\n'
    pair = tuple(engine(role, metrics=page) for role in (Role.PREFILL, Role.DECODE))
    notes = [finding for finding in found(engines=pair) if finding.cause == "HybridModel"]
    assert [(note.severity, text in note.sentence) for note in notes] == ([(Severity.NOTE, True)] if text else [])
    alone = tuple(engine(role, metrics=page, args=(), rendered=None) for role in (Role.PREFILL, Role.DECODE))
    assert [finding for finding in found(engines=alone) if finding.cause == "HybridModel"] == []


def test_order_of_json_members_does_not_count() -> None:
    given = list(args(Role.DECODE))
    index = given.index("--kv-transfer-config") + 1
    given[index] = "{" + ",".join(reversed(given[index].strip("{}").split(", "))) + "}"
    assert found(engines=(engine(Role.PREFILL), engine(Role.DECODE, args=tuple(given)))) == []


def test_aggregated_engine_needs_no_connector() -> None:
    alone = Engine("qwen-aggregated-a-1", Role.AGGREGATED, "a", ("serve", "Qwen/Qwen3-8B"))
    assert found(mode=Mode.AGGREGATED, engines=(alone,)) == []
