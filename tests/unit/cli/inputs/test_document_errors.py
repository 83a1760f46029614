"""Errors of several fields, of lists, of names and of missing fields: where they are, and what to write."""

import json
from pathlib import Path

import pytest
import yaml

from pdx_cli.errors import InputError
from pdx_cli.inputs.document import load, load_all

EXAMPLE = Path(__file__).parents[4] / "examples" / "tiny-cpu.yaml"
UNEQUAL = """\
apiVersion: pdx.dev/v1alpha1
kind: PDDeployment
metadata: {name: tiny}
spec:
  model: {name: tiny}
  prefill:
    parallelism:
      tensor: 2
  decode:
    parallelism:
      tensor: 3
"""
UNPAIRED = "these engines cannot pair; write parallelism.tensor of prefill and decode so that one divides the other."


@pytest.mark.parametrize(
    ("assignments", "places"),
    [
        ([], "FILE:8 and FILE:11"),
        (["spec.decode.parallelism.tensor=5"], "--set and FILE:8"),
        (["spec.decode.parallelism.tensor=5", "spec.prefill={parallelism: {tensor: 4}}"], "--set"),
    ],
)
def test_an_error_of_several_fields_names_the_line_of_each(assignments: list[str], places: str, tmp_path: Path) -> None:
    file = tmp_path / "unequal.yaml"
    file.write_text(UNEQUAL)
    with pytest.raises(InputError) as raised:
        load(file, assignments)
    assert str(raised.value) == f"{places.replace('FILE', str(file))}: {UNPAIRED}"


def test_a_field_that_is_not_written_has_no_line(tmp_path: Path) -> None:
    file = tmp_path / "short.yaml"
    file.write_text(UNEQUAL.replace("3", "1") + "  routing:\n    deadlines:\n      firstEventSeconds: 1\n")
    with pytest.raises(InputError, match=rf"^{file}:14: spec.routing.deadlines: a hand-off ends with the first event"):
        load(file, [])


@pytest.mark.parametrize("part", ["engine", "prefill"])
@pytest.mark.parametrize(
    ("argument", "reason"),
    [
        ("--port 1", "PDX sets --kv-transfer-config, --host, --port, "),
        ("-tp 2", "PDX sets --kv-transfer-config, "),
        ("--config my.yaml", "this version supports neither multi-node engines "),
        ("--data_parallel_size  2", "the gateway addresses data-parallel ranks; "),
        (
            "--seed 1",
            "vLLM does not split an argument at a blank; write two entries, --seed and its value, or --seed=1.",
        ),
        ("--seed ", "vLLM does not split an argument at a blank; write --seed."),
        (
            "--a {b: =}",
            "vLLM does not split an argument at a blank; write two entries, --a and its value, or --a={b: =}.",
        ),
    ],
)
def test_a_flag_and_its_value_are_not_one_argument(part: str, argument: str, reason: str) -> None:
    with pytest.raises(InputError) as raised:
        load(EXAMPLE, [f"spec.{part}.args={[argument]!r}"])
    assert str(raised.value).startswith(f"--set: spec.{part}.args[0] is '{argument}': {reason}")
    assert not raised.value.details, "one error"


@pytest.mark.parametrize(
    "args",
    [
        ['--hf-overrides={"a": 1, "b": 2}'],
        ["--hf-overrides", '{"a": 1, "b": 2}'],
        ["--chat-template", "- a list", "-1 2", "a -b c", "{{ --x y }}", "--- end"],
        ["--override=--x y"],
    ],
)
def test_values_may_contain_blanks(args: list[str]) -> None:
    assert load(EXAMPLE, [f"spec.engine.args={json.dumps(args)}"]).spec.engine.args == args


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        ("{A: b}", "env is {A: 'b'}; write a list, for example [{name: HF_HUB_OFFLINE, value: '1'}]."),
        ("[A=b]", "env[0] is 'A=b'; write a mapping, for example {name: HF_HUB_OFFLINE, value: '1'}."),
    ],
)
def test_variables_that_are_no_list_of_names_and_values(env: str, sentence: str) -> None:
    with pytest.raises(InputError) as raised:
        load(EXAMPLE, [f"spec.decode.env={env}"])
    assert str(raised.value) == f"--set: spec.decode.{sentence}"
    example = sentence.partition("for example ")[2].removesuffix(".")
    load(EXAMPLE, [f"spec.decode.env={example if example.startswith('[') else f'[{example}]'}"])


