"""`--set`, and every error of FILE."""

import io
import re
from pathlib import Path
from typing import Any

import pytest

from pdx_api.names import API_VERSION, Order
from pdx_cli.errors import ExitCode, InputError
from pdx_cli.inputs.document import _assigned, _parsed, load
from pdx_cli.inputs.yaml_source import documents_of
from pdx_cli.main import main

EXAMPLE = Path(__file__).parents[4] / "examples" / "tiny-cpu.yaml"


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("spec.a=2", {"spec": {"a": 2, "list": [{"x": 1}]}}),
        ("spec.b=true", {"spec": {"a": 1, "list": [{"x": 1}], "b": True}}),
        ("spec.a=null", {"spec": {"list": [{"x": 1}]}}),
        ("spec.b.c=null", {"spec": {"a": 1, "list": [{"x": 1}]}}),
        ("spec.list[0]=null", {"spec": {"a": 1, "list": []}}),
        ("spec.list[1]=null", {"spec": {"a": 1, "list": [{"x": 1}]}}),
        ("spec.list[0].x=7", {"spec": {"a": 1, "list": [{"x": 7}]}}),
        ("spec.b=x=y", {"spec": {"a": 1, "list": [{"x": 1}], "b": "x=y"}}),
        ("spec.list.0.x=7", {"spec": {"a": 1, "list": [{"x": 7}]}}),
        ("spec.list[1].x=7", {"spec": {"a": 1, "list": [{"x": 1}, {"x": 7}]}}),
        ("spec.new[0]=--seed=1", {"spec": {"a": 1, "list": [{"x": 1}], "new": ["--seed=1"]}}),
        ("spec.new[0].x=1", {"spec": {"a": 1, "list": [{"x": 1}], "new": [{"x": 1}]}}),
        ("spec.deep.er=[1, 2]", {"spec": {"a": 1, "list": [{"x": 1}], "deep": {"er": [1, 2]}}}),
    ],
)
def test_assign_changes_a_copy(assignment: str, expected: dict[str, Any]) -> None:
    body = {"spec": {"a": 1, "list": [{"x": 1}]}}
    assert _assigned(body, _parsed(assignment)) == expected
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
        ("spec.a=2026-13-40", "--set spec.a: 2026-13-40 is no date (month must be in 1..12); put a text in quotes."),
        (
            "spec.prefill={replicas: 1, replicas: 2}",
            "--set spec.prefill: the key replicas appears twice; write it once.",
        ),
        ("spec.model=[{a: {b: 1, b: 1}}]", "--set spec.model: the key b appears twice; write it once."),
        ("spec.prefill.replicas=", "--set spec.prefill.replicas: the value is empty; write null to remove the field"),
        ("spec.model.name.first=x", "--set spec.model.name.first: spec.model.name is 'tiny', which has no fields."),
        (
            "spec.engine.args.7=x",
            "--set spec.engine.args.7: spec.engine.args is a list with 3 entries; write spec.engine.args[3] to append ",
        ),
        (
            "spec.engine.args[-1]=x",
            "--set spec.engine.args[-1]: [-1] is not an index; write a number from 0, for example ",
        ),
        ("spec.engine.args[a]=null", "[a] is not an index; write a number from 0, for example spec.engine.args[0]."),
        ("spec.engine.args[]=null", "[] is not an index; write a number from 0, for example spec.engine.args[0]."),
        ("spec.engine.args[0][x]=null", "[x] is not an index; write a number from 0, for example spec.engine.args[0]."),
        ("spec.engine.args[1=null", "[1 is not an index; write a number from 0, for example spec.engine.args[0]."),
        ("spec.engine.args]=null", "] is not an index; write a number from 0, for example spec.engine.args[0]."),
        ("spec.decode.replica=2", "spec.decode.replica does not exist; did you mean replicas?"),
        ("spec.kvTransfer.order=Sideways", "order"),
        (
            "spec.kvTransfer.connector=Nope",
            "--set: spec.kvTransfer.connector is 'Nope', which does not exist; write one ",
        ),
        ("metadata.name=null", "--set: metadata.name is missing; write for example name: qwen."),
        ("spec.prefil.replicas=2", "--set: spec.prefil does not exist; did you mean prefill?"),
        ("spec.kvTransfer.connector=NixlConnector", "that is a class of vLLM, for which you write NIXL."),
    ],
)
def test_a_wrong_assignment_is_one_sentence(assignment: str, sentence: str) -> None:
    with pytest.raises(InputError) as raised:
        load(EXAMPLE, [assignment])
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)


