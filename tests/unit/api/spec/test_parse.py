"""`parse`: for an invalid PDDeployment, one sentence with the correction; and what a valid one becomes."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from pdx_api.connectors.base import Site
from pdx_api.connectors.families import Pool
from pdx_api.names import Mode, Role
from pdx_api.render.engines import engine_command, pairing_revision, service_command, side_services
from pdx_api.spec.fields import Part, model_of
from pdx_api.spec.parse import InvalidDeploymentError, parse
from pdx_api.spec.types import PDDeployment, Spec
from pdx_api.words import written
from tests.broken_rules import RULES
from tests.pddeployments import FULL, GONE, GOOD, changed
from tests.wrong_shapes import ERRORS, NONEXISTENT

ROOT = Path(__file__).parents[4]
EXAMPLES = sorted((ROOT / "examples").rglob("*.yaml"))


def spec(path: str = "", value: object = None) -> Spec:
    return parse(changed(f"spec.{path}", value) if path else GOOD).spec


NO_OBJECT: list[tuple[str, object, str]] = [
    ("apiVersion", "v1", "apiVersion is 'v1'; write apiVersion: pdx.dev/v1alpha1."),
    ("kind", "Pod", "kind is 'Pod'; write kind: PDDeployment."),
    ("kind", GONE, "kind is missing; write kind: PDDeployment."),
    ("metadata", GONE, "metadata is missing."),
]
WRONG = [
    *NO_OBJECT,
    *((path, value, sentence) for path, value, _, _, sentence in ERRORS),
    *((path, value, sentence) for path, value, _, sentence in NONEXISTENT),
]


def sentence_about(path: str, value: object) -> str:
    with pytest.raises(InvalidDeploymentError) as raised:
        parse(changed(path, value))
    text = str(raised.value)
    assert "\n" not in text
    assert text.endswith((".", "?"))
    return text


@pytest.mark.parametrize(("path", "value", "sentence"), WRONG)
def test_an_error_is_one_sentence(path: str, value: object, sentence: str) -> None:
    assert sentence_about(path, value) == sentence


@pytest.mark.parametrize(("path", "value", "field", "expected"), RULES)
def test_a_broken_rule_names_its_field(path: str, value: object, field: str, expected: str) -> None:
    """Unlike the API server, `parse` writes keys after a dot, and no field before a rule of spec."""
    text = sentence_about(path, value)
    place = re.sub(r"\[([^0-9\]][^\]]*)\]", r".\1", field)
    if field == "spec.kvTransfer.connector":  # the hint depends on the value
        assert text.startswith(f"{place} is '{value}', which does not exist; ")
        return
    assert text.endswith(f"{expected}.")
    assert text.startswith(place) or (field == "spec" and text == f"{expected}.")


@pytest.mark.parametrize(("prefill", "decode", "saved_for"), [(2, 1, 2), (2, 4, 8), (2, 2, 3)])
def test_mooncake_store_saves_for_a_multiple_of_both(prefill: int, decode: int, saved_for: int) -> None:
    tensors = {role: {"parallelism": {"tensor": count}} for role, count in (("prefill", prefill), ("decode", decode))}
    transfer = {"connector": "MooncakeStore", "config": {"store_tp_size": saved_for}}
    parse(changed("spec", {"model": {"name": "m"}, "kvTransfer": transfer, **tensors}))


@pytest.mark.parametrize("body", [None, 5, "text", [], [GOOD]])
def test_a_body_that_is_no_mapping(body: object) -> None:
    with pytest.raises(InvalidDeploymentError, match="This is not a PDDeployment"):
        parse(body)


SEVERAL: dict[str, Any] = {
    **GOOD,
    "metadata": {"name": "Qwen"},
    "spec": {
        "model": {"name": "m"},
        "replicas": 2,
        "prefill": {"replicas": None, "nodeSelector": {}},
        "decode": {"args": ["--seed", 1], "parallelism": {"tensor": "two"}},
        "engine": {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s"}}}]},
        "kvTransfer": {"connector": "nixlconnector", "order": "prefillfirst"},
    },
}


def test_every_error_is_reported_with_its_path() -> None:
    with pytest.raises(InvalidDeploymentError) as raised:
        parse(SEVERAL)
    found = {written(problem.path): problem.sentence for problem in raised.value.problems}
    assert str(raised.value) in found.values()
    assert set(found) == {
        "metadata.name",
        "spec.replicas",
        "spec.prefill.nodeSelector",
        "spec.decode.args[1]",
        "spec.decode.parallelism.tensor",
        "spec.engine.env[0].valueFrom.secretKeyRef.key",
        "spec.kvTransfer.connector",
        "spec.kvTransfer.order",
    }
    assert "spec.prefill.podTemplate, in spec" in found["spec.prefill.nodeSelector"]
    assert "write spec.prefill.replicas and spec.decode.replicas" in found["spec.replicas"]


def test_a_rule_between_fields_names_them() -> None:
    body = changed("spec.decode", {"parallelism": {"tensor": 3}})
    body["spec"]["prefill"] = {"parallelism": {"tensor": 2}}
    with pytest.raises(InvalidDeploymentError, match="these engines cannot pair") as raised:
        parse(body)
    (problem,) = raised.value.problems
    assert [written(field) for field in problem.fields] == [
        "spec.prefill.parallelism.tensor",
        "spec.decode.parallelism.tensor",
    ]


RELATED = [(part, field) for part in Part.__subclasses__() for rule in part.rules for field in rule.fields]


@pytest.mark.parametrize(("part", "field"), RELATED)
def test_the_fields_of_a_rule_exist(part: type[BaseModel], field: str) -> None:
    model: type[BaseModel] | None = part
    for step in field.split("."):
        if model is None:
            assert ".config." in field, "a connector's own settings"
            return
        found = {each.alias: each for each in model.model_fields.values()}
        model = model_of(found[step].annotation)


@pytest.mark.parametrize(("name", "hint"), [("kv_transfer", "kvTransfer"), ("max_model_len", "maxModelLen")])
def test_a_field_has_one_name(name: str, hint: str) -> None:
    spec = {**GOOD["spec"], **({name: {}} if name == "kv_transfer" else {"engine": {name: 100}})}
    with pytest.raises(InvalidDeploymentError, match=f"{name} does not exist; did you mean {hint}"):
        parse({**GOOD, "spec": spec})


@pytest.mark.parametrize("owner", ["engine", "decode", "gateway"])
def test_fields_of_pods_belong_into_the_overlay_of_their_part(owner: str) -> None:
    with pytest.raises(InvalidDeploymentError, match=rf"write it in spec\.{owner}\.podTemplate, in spec\."):
        parse({**GOOD, "spec": {**GOOD["spec"], owner: {"imagePullSecrets": [{"name": "registry"}]}}})


def test_every_broken_rule_of_a_part_is_reported() -> None:
    body = changed("spec", {"model": {"name": "m"}, "mode": "Disaggregated"})
    with pytest.raises(InvalidDeploymentError) as raised:
        parse(body)
    text = " ".join(problem.sentence for problem in raised.value.problems)
    assert "needs spec.prefill" in text
    assert "needs spec.decode" in text


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("NixlConnector", "that is a class of vLLM, for which you write NIXL."),
        (
            "NixlPushConnector",
            "that is a class of vLLM, for which you write NIXL with order DecodeFirst or Concurrent.",
        ),
        ("ExampleConnector", "that is a class of vLLM, for which you write SharedStorage."),
        ("LMCacheConnectorV1", "did you mean LMCache?"),
        ("nixl", "did you mean NIXL?"),
        ("Foo", "write one of: NIXL, "),
    ],
)
def test_a_connector_that_does_not_exist(name: str, hint: str) -> None:
    text = sentence_about("spec.kvTransfer.connector", name)
    assert text.startswith(f"spec.kvTransfer.connector is '{name}', which does not exist; {hint}")


@pytest.mark.parametrize("value", [None, True, {"a": None}, [True], 1.5, "x" * 400])
@pytest.mark.parametrize("path", ["spec.decode.replicas", "spec.mode", "spec.engine.args", "spec.model", "kind"])
def test_no_word_of_python(path: str, value: object) -> None:
    try:
        parse(changed(path, value))
    except InvalidDeploymentError as error:
        text = str(error)
    else:
        return
    assert not re.search(r"\b(None|True|False|integer|string|dictionary|NoneType)\b", text), text
    assert len(text) < 200


LEAVES: st.SearchStrategy[object] = (
    st.none() | st.booleans() | st.integers() | st.text(max_size=6) | st.just([]) | st.just({})
)
PATHS = st.sampled_from(sorted({path for path, _, _ in WRONG} | {path for path, _, _, _ in RULES}))


@given(PATHS, LEAVES)
def test_anything_is_parsed_or_refused(path: str, value: object) -> None:
    try:
        assert isinstance(parse(changed(path, value)), PDDeployment)
    except InvalidDeploymentError as error:
        assert str(error).endswith((".", "?"))  # noqa: PT017 (either is right)


def test_every_field_may_be_written() -> None:
    found = parse(FULL)
    assert found.model_dump(mode="json", by_alias=True, exclude_unset=True) == FULL


def test_null_means_absent() -> None:
    assert parse(changed("spec.engine", None)) == parse(changed("spec.decode.env", None)) == parse(GOOD)


def test_an_overlay_is_unchanged() -> None:
    overlay = FULL["spec"]["prefill"]["podTemplate"]
    template = parse(FULL).spec.pools()[Role.PREFILL].pod_template
    assert template is not None
    assert template.overlay() == overlay


@pytest.mark.parametrize(
    ("source", "location"),
    [
        ({"path": "/m/qwen"}, "/m/qwen"),
        ({"persistentVolumeClaim": {"claimName": "c"}}, "/models"),
        ({"persistentVolumeClaim": {"claimName": "c", "path": "qwen/8b"}}, "/models/qwen/8b"),
        (None, "Qwen/Qwen3-8B"),
    ],
)
def test_where_the_model_is(source: object, location: str) -> None:
    assert spec("model.source", source).model.location == location


@pytest.mark.parametrize("argument", ["--model-impl", "--config-format=x", "--no-enable-prefix-caching", "-O3", "x"])
def test_flags_with_the_prefix_of_an_owned_one_are_free(argument: str) -> None:
    assert spec("engine.args", [argument]).engine.args == [argument]


def test_status_is_ignored() -> None:
    assert parse({**GOOD, "status": {"anything": 1}}) == parse(GOOD)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples(path: Path) -> None:
    found = parse(yaml.safe_load(path.read_text())).spec
    services = {service.name: Site("server", service.ports) for service in side_services(found)}
    for role in found.pools():
        site = Site("10.0.0.1", SITE.ports, "/kv", None, services)
        assert engine_command(found, role, site=site, listen="::", port=1).args[0] == "serve"


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 7


SITE = Site("10.0.0.1", {"side-channel": 5600, "bootstrap": 8998})


def flags(found: Spec, role: Role) -> str:
    return " ".join(engine_command(found, role, site=SITE, listen="0.0.0.0", port=8000).args)


def test_engine_command() -> None:
    command = engine_command(spec(), Role.PREFILL, site=SITE, listen="0.0.0.0", port=8000)
    assert command.args == (
        *("serve", "Qwen/Qwen3-8B", "--served-model-name", "Qwen/Qwen3-8B", "--host", "0.0.0.0", "--port", "8000"),
        "--enable-prompt-tokens-details",
        "--kv-transfer-config",
        '{"kv_connector": "NixlConnector", "kv_role": "kv_producer", '
        '"kv_connector_extra_config": {"kv_lease_duration": 30}, "kv_load_failure_policy": "fail"}',
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
    ("decode.parallelism", {"expert": True}, "--enable-expert-parallel"),
    ("decode.chunkedPrefill", {"enabled": False}, "--no-enable-chunked-prefill"),
    ("decode.chunkedPrefill", {"maxBatchedTokens": 77}, "--max-num-batched-tokens 77"),
    ("kvTransfer.onLoadFailure", "Recompute", '"kv_load_failure_policy": "recompute"'),
    ("kvTransfer.order", "DecodeFirst", '"kv_connector": "NixlPushConnector"'),
    ("kvTransfer.order", "Concurrent", '"kv_connector": "NixlPushConnector"'),
    ("kvTransfer.config", {"a": 1}, '"kv_connector_extra_config": {"kv_lease_duration": 30, "a": 1}'),
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


def test_shared_storage_receives_its_directory() -> None:
    storage = {"connector": "SharedStorage", "storage": {"persistentVolumeClaim": {"claimName": "kv"}}}
    found = spec("kvTransfer", storage)
    for role in (Role.PREFILL, Role.DECODE):
        site = Site("10.0.0.1", {}, "/kv/abc")
        given = " ".join(engine_command(found, role, site=site, listen="::", port=8000).args)
        assert '"kv_connector": "ExampleConnector", "kv_role": "kv_both"' in given
        assert '"kv_connector_extra_config": {"shared_storage_path": "/kv/abc"}' in given
        assert "--no-enable-chunked-prefill --no-enable-prefix-caching" in given
    assert found.connector.family(found.order) == Pool()


@pytest.mark.parametrize(("block", "chunk"), [(None, 128), (16, 128), (128, 128), (48, 48), (256, 256)])
def test_the_spec_sizes_lmcaches_server(block: int | None, chunk: int) -> None:
    given = {"connector": "LMCache", "poolSize": "512Mi"}
    found = spec("kvTransfer", given) if block is None else parse(changed("spec.engine.blockSize", block)).spec
    found = found.model_copy(update={"kv_transfer": spec("kvTransfer", given).kv_transfer})
    (server,) = side_services(found)
    command = " ".join(service_command(found, server, Site("0.0.0.0", server.ports)))
    assert command.startswith("lmcache server --host 0.0.0.0 --port 5555 ")
    assert command.endswith(f"--chunk-size {chunk} --eviction-policy LRU --l1-size-gb 0.5")
    default = spec("kvTransfer", {"connector": "LMCache"})
    assert service_command(default, server, Site("::", server.ports))[-1] == "4"


def test_aggregated_has_no_connector() -> None:
    found = spec("mode", "Aggregated")
    assert found.pools()[Role.AGGREGATED].replicas == 3
    assert "--kv-transfer-config" not in flags(found, Role.AGGREGATED)
    assert found.mode is Mode.AGGREGATED


@pytest.mark.parametrize(("path", "value", "_flag"), FLAGS)
def test_a_pairing_field_changes_the_revision(path: str, value: object, _flag: str) -> None:
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
def test_another_field_keeps_the_revision(path: str, value: object) -> None:
    assert pairing_revision(spec(path, value)) == pairing_revision(spec())


def test_programs_ignore_fields_of_a_newer_crd() -> None:
    newer = changed("spec.gateway", {"compression": {"level": 3}, "workers": 2})
    newer["spec"] |= {"newer": [1]}
    newer["spec"]["engine"] = {"env": [{"name": "A", "value": "b", "from": "c"}]}
    with pytest.raises(InvalidDeploymentError, match="does not exist"):
        parse(newer)
    found = parse(newer, tolerant=True).spec
    assert (found.gateway.workers, found.engine.env[0].value) == (2, "b")
    assert pairing_revision(found) == pairing_revision(spec("engine", {"env": [{"name": "A", "value": "b"}]}))


def test_programs_still_refuse_values_that_they_do_not_have() -> None:
    body = changed("spec.kvTransfer", {"connector": "NextYears", "newer": 1})
    with pytest.raises(InvalidDeploymentError, match="which does not exist; write one of"):
        parse(body, tolerant=True)


def test_tolerance_keeps_free_form_fields() -> None:
    overlay = {"spec": {"tolerations": [{"key": "a"}], "containers": [{"name": "x", "anything": 1}]}}
    found = parse(changed("spec.prefill.podTemplate", overlay), tolerant=True).spec
    assert found.prefill is not None
    assert found.prefill.pod_template is not None
    assert found.prefill.pod_template.overlay() == overlay
