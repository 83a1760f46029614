"""`--set`, and every error of FILE."""

from pathlib import Path
from typing import Any

import pytest

from pdx_api.names import Order
from pdx_cli.errors import CommandError
from pdx_cli.inputs.document import assign, load
from pdx_cli.main import main

EXAMPLE = Path(__file__).parents[4] / "examples" / "tiny-cpu.yaml"


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("spec.a=2", {"spec": {"a": 2, "list": [{"x": 1}]}}),
        ("spec.b=true", {"spec": {"a": 1, "list": [{"x": 1}], "b": True}}),
        ("spec.b=", {"spec": {"a": 1, "list": [{"x": 1}], "b": None}}),
        ("spec.b=x=y", {"spec": {"a": 1, "list": [{"x": 1}], "b": "x=y"}}),
        ("spec.list.0.x=7", {"spec": {"a": 1, "list": [{"x": 7}]}}),
        ("spec.deep.er=[1, 2]", {"spec": {"a": 1, "list": [{"x": 1}], "deep": {"er": [1, 2]}}}),
    ],
)
def test_assign_changes_a_copy(assignment: str, expected: dict[str, Any]) -> None:
    body = {"spec": {"a": 1, "list": [{"x": 1}]}}
    assert assign(body, assignment) == expected
    assert body == {"spec": {"a": 1, "list": [{"x": 1}]}}


def test_connector_code_is_relative_to_the_file() -> None:
    custom = load(EXAMPLE.parent / "connectors" / "custom.yaml", []).spec.kv_transfer.custom
    assert custom is not None
    assert custom.code is not None
    assert custom.code.directory == str(EXAMPLE.parent / "connectors" / "write-your-own")


def test_later_assignments_win() -> None:
    deployment = load(EXAMPLE, ["spec.kvTransfer.order=DecodeFirst", "spec.kvTransfer.order=Concurrent"])
    assert deployment.spec.order is Order.CONCURRENT


@pytest.mark.parametrize(
    ("assignment", "sentence"),
    [
        ("spec.mode", "--set 'spec.mode' is not PATH=VALUE; write for example spec.decode.replicas=2."),
        ("=1", "--set '=1' is not PATH=VALUE; write for example spec.decode.replicas=2."),
        ("spec..a=1", "--set 'spec..a=1' is not PATH=VALUE; write for example spec.decode.replicas=2."),
        ("spec.a=[1", "is not a YAML value"),
        ("spec.model.name.first=x", "--set spec.model.name.first: spec.model.name is 'tiny', which has no fields."),
        (
            "spec.engine.args.7=x",
            "--set spec.engine.args.7: spec.engine.args is a list with 3 entries and has no entry 7.",
        ),
        ("spec.decode.replica=2", "spec.decode.replica does not exist; did you mean replicas?"),
        ("spec.kvTransfer.order=Sideways", "order"),
        ("spec.kvTransfer.connector=Nope", "this connector does not exist; write one of: NIXL, "),
    ],
)
def test_a_wrong_assignment_is_one_sentence(assignment: str, sentence: str) -> None:
    with pytest.raises(CommandError) as raised:
        load(EXAMPLE, [assignment])
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "contains no document"),
        (b"a: 1\n---\nb: 2\n", "contains 2 documents"),
        (b"a: [1\n", "is not YAML: line 2, column 1"),
        (b"\xff\xfe\x00", "is not a text file"),
        (b"just text\n", "This is not a PDDeployment"),
        (b"apiVersion: v1\nkind: Pod\n", "apiVersion is 'v1'; write apiVersion: pdx.dev/v1alpha1."),
    ],
)
@pytest.mark.parametrize("command", ["up", "render"])
def test_a_wrong_file_is_one_sentence(
    command: str, content: bytes, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "deployment.yaml"
    file.write_bytes(content)
    assert main([command, str(file)]) == 1
    _is_one_sentence(capsys, sentence)


def test_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", str(tmp_path / "nope.yaml")]) == 1
    _is_one_sentence(capsys, "nope.yaml does not exist.")


def test_a_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", str(tmp_path)]) == 1
    _is_one_sentence(capsys, "is a directory")


def test_a_file_that_may_not_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refuse)  # root, as which tests may run, reads everything
    assert main(["up", str(tmp_path / "secret.yaml")]) == 1
    _is_one_sentence(capsys, "secret.yaml cannot be read: Permission denied.")


def _is_one_sentence(capsys: pytest.CaptureFixture[str], part: str) -> None:
    out, err = capsys.readouterr()
    assert out == ""
    assert part in err
    assert err.startswith("pdx: ")
    assert err.count("\n") == 1
