"""`pdx doctor` as a program, and its guide. Its checks are tested in tests/unit/cli/checks."""

import ast
import importlib
import re
import sys
import tomllib
from pathlib import Path

import pytest

from pdx_api.verification import Cause
from pdx_cli.checks.catalogue import CHECKS
from pdx_cli.checks.findings import examine
from pdx_cli.main import main
from pdx_cli.sources.observation import Gateway, Observation
from pdx_cli.support.report import print_report
from tests.doctor_observations import HEALTHY, LOCAL, found

ROOT = Path(__file__).parents[4]
CONTEXTS = Path(__file__).parent / "data" / "kubeconfig.yaml"


@pytest.mark.parametrize("observation", [HEALTHY, LOCAL], ids=["cluster", "local"])
def test_healthy_deployment_has_no_finding(observation: Observation) -> None:
    assert examine(observation, CHECKS) == []
    assert len(set(CHECKS)) == len(CHECKS)


def test_unreadable_gateway_is_no_finding() -> None:
    assert found(gateways=(Gateway("qwen-gateway-1", None),)) == []


@pytest.mark.machine
@pytest.mark.parametrize("command", ["doctor", "top"])
@pytest.mark.parametrize(
    ("argv", "part"),
    [
        pytest.param(["--admin", "localhost"], "is not the URL of an admin port; write http://HOST:PORT", id="no URL"),
        pytest.param(["--admin", "http://127.0.0.1:99999"], "is not the URL of an admin port", id="no port"),
        pytest.param(["--admin", "http://127.0.0.1:1/pdx/state"], "is not the URL of an admin port", id="a path"),
        pytest.param(["--admin", "http://h :1"], "--admin 'http://h :1' is not the URL of an admin port", id="a blank"),
        pytest.param(["--admin", "http://h:1#x"], "--admin http://h:1#x is not the URL of an admin port", id="a part"),
        pytest.param(["--admin", "http://u:p/@h:1"], "--admin http://…@h:1 is not the URL of", id="a password"),
        pytest.param(["--admin", "u:p@h:1"], "--admin …@h:1 is not the URL of an admin port", id="only a password"),
        pytest.param(["x", "--kubeconfig", str(CONTEXTS.parent)], "data' is not a file; name a file", id="a directory"),
        pytest.param(
            ["x", "--kubeconfig", str(CONTEXTS), "--context", "closed"],
            "The cluster cannot be read: the API server does not answer: connection refused.",
            id="no API server",
        ),
        pytest.param(["--local", "-n", "llm"], "use only one of them", id="two locations"),
        pytest.param(["nope", "--run-dir", str(CONTEXTS.parent)], "No `pdx up` named nope runs", id="no such run"),
        pytest.param(["x", "--kubeconfig", "/nonexistent"], "'/nonexistent' does not exist", id="no kubeconfig"),
        pytest.param(
            ["x", "--kubeconfig", __file__],
            f"{__file__} is not a kubeconfig with a current context, its cluster and its user; name another file with "
            "--kubeconfig.",
            id="no kubeconfig at all",
        ),
        pytest.param(
            ["x", "--kubeconfig", str(CONTEXTS), "--context", "nope"],
            f"{CONTEXTS} has no context nope; it has: prod, half, closed.",
            id="no such context",
        ),
        pytest.param(
            ["x", "--kubeconfig", str(CONTEXTS), "--context", "half"],
            f"The context half of {CONTEXTS} has no usable cluster and user;",
            id="a context without its cluster",
        ),
        pytest.param(["--local", "--admin", "http://h:1"], "leave out --local.", id="two gateways"),
        pytest.param(["x", "--admin", "http://h:1"], "leave out x.", id="a name and a URL"),
    ],
)
def test_unreadable_target(command: str, argv: list[str], part: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main([command, *argv])
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert part in err


@pytest.mark.parametrize("command", ["doctor", "top"])
def test_an_empty_name(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, ""])
    sentence = f"pdx {command}: NAME: the value is empty; name a PDDeployment, or leave NAME out.\n"
    assert (ended.value.code, capsys.readouterr().err) == (2, sentence)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("x", "; KUBECONFIG names {}, which does not exist."),
        ("data", "; KUBECONFIG names {}, which is not a file."),
    ],
)
def test_a_kubeconfig_of_the_environment_that_does_not_exist(
    name: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = CONTEXTS.parent.parent / name
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", str(path))
    assert main(["doctor", "x"]) == 2
    err = capsys.readouterr().err.strip()
    assert err.startswith("pdx: No local run named x was found, and no kubeconfig: start one with `pdx up FILE`, or ")
    assert err.endswith(f"--kubeconfig{sentence.format(path)}")


def test_a_terminal_of_unknown_width(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Terminals of containers and of CI set it to 0."""
    monkeypatch.setenv("COLUMNS", "0")
    print_report(HEALTHY, [])
    assert "qwen (namespace llm): nothing is wrong.\n" in capsys.readouterr().out


def test_kubectl_plugin(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, name = scripts["kubectl-pdx"].partition(":")
    monkeypatch.setattr(sys, "argv", ["kubectl-pdx", "doctor", "--help"])
    with pytest.raises(SystemExit) as ended:
        getattr(importlib.import_module(module), name)()
    assert ended.value.code == 0
    assert "usage: kubectl pdx doctor" in capsys.readouterr().out


def test_the_guide_lists_every_cause() -> None:
    guide = (ROOT / "docs" / "doctor.md").read_text()
    operator_guide = (ROOT / "docs" / "operator.md").read_text()
    trees = [ast.parse(path.read_text()) for path in (ROOT / "cli" / "pdx_cli" / "checks").glob("*.py")]
    calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    texts = [arg.value for call in calls for arg in call.args[:2] if isinstance(arg, ast.Constant)]
    causes = {text for text in texts if isinstance(text, str) and re.fullmatch(r"([A-Z]+[a-z]+){2,}", text)}
    assert len(causes) >= 17
    assert not causes & set(Cause), "causes of failed verification are defined once"
    for cause in causes | set(Cause):
        assert f"`{cause}`" in guide or f"`{cause}`" in operator_guide, cause
