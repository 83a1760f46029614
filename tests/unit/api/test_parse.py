"""A wrong PDDeployment is answered with one sentence that says what to write instead."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pdx_api.connectors import CONNECTORS, choose
from pdx_api.connectors.base import Site
from pdx_api.connectors.families import Rendezvous, Serial
from pdx_api.engines import engine_command, pairing_revision
from pdx_api.names import Mode, Order, Role
from pdx_api.parse import InvalidDeploymentError, parse
from pdx_api.types import PDDeployment, Spec

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
GOOD: dict[str, Any] = {
    "apiVersion": "pdx.dev/v1alpha1",
    "kind": "PDDeployment",
    "metadata": {"name": "qwen"},
    "spec": {"model": {"name": "Qwen/Qwen3-8B"}, "prefill": {"replicas": 2}, "decode": {"replicas": 1}},
}
GONE = object()


def changed(path: str, value: object) -> dict[str, Any]:
    """GOOD with one field set, or taken away."""
    body = copy.deepcopy(GOOD)
    *steps, last = path.split(".")
    inner = body
    for step in steps:
        inner = inner.setdefault(step, {})
    if value is GONE:
        del inner[last]
    else:
        inner[last] = value
    return body


def spec(path: str = "", value: object = None) -> Spec:
    return parse(changed(f"spec.{path}", value) if path else GOOD).spec


MUTATIONS: list[tuple[str, object, str]] = [
    ("apiVersion", "v1", "apiVersion is 'v1'; write apiVersion: pdx.dev/v1alpha1."),
    ("kind", "Pod", "kind is 'Pod'; write kind: PDDeployment."),
    ("kind", GONE, "kind is None; write kind: PDDeployment."),
    ("metadata", GONE, "metadata is missing."),
    ("metadata.name", GONE, "metadata.name is missing."),
    ("metadata.name", "Not_a_label", "metadata.name: string should match pattern"),
    ("metadata.name", "x" * 42, "metadata.name: string should have at most 41 characters"),
    ("spec", GONE, "spec is missing."),
    ("spec.model", GONE, "spec.model is missing."),
    ("spec.model.name", "", "spec.model.name: string should have at least 1 character, not ''."),
    ("spec.modell", {}, "spec.modell does not exist; did you mean model?"),
    ("spec.decode.replica", 1, "spec.decode.replica does not exist; did you mean replicas?"),
    ("spec.kvTransfer.zzz", 1, "spec.kvTransfer.zzz does not exist; it may hold: connector, order, onLoad"),
    ("spec.prefill", GONE, "mode Disaggregated needs spec.prefill; write prefill: {replicas: 1}."),
    ("spec.decode", GONE, "mode Disaggregated needs spec.decode; write decode: {replicas: 1}."),
    ("spec.decode.replicas", -1, "spec.decode.replicas: input should be greater than or equal to 0, not -1."),
    ("spec.decode.replicas", "many", "spec.decode.replicas: input should be a valid integer"),
    ("spec.kvTransfer.connector", "Nope", "connector 'Nope' does not exist; write one of: NIXL."),
    ("spec.kvTransfer.order", "Sideways", "spec.kvTransfer.order: input should be 'PrefillFirst', 'DecodeFirst' or"),
    ("spec.mode", "Both", "spec.mode: input should be 'Disaggregated' or 'Aggregated', not 'Both'."),
    ("spec.engine.args", ["--port=1"], "spec.engine.args may not hold --port: PDX writes it from the other fields"),
    ("spec.engine.args", ["--kv_transfer_config", "{}"], "spec.engine.args may not hold --kv-transfer-config: PDX"),
    ("spec.decode.args", ["--kv-transfer-config.kv_role", "x"], "spec.decode.args may not hold --kv-transfer-config"),
    ("spec.model.source", {"path": "relative"}, "spec.model.source.path: string should match pattern '^/'"),
    ("spec.engine.env", [{"name": "1A", "value": ""}], "spec.engine.env.0.name: string should match pattern"),
    ("spec.gateway.workers", 0, "spec.gateway.workers: input should be greater than or equal to 1, not 0."),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value", "sentence"), MUTATIONS)
def test_what_is_wrong_is_said_in_a_sentence(path: str, value: object, sentence: str) -> None:
    with pytest.raises(InvalidDeploymentError) as raised:
        parse(changed(path, value))
    text = str(raised.value)
    assert text.startswith(sentence)
    assert "\n" not in text
    assert text.endswith((".", "?"))


@pytest.mark.parametrize("body", [None, 5, "text", [], [GOOD]])
def test_what_is_no_mapping(body: object) -> None:
    with pytest.raises(InvalidDeploymentError, match="This is not a PDDeployment"):
        parse(body)


LEAVES: st.SearchStrategy[object] = (
    st.none() | st.booleans() | st.integers() | st.text(max_size=6) | st.just([]) | st.just({})
)
PATHS = st.sampled_from([path for path, _, _ in MUTATIONS])


@given(PATHS, LEAVES)
def test_anything_is_parsed_or_refused(path: str, value: object) -> None:
    try:
        assert isinstance(parse(changed(path, value)), PDDeployment)
    except InvalidDeploymentError as error:
        assert str(error).endswith((".", "?"))  # noqa: PT017 (either is right)


def test_status_is_not_ours() -> None:
    assert parse({**GOOD, "status": {"anything": 1}}) == parse(GOOD)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples(path: Path) -> None:
    found = parse(yaml.safe_load(path.read_text())).spec
    for role in found.pools():
        assert engine_command(found, role, site=SITE, listen="::", port=1).args[0] == "serve"


def test_there_are_examples() -> None:
    assert {path.name for path in EXAMPLES} >= {"qwen.yaml", "tiny-cpu.yaml"}


SITE = Site("10.0.0.1", {"side-channel": 5600})


def flags(found: Spec, role: Role) -> str:
    return " ".join(engine_command(found, role, site=SITE, listen="0.0.0.0", port=8000).args)


def test_engine_command() -> None:
    command = engine_command(spec(), Role.PREFILL, site=SITE, listen="0.0.0.0", port=8000)
    assert command.args == (
        *("serve", "Qwen/Qwen3-8B", "--served-model-name", "Qwen/Qwen3-8B", "--host", "0.0.0.0", "--port", "8000"),
        "--kv-transfer-config",
        '{"kv_connector": "NixlConnector", "kv_role": "kv_producer", "kv_load_failure_policy": "fail"}',
    )
    env = dict(command.env)
    assert (env["VLLM_NIXL_SIDE_CHANNEL_HOST"], env["VLLM_NIXL_SIDE_CHANNEL_PORT"]) == ("10.0.0.1", "5600")


FLAGS: list[tuple[str, object, str]] = [
    ("model.servedName", "mine", "--served-model-name mine"),
    ("model.revision", "main", "--revision main"),
    ("model.source", {"path": "/m"}, "serve /m "),
    ("engine.dtype", "float32", "--dtype float32"),
    ("engine.maxModelLen", 99, "--max-model-len 99"),
    ("engine.kvCacheDtype", "fp8", "--kv-cache-dtype fp8"),
    ("engine.blockSize", 64, "--block-size 64"),
    ("engine.args", ["--enforce-eager"], "--enforce-eager"),
    ("decode.args", ["--seed", "1"], "--seed 1"),
    ("decode.parallelism", {"tensor": 2}, "--tensor-parallel-size 2"),
    ("decode.chunkedPrefill", {"enabled": False}, "--no-enable-chunked-prefill"),
    ("decode.chunkedPrefill", {"maxBatchedTokens": 77}, "--max-num-batched-tokens 77"),
    ("kvTransfer.onLoadFailure", "Recompute", '"kv_load_failure_policy": "recompute"'),
    ("kvTransfer.order", "DecodeFirst", '"kv_connector": "NixlPushConnector"'),
    ("kvTransfer.order", "Concurrent", '"kv_connector": "NixlPushConnector"'),
    ("kvTransfer.config", {"a": 1}, '"kv_connector_extra_config": {"a": 1}'),
]


@pytest.mark.parametrize(("path", "value", "flag"), FLAGS)
def test_a_field_becomes_its_flag(path: str, value: object, flag: str) -> None:
    assert flag not in flags(spec(), Role.DECODE)
    assert flag in flags(spec(path, value), Role.DECODE)
    assert (flag in flags(spec(path, value), Role.PREFILL)) is not path.startswith("decode")


def test_a_roles_environment_wins() -> None:
    body = changed("spec.engine", {"env": [{"name": "A", "value": "engine"}, {"name": "B", "value": "engine"}]})
    body["spec"]["decode"]["env"] = [{"name": "A", "value": "decode"}]
    env = dict(engine_command(parse(body).spec, Role.DECODE, site=SITE, listen="x", port=1).env)
    assert (env["A"], env["B"]) == ("decode", "engine")


def test_aggregated_has_no_connector() -> None:
    found = spec("mode", "Aggregated")
    assert found.pools()[Role.AGGREGATED].replicas == 3
    assert "--kv-transfer-config" not in flags(found, Role.AGGREGATED)
    assert found.mode is Mode.AGGREGATED


@pytest.mark.parametrize(("path", "value", "_flag"), FLAGS)
def test_what_touches_pairing_makes_another_revision(path: str, value: object, _flag: str) -> None:
    assert pairing_revision(spec(path, value)) != pairing_revision(spec())


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("prefill.replicas", 9),
        ("decode.replicas", 9),
        ("decode.resources", {"limits": {"nvidia.com/gpu": 1}}),
        ("gateway.workers", 4),
        ("kvTransfer.order", "PrefillFirst"),
    ],
)
def test_what_does_not_keeps_it(path: str, value: object) -> None:
    assert pairing_revision(spec(path, value)) == pairing_revision(spec())


def test_choose() -> None:
    nixl = CONNECTORS["NIXL"]
    assert choose("NIXL", None) == (nixl, Order.PREFILL_FIRST)
    assert [choose("NIXL", order)[1] for order in Order] == list(Order)
    with pytest.raises(ValueError, match=r"connector 'X' does not exist; write one of: NIXL$"):
        choose("X", None)


def test_families_of_nixl() -> None:
    nixl = CONNECTORS["NIXL"]
    assert isinstance(nixl.family(Order.PREFILL_FIRST), Serial)
    for order in (Order.DECODE_FIRST, Order.CONCURRENT):
        family = nixl.family(order)
        assert isinstance(family, Rendezvous)
        identity = family.identity({"remote_engine_id": "e", "remote_host": "h", "remote_port": "7", "tp_size": 2})
        assert (identity.port, identity.tensor_parallel, identity.pipeline_parallel) == (7, 2, 1)
        params = family.decode_params("id", identity)
        assert (params["remote_request_id"], params["remote_engine_id"], params["tp_size"]) == ("id", "e", 2)
        for broken in ({}, {"remote_engine_id": "e", "remote_host": "h", "remote_port": None}):
            with pytest.raises((KeyError, TypeError, ValueError)):
                family.identity(broken)