@pytest.mark.parametrize("name", [None, "tiny"])
def test_a_name_is_that_of_one_deployment(name: str | None, tmp_path: Path) -> None:
    file = tmp_path / "same.yaml"
    first = EXAMPLE.read_text()
    line = first.splitlines().index("metadata: {name: tiny}") + 1
    file.write_text(f"{first}\n---\n{first}")
    with pytest.raises(InputError) as raised:
        load_all(file, [], name)
    assert str(raised.value) == (
        f"{file}:{line + first.count(chr(10)) + 2}: tiny is the name of two PDDeployments, first on line {line}; "
        "rename one of them, or leave it out."
    )
    file.write_text(f"{first}\n---\n{first.replace('{name: tiny}', '{name: tiny, namespace: other}')}")
    assert len(load_all(file, [])) == 2


def test_one_name_in_two_namespaces(tmp_path: Path) -> None:
    file, first = tmp_path / "namespaces.yaml", EXAMPLE.read_text()
    others = (first.replace("{name: tiny}", new) for new in ("{name: tiny, namespace: b}", "{name: own}"))
    file.write_text("\n---\n".join((first, *others)))
    with pytest.raises(InputError, match=r"has 3 PDDeployments; select one with --name: default/tiny, b/tiny, own\.$"):
        load(file, [])
    with pytest.raises(
        InputError, match=r"has 2 PDDeployments named tiny; write --name with one of: default/tiny, b/tiny\.$"
    ):
        load(file, [], "tiny")
    with pytest.raises(InputError, match=r"has no PDDeployment named c/tiny; it has: default/tiny, b/tiny, own\.$"):
        load(file, [], "c/tiny")
    assert load(file, [], "b/tiny").metadata.namespace == "b"
    assert load(file, [], "default/tiny").metadata.namespace is None
    assert load(file, [], "own").metadata.name == "own"


@pytest.mark.parametrize(
    ("key", "name"), [("true", "true"), ("on", "true"), ("No", "false"), ("~", "null"), ("7", "7")]
)
def test_a_key_that_is_no_text_has_its_line(key: str, name: str, tmp_path: Path) -> None:
    file, text = tmp_path / "key.yaml", EXAMPLE.read_text().rstrip("\n")
    assert text.splitlines()[-1].startswith("  "), "in spec"
    file.write_text(f"{text}\n{key}: 1\n")
    line = len(text.splitlines()) + 1
    with pytest.raises(InputError) as raised:
        load(file, [])
    sentence = f"The object has the key {name}, which is not a text; put it in quotes, or remove it."
    assert str(raised.value) == f"{file}:{line}: {sentence}"


@pytest.mark.parametrize(
    ("field", "example"),
    [
        ("metadata", "metadata: {name: qwen}"),
        ("metadata.name", "name: qwen"),
        ("spec", "spec: {model: {name: Qwen/Qwen3-0.6B}, prefill: {replicas: 1}, decode: {replicas: 1}}"),
        ("spec.model", "model: {name: Qwen/Qwen3-0.6B}"),
        ("spec.model.name", "name: Qwen/Qwen3-0.6B"),
    ],
)
def test_a_missing_field_has_an_example(field: str, example: str) -> None:
    with pytest.raises(InputError) as raised:
        load(EXAMPLE, [f"{field}=null"])
    assert str(raised.value) == f"--set: {field} is missing; write for example {example}."
    value = yaml.safe_load(example)[field.rpartition(".")[2]]
    load(EXAMPLE, [f"{field}={json.dumps(value)}"])


@pytest.mark.parametrize(
    ("assignment", "sentence"),
    [
        ("spec.decode.env[0].value=b", "--set: spec.decode.env[0].name is missing"),
        ("spec.gateway.auth.secretRef={}", "--set: spec.gateway.auth.secretRef.name is missing"),
        ("spec.model.name=null", "--set: spec.model.name is missing"),
    ],
)
def test_a_field_that_is_missing_in_what_a_flag_created_is_a_flags_error(assignment: str, sentence: str) -> None:
    with pytest.raises(InputError) as raised:
        load(EXAMPLE, [assignment])
    assert str(raised.value).startswith(sentence)
