"""What the command line imports, and what it accepts besides its commands: each import costs every start."""

import subprocess
import sys
from pathlib import Path

import pytest

from pdx_api.spec.parse import parse
from pdx_cli.inputs.target import _name
from pdx_cli.local.requirements import missing_devices
from pdx_cli.main import COMMANDS, main
from tests.doctor_observations import BODY

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"
HEAVY = (
    *(
        "aiohttp",
        "argcomplete",
        "asyncio",
        "httptools",
        "kubernetes",
        "kopf",
        "numpy",
        "opentelemetry",
        "prometheus_client",
        "pydantic",
    ),
    *("rich", "ssl", "tokenizers", "torch", "uvloop", "vllm", "yaml"),
    *("importlib.metadata", "pdx_cli.sources.observation", "pdx_proxy.process.main", "pdx_sim.engine"),
    "pdx_proxy.verification.diagnosis",
)
"""What takes at least 20 ms to import, with what it imports."""


def imported(*argv: str) -> set[str]:
    """What a command line imports of HEAVY."""
    code = (
        "import contextlib, io, sys\n"
        "from pdx_cli.main import main\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):\n"
        "    main(sys.argv[1:])\n"
        f"print(*({set(HEAVY)} & sys.modules.keys()))\n"
    )
    ran = subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(ran.stdout.split())


NAMES_A_VERSION = {"render": {"importlib.metadata"}}
"""Commands whose help names PDX's version, which the metadata of its package has."""


@pytest.mark.machine
@pytest.mark.parametrize("command", COMMANDS)
def test_help_and_usage_errors_import_nothing_heavy(command: str) -> None:
    for argument in ("--help", "--nonsense"):
        assert imported(command, argument) <= NAMES_A_VERSION.get(command, set())


@pytest.mark.machine
@pytest.mark.parametrize(
    ("argv", "allowed"),
    [
        *((argv, set()) for argv in ((), ("--help",), ("nonsense",), ("doctor", "x", "--kubeconfig", "/nonexistent"))),
        *((argv, {"importlib.metadata"}) for argv in (("-V",), ("version",), ("--nonsense",))),
        *((argv, set()) for argv in (("gateway",), ("sim",), ("tiny-model", "cli"), ("bench", "--local"))),
        (("bench", "qwen", "--kubeconfig", "/nonexistent"), set()),
        (("probe", "--prefill", "x", "--decode", "y"), set()),
        *(((command, "nonexistent.yaml"), {"yaml"}) for command in ("up", "bench")),
        (("render", "nonexistent.yaml"), {"yaml", "importlib.metadata"}),
        (("render", "Makefile"), {"yaml", "importlib.metadata"}),
        (("render", "examples/qwen.yaml"), {"pydantic", "yaml", "importlib.metadata"}),
    ],
)
def test_a_command_imports_what_it_needs(argv: tuple[str, ...], allowed: set[str]) -> None:
    assert imported(*argv) <= allowed


@pytest.mark.machine
@pytest.mark.parametrize(
    "argv",
    [
        ("probe", "--prefill", "http://127.0.0.1:1", "--decode", "http://127.0.0.1:2"),
        ("top", "--admin", "http://127.0.0.1:1", "--once"),
        ("doctor", "--admin", "http://127.0.0.1:1"),
        ("bench", "http://127.0.0.1:1"),
    ],
    ids=lambda argv: argv[0],
)
def test_that_nothing_listens_is_reported_without_the_clients(argv: tuple[str, ...]) -> None:
    """Those of HTTP and of Kubernetes take most of the time of a start."""
    clients = {"aiohttp", "kubernetes", "kopf", "numpy", "pydantic", "uvloop", "prometheus_client"}
    assert not imported(*argv) & {*clients, "pdx_proxy.verification.diagnosis"}


@pytest.mark.machine
def test_top_of_this_machine_imports_no_client_of_kubernetes() -> None:
    code = "import sys, pdx_cli.display.live; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert not {"kubernetes", "aiohttp", "pydantic"} & set(ran.stdout.split())


@pytest.mark.machine
def test_the_doctor_imports_no_client_of_kubernetes_for_this_machine() -> None:
    found = imported("doctor", "--admin", "http://127.0.0.1:1")
    assert not found & {"kubernetes", "kopf", "pydantic", "uvloop", "pdx_proxy.process.main", "pdx_sim.engine"}


def test_without_a_command_the_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert capsys.readouterr().out.startswith("usage: pdx ")


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    version = capsys.readouterr().out
    assert main(["-V"]) == main(["--version", "nonsense"]) == 0
    assert capsys.readouterr().out == 2 * version != ""


@pytest.mark.parametrize("text", ["qwen", "pdd/qwen", "pddeployment/qwen", "pddeployments.pdx.dev/qwen"])
def test_a_name_may_have_its_kind(text: str) -> None:
    assert _name(text) == "qwen"


def test_the_files_of_a_directory_are_rendered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("tiny-cpu.yaml", "qwen.yaml"):
        (tmp_path / name).write_text((EXAMPLES / name).read_text())
    (tmp_path / "values.yaml").write_text("a: 1\n")
    (tmp_path / "notes.txt").write_text("no YAML")
    assert main(["render", "-f", str(tmp_path), "-o", "name"]) == 0
    both = capsys.readouterr().out
    assert main(["render", str(tmp_path / "qwen.yaml"), "-f", str(tmp_path / "tiny-cpu.yaml"), "-o", "name"]) == 0
    assert sorted(capsys.readouterr().out.splitlines()) == sorted(both.splitlines())
    assert "deployment.apps/qwen-gateway" in both
    assert "deployment.apps/tiny-gateway" in both


def test_a_directory_without_an_object_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["render", "-f", str(tmp_path)]) == 2
    assert "has no .yaml, .yml or .json file with a PDDeployment" in capsys.readouterr().err


def test_output_is_kubectls_long_form(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["doctor", "qwen", "--output", "directory"])
    assert "write one of: text, json, yaml; a support bundle is written by --bundle DIR." in capsys.readouterr().err


@pytest.mark.parametrize("flag", [("doctor", "qwen", "--bundle"), ("bench", "--output"), ("up", "FILE", "--run-dir")])
def test_a_format_is_no_directory(flag: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    for form in ("json", "yaml", "text"):
        with pytest.raises(SystemExit):
            main([*flag, form])
        assert f"{flag[-1]}: {form} is a format; name a directory, for example ./{form}." in capsys.readouterr().err


def test_devices_that_the_machine_lacks_are_named() -> None:
    spec = parse(BODY).spec
    (sentence,) = missing_devices(spec, {"nvidia.com/gpu": 0})
    assert sentence.startswith("The engines request 2 nvidia.com/gpu, and this machine has none: ")
    assert "has 1:" in missing_devices(spec, {"nvidia.com/gpu": 1})[0]
    assert missing_devices(spec, {"nvidia.com/gpu": 2}) == []


@pytest.mark.machine
@pytest.mark.parametrize(
    ("argument", "lock"), [("--engine sim", "cli.lock"), ("--engine=sim --once", "cli.lock"), ("--once", "run.lock")]
)
def test_make_run_installs_no_vllm_for_simulated_engines(argument: str, lock: str, tmp_path: Path) -> None:
    command = ["make", "-n", "run", f"VENV={tmp_path}", f"ARGS={argument}"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert {each for each in ("cli.lock", "run.lock") if f"requirements/{each}" in printed} == {lock}
    assert ("tiny-model" in printed) is (lock == "run.lock")
