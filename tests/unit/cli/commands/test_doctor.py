"""`pdx doctor` as a program, and its guide; what it finds is in test_cli_checks_*.py."""

import ast
import importlib
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from pdx_api.verification import Cause
from pdx_cli.checks import cluster, serving
from pdx_cli.checks.findings import examine
from pdx_cli.commands.doctor import CHECKS
from pdx_cli.main import main
from pdx_cli.sources.picture import Gateway, Picture
from tests.doctor_pictures import HEALTHY, LOCAL, found

ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize("picture", [HEALTHY, LOCAL], ids=["cluster", "local"])
def test_a_healthy_deployment_gives_no_finding(picture: Picture) -> None:
    assert examine(picture, CHECKS) == []


def test_a_gateway_that_may_not_be_asked_is_not_wrong() -> None:
    assert found(gateways=(Gateway("qwen-gateway-1", None),)) == []


@pytest.mark.machine
@pytest.mark.parametrize("command", ["doctor", "top"])
@pytest.mark.parametrize(
    ("argv", "words"),
    [
        pytest.param(["--admin", "http://127.0.0.1:1"], "The gateway cannot be asked", id="nobody there"),
        pytest.param(["--admin", "localhost"], "is no URL; write for example http://", id="no URL"),
        pytest.param(["--local", "-n", "llm"], "leave one out", id="two places"),
        pytest.param(["nope", "--run-dir", "/nonexistent"], "No `pdx up` of the name nope runs", id="no such run"),
        pytest.param(["x", "--kubeconfig", "/nonexistent"], "/nonexistent does not exist", id="no kubeconfig"),
        pytest.param(["x", "--kubeconfig", __file__], "No cluster is configured", id="no kubeconfig at all"),
    ],
)
def test_what_cannot_be_looked_at(
    command: str, argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main([command, *argv])
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert words in err


def test_kubectl_pdx_is_the_same_program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, name = scripts["kubectl-pdx"].partition(":")
    monkeypatch.setattr(sys, "argv", ["kubectl-pdx", "doctor", "--help"])
    with pytest.raises(SystemExit) as ended:
        getattr(importlib.import_module(module), name)()
    assert ended.value.code == 0
    assert "usage: kubectl pdx doctor" in capsys.readouterr().out


@pytest.mark.parametrize("module", [cluster, serving])
def test_the_guide_names_every_cause(module: ModuleType) -> None:
    guide = (ROOT / "docs" / "doctor.md").read_text()
    operators = (ROOT / "docs" / "operator.md").read_text()
    assert module.__file__ is not None
    calls = [node for node in ast.walk(ast.parse(Path(module.__file__).read_text())) if isinstance(node, ast.Call)]
    words = [arg.value for call in calls for arg in call.args[:2] if isinstance(arg, ast.Constant)]
    causes = {word for word in words if isinstance(word, str) and re.fullmatch(r"([A-Z]+[a-z]+){2,}", word)}
    assert len(causes) >= 7
    assert not causes & set(Cause), "what canaries name has its word in one place"
    for cause in causes | set(Cause):
        assert f"`{cause}`" in guide or f"`{cause}`" in operators, cause


def test_every_set_up_of_the_guide_is_broken_in_its_test() -> None:
    guide = (ROOT / "docs" / "doctor.md").read_text()
    rows = re.findall(r"^\| (.+) \| `(\w+)` \| .+ \| `(\S+)::(\w+)` \|$", guide, re.MULTILINE)
    table = guide[guide.index("| set-up |") :].split("\n\n")[0].splitlines()[2:]
    assert len(rows) == len(table) >= 10, "a row is written in another way"
    words = {cause.value: f"Cause.{cause.name}" for cause in Cause}
    for set_up, cause, file, name in rows:
        text = (ROOT / file).read_text()
        assert re.search(rf"^(async )?def {name}\(", text, re.MULTILINE), set_up
        assert f'"{cause}"' in text or words.get(cause, "-") in text, set_up