ALIAS_BOMB = b"".join(
    b"a%d: &a%d [%s]\n" % (i, i, b", ".join([b"*a%d" % (i - 1) if i else b"x"] * 9)) for i in range(9)
)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "contains no PDDeployment; write one."),
        (b"apiVersion: v1\nkind: List\nitems: []\n", "contains no PDDeployment; write one."),
        (b"kind: Pod\n---\nkind: Service\n", "contains no PDDeployment (pdx.dev/v1alpha1), only Pod, Service."),
        (
            b"a: [1\n",
            "is not YAML: line 2, column 1: the text ends before the closing ]; the list with [ began on line 1",
        ),
        (b"a: {b: 1\n", "is not YAML: line 2, column 1: the text ends before the closing }; the mapping with { began"),
        (b"\na: [b\nc: 1\n", "a comma or ] is missing before this; the list with [ began on line 2, column 4."),
        (b"a: 'b\n", "the text ends before the closing quote; the text in quotes began on line 1, column 4."),
        (
            b"a: *n\n",
            ": line 1, column 4: the anchor &n does not exist; define it above this line, or write the value.",
        ),
        (b"a:\n  <<: 1\n", "<< needs a mapping; write the alias of one."),
        (b"a: @b\n", ": line 1, column 4: a text must not begin with @; put it in quotes."),
        (b'a: "\\q"\n', r"\q is no escape; write \\ for a backslash, or use single quotes; the text in "),
        (b"a: 1\nb\nc: 2\n", ": line 3, column 1: this line or the one above needs a colon after its key."),
        (b"%YAML 2.0\n---\na: 1\n", "this line names a version of YAML other than 1.1; remove the line."),
        (b"[" * 3000, "is nested too deep; write fewer levels."),
        (b"apiVersion: v1\nkind: List\nitems: {a: 1}\n", ":3: items of a List is no list; write a list of objects."),
        (b"apiVersion: v1\nkind: List\n", ":1: items of a List is no list; write a list of objects."),
        (b"kind: Pod\n---\nmetadata: {name: x}\n", ":3: kind is missing; write kind: PDDeployment, or remove the "),
        (b"kind: Pod\n---\njust text\n", ":3: 'just text' is not an object; remove it."),
        ("a: 1\nb: ä\n".encode("latin-1"), ": line 2 has a character in another encoding; save the file as UTF-8."),
        ("a: 1\n".encode("utf-16"), "is not a text file (UTF-8), but UTF-16; save it as UTF-8."),
        (b"a:\n    b: 1\n  c: 1\n", ": line 3, column 3: the indentation of this line does not fit the lines above."),
        (b"a: 1\n- b\n", ": line 2, column 1: the indentation of this line does not fit the lines above."),
        (b'a: "b" c\n', ": line 1, column 8: this text does not belong to the value before it."),
        (b"a: b: c\n", "column 5: a colon is not allowed here; put the text in quotes, or indent the line."),
        (b"a: [1, 2,,]\n", ": line 1, column 10: a value is missing before this."),
        (b"a: >x\n  b\n", ": line 1, column 5: expected chomping or indentation indicators, but found 'x'."),
        (b"a: !include b\n", ": line 1, column 4: the tag !include is not supported; remove it."),
        (
            b"a: {{ .Values.b }}\n",
            "a key must be a plain text; if this is a Helm template, render it first with `helm ",
        ),
        (b"a: {b: 1\nc: 1\n", "; the mapping with { began on line 1, column 4."),
        (b"\xff\xfe\x00", "is not a text file (UTF-8)"),
        (b"\xff\x00", "is not a text file (UTF-8)."),
        (b"just text\n", "This is not a PDDeployment"),
        (b"apiVersion: v1\nkind: Pod\n", ":2: This is a Pod (v1), not a PDDeployment (pdx.dev/v1alpha1)."),
        (b"kind: PDDeployment\nkind: Pod\n", ":2: the key kind appears twice, first on line 1; write it once."),
        (b"spec: {a: 1, a: 1}\n", ":1: the key a appears twice, first on line 1; write it once."),
        (b"a: 2026-13-40\n", ":1: 2026-13-40 is no date (month must be in 1..12); put a text in quotes."),
        (b'a: b\nc: ["x\\0y"]\n', ":2: a text has the character U+0000, which no program can receive; remove it."),
        (b'a: "\\ud83d"\n', ":1: a text has the character U+D83D, which no program can receive; remove it."),
        (b'"\\0": a\n', ":1: a text has the character U+0000, which no program can receive; remove it."),
        (
            b"a:\n  b: 0x" + b"f" * 5000,
            ":2: a number has more than 100 characters; write a smaller one, or a text in quotes.",
        ),
        (b"a: " + b"9" * 5000, ":1: a number has more than 100 characters; write a smaller one, or a text in quotes."),
        (b"a:\n\tb: 1\n", "use spaces, no tabs."),
        (b'a: 1\nb: "x\x07"\n', ":2: the character U+0007 is not allowed in YAML; remove it."),
        (b"\x00", ":1: the character U+0000 is not allowed in YAML; remove it."),
        (b"&a [*a]\n", "expands to more than 100000 values; write it without anchors."),
        (ALIAS_BOMB, "expands to more than 100000 values; write it without anchors."),
    ],
)
@pytest.mark.parametrize("command", ["up", "render"])
def test_a_wrong_file_is_one_sentence(
    command: str, content: bytes, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "deployment.yaml"
    file.write_bytes(content)
    assert main([command, str(file)]) == ExitCode.INVALID
    _is_one_sentence(capsys, sentence)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ('a: "abc', "the text ends before the closing quote; the text in quotes began on line 1, column 4"),
        ("a: 'abc", "the text ends before the closing quote; the text in quotes began on line 1, column 4"),
        ('a: "abc\\', "the text ends before the closing quote; the text in quotes began on line 1, column 4"),
        ("a: [", "the text ends before a value"),
        ("a: {\n", "the text ends before a value"),
        ("a: [b,", "the text ends before a value"),
        ("[a, b]]", "this ] closes nothing; remove it"),
        ("a: b\n}\n", "this } closes nothing; remove it"),
        ("a:\n  ]\n", "this ] closes nothing; remove it"),
        ("a: [, b]", "a value is missing before this"),
        ("{,}", "a value is missing before this"),
        ("a: ,b", "a text must not begin with ,; put it in quotes"),
        ("!!str [a]", "the tag !!str does not fit the value after it; remove the tag"),
        ("!!map [b]", "the tag !!map does not fit the value after it; remove the tag"),
        ("!!seq b", "the tag !!seq does not fit the value after it; remove the tag"),
        ("!!binary é", "the tag !!binary does not fit the value after it; remove the tag"),
        ("!!omap [b]", "the tag !!omap needs a list with one key and its value in each entry; remove the tag"),
        ("!!pairs [b]", "the tag !!pairs needs a list with one key and its value in each entry; remove the tag"),
        ("a: <<", "<< is not a value; put it in quotes"),
        ("a: [=]", "= is not a value; put it in quotes"),
        ("a: !foo b", "the tag !foo is not supported; remove it"),
        ("%FOO", "the text ends before a line with ---"),
        ("a: b\n%YAML 1.1", "the text ends before a line with ---"),
        ("%YAML 1.1\na: b\n", "a line with --- is missing before this"),
        ("a: b\n...\nc: d\n", "a line with --- is missing before this"),
        ("%YAML 1.1\n%YAML 1.1\n---\na", "a line with % is allowed only above the line ---, and once; remove the line"),
        ("%TAG ! a\n%TAG ! b\n---\na", "a line with % is allowed only above the line ---, and once; remove the line"),
        ("*a: b", "the anchor &a does not exist; define it above this line, or write the value"),
    ],
)
def test_the_cause_of_what_is_not_yaml(text: str, cause: str) -> None:
    with pytest.raises(InputError) as raised:
        documents_of(text, "x")
    assert re.sub(r"line \d+, column \d+", "HERE", str(raised.value), count=1) == f"x is not YAML: HERE: {cause}."


def test_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", str(tmp_path / "nope.yaml")]) == 2
    _is_one_sentence(capsys, "nope.yaml' does not exist.")


@pytest.mark.parametrize("source", ["/dev/zero", "-"])
def test_a_source_without_an_end(
    source: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(bytes(5 * 2**20))))
    assert main(["render", source]) == ExitCode.INVALID
    _is_one_sentence(capsys, " is larger than 4 MiB; write a file with only PDDeployments.")


def test_an_empty_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["render", str(EXAMPLE), "--name", ""]) == ExitCode.INVALID
    _is_one_sentence(capsys, "has no PDDeployment named ''; it has: tiny.")


def test_a_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", str(tmp_path)]) == 2
    _is_one_sentence(capsys, "is a directory")


def test_a_file_that_may_not_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)  # root, as which tests may run, reads everything
    assert main(["up", str(tmp_path / "secret.yaml")]) == 2
    _is_one_sentence(capsys, "secret.yaml cannot be read: Permission denied.")


def _is_one_sentence(capsys: pytest.CaptureFixture[str], part: str) -> None:
    out, err = capsys.readouterr()
    assert out == ""
    assert part in err
    assert err.startswith("pdx: ")
    assert err.count("\n") == 1


WRONG = """\
apiVersion: pdx.dev/v1alpha1
kind: PDDeployment
metadata:
  name: Tiny
  namespace: Bad NS
spec:
  model: {name: tiny}
  replicas: 2
  prefill:
    replcas: 3
  decode: {replicas: -1}
  engine:
    image: "not an image"
    env:
      - name: A
        valueFrom:
          secretKeyRef: {name: S, key: k}
    args:
      - --seed=1
      - 7
"""
LINES = {
    4: "metadata.name is 'Tiny': write",
    5: "metadata.namespace is 'Bad NS'; write at most 63",
    8: "spec.replicas does not exist; write spec.prefill.replicas",
    10: "spec.prefill.replcas does not exist; did you mean replicas?",
    11: "spec.decode.replicas is -1; write 0 or more.",
    13: "spec.engine.image is 'not an image'; write an image",
    17: "spec.engine.env[0].valueFrom.secretKeyRef.name is 'S': write the name of an object",
    20: "spec.engine.args[1] is 7; write a text, in quotes.",
}


def test_every_error_has_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(WRONG)
    assert main(["render", str(file), "--set", "spec.kvTransfer.order=prefillfirst"]) == 2
    head, flag, *lines = capsys.readouterr().err.splitlines()
    assert head == f"pdx: {file} has 9 errors:"
    assert flag.startswith("    --set: spec.kvTransfer.order is 'prefillfirst'; write one of: PrefillFirst")
    assert flag.endswith("did you mean PrefillFirst?")
    for text, (number, expected) in zip(lines, LINES.items(), strict=True):
        assert text.startswith(f"    {file}:{number}: {expected}"), text


def test_errors_of_flags_do_not_name_the_file() -> None:
    with pytest.raises(InputError) as raised:
        load(EXAMPLE, ["spec.engine.args=[3, 4]"])
    assert str(raised.value) == "--set has 2 errors:"
    assert [detail.partition(" is ")[0] for detail in raised.value.details] == [
        "--set: spec.engine.args[0]",
        "--set: spec.engine.args[1]",
    ]


def test_a_parent_that_the_file_has_is_not_a_flags_error(tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(EXAMPLE.read_text().replace("prefill:", "prefil:"))
    with pytest.raises(InputError, match=r"wrong.yaml:\d+: spec.prefil does not exist; did you mean prefill"):
        load(file, ["spec.prefil.replicas=2"])


def test_duplicate_keys_are_in_the_order_of_their_lines(tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text("kind: Pod\nspec:\n  a: 1\n  a: 2\nkind: Pod\n")
    with pytest.raises(InputError) as raised:
        load(file, [])
    assert [detail.partition(": the")[0] for detail in raised.value.details] == [f"{file}:4", f"{file}:5"]


def test_a_line_in_a_later_document(tmp_path: Path) -> None:
    file = tmp_path / "all.yaml"
    file.write_text(f"kind: Namespace\n---\n{EXAMPLE.read_text()}\nspek: {{}}\n")
    with pytest.raises(InputError, match=rf"{file}:\d+: spek does not exist; did you mean spec\?"):
        load(file, [])


def test_other_objects_are_skipped(tmp_path: Path) -> None:
    file = tmp_path / "all.yaml"
    file.write_text(f"apiVersion: v1\nkind: Namespace\n---\n{EXAMPLE.read_text()}\n---\nkind: Secret\n")
    assert load(file, []).metadata.name == "tiny"


def test_several_deployments_are_selected_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "all.yaml"
    second = EXAMPLE.read_text().replace("name: tiny", "name: other", 1)
    file.write_text(f"{EXAMPLE.read_text()}\n---\n{second}")
    with pytest.raises(InputError, match="has 2 PDDeployments; select one with --name: tiny, other"):
        load(file, [])
    assert load(file, [], "other").metadata.name == "other"
    with pytest.raises(InputError, match="has no PDDeployment named nope; it has: tiny, other"):
        load(file, [], "nope")
    assert main(["render", str(file), "-o", "name"]) == 0
    names = capsys.readouterr().out.split()
    assert {"service/tiny-gateway", "service/other-gateway"} <= set(names)


def test_a_list_of_kubectl(tmp_path: Path) -> None:
    file = tmp_path / "list.yaml"
    items = "\n".join(f"  {line}" for line in EXAMPLE.read_text().splitlines()).lstrip()
    file.write_text(f"apiVersion: v1\nkind: List\nitems:\n- {items}\n")
    assert load(file, []).metadata.name == "tiny"
    file.write_text(f"apiVersion: {API_VERSION}\nkind: PDDeploymentList\nitems:\n- {items}\n")
    assert load(file, []).metadata.name == "tiny"
    file.write_text(file.read_text() + "  spek: {}\n")
    with pytest.raises(InputError, match=rf"{file}:{len(file.read_text().splitlines())}: spek does not exist"):
        load(file, [])


def test_control_characters_do_not_reach_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(f'{EXAMPLE.read_text()}\n"spek\\e[31m": 1\n')
    assert main(["render", str(file)]) == ExitCode.INVALID
    assert r"spek\x1b[31m does not exist" in capsys.readouterr().err


def test_a_set_is_quoted_without_its_members(tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(f"{EXAMPLE.read_text()}\n  labels: !!set {{a, b}}\n")
    with pytest.raises(InputError, match=r"spec\.labels is a set; write a mapping\."):
        load(file, [])


@pytest.mark.parametrize("command", [["render"], ["up", "--engine", "sim"]])
def test_stdin(command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    text = EXAMPLE.read_text().replace("replicas:", "replcas:", 1)
    line = next(number for number, each in enumerate(text.splitlines(), 1) if "replcas" in each)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert main([*command, "-"]) == 2
    assert capsys.readouterr().err.startswith(f"pdx: stdin:{line}: spec.")


@pytest.mark.parametrize("command", ["up", "render"])
def test_a_url_is_not_a_file(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "https://example.org/x.yaml"])
    assert ended.value.code == ExitCode.INVALID
    url = "https://example.org/x.yaml"
    sentence = f"{url} is a URL; pipe its content: `curl -sL {url} | pdx {command} -`."
    assert capsys.readouterr().err == f"pdx {command}: FILE: {sentence}\n"
