"""`pdx convert` of files: what it prints and writes, and its exit codes. Clusters: tests/cluster/test_conversion.py."""

import codecs
import io
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from pdx_cli.main import main
from tests.former_objects import FORMER, PRESENT


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "m.yaml"
    path.write_text(yaml.safe_dump(FORMER))
    return path


def test_it_prints_the_differences_and_writes_nothing(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = file.read_text()
    assert main(["convert", str(file)]) == 0
    out = capsys.readouterr().out
    assert "-    shutdownSeconds: 90\n+    drainSeconds: 90\n" in out
    assert out.startswith(f"--- {file}\n+++ {file} (converted)\n")
    assert file.read_text() == before
    assert main(["convert", "--check", str(file)]) == 1


@pytest.mark.machine
def test_a_file_needs_no_client_of_a_cluster(file: Path) -> None:
    """Its import takes twice as long as everything else."""
    code = "import sys; from pdx_cli.main import main; main(sys.argv[1:]); sys.exit('kubernetes' in sys.modules)"
    subprocess.run([sys.executable, "-c", code, "convert", str(file)], check=True, stdout=subprocess.DEVNULL)


def test_the_line_ends_and_the_mark_of_an_editor_stay(file: Path) -> None:
    file.write_bytes(codecs.BOM_UTF8 + yaml.safe_dump(FORMER).replace("\n", "\r\n").encode())
    assert main(["convert", "--write", str(file)]) == 0
    written = file.read_bytes()
    assert written.startswith(codecs.BOM_UTF8)
    assert written.count(b"\n") == written.count(b"\r\n") > 0
    assert yaml.safe_load(written.decode("utf-8-sig")) == PRESENT


def test_it_writes_files(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = file.with_name("other.yaml")
    other.write_text("kind: ConfigMap # as it was\n")
    assert main(["convert", "--write", str(file), str(other)]) == 0
    assert yaml.safe_load(file.read_text()) == PRESENT
    assert other.read_text() == "kind: ConfigMap # as it was\n"
    assert "other.yaml" not in capsys.readouterr().out
    assert main(["convert", "--check", str(file)]) == 0
    assert capsys.readouterr() == ("", "Nothing needs converting.\n")


def test_an_unreadable_file_changes_no_other(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = file.read_text()
    assert main(["convert", "--write", str(file), str(file.with_name("absent.yaml"))]) == 2
    assert file.read_text() == before
    assert "does not exist" in capsys.readouterr().err


def test_stdin(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(yaml.safe_dump(FORMER).encode())))
    assert main(["convert", "-"]) == 0
    out, err = capsys.readouterr()
    assert yaml.safe_load(out) == PRESENT
    assert "+    drainSeconds: 90" in err


def test_lost_comments_are_reported(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    routing = "  routing: &r {canarySeconds: 1} # shared\n  decode: {<<: *r}\n"
    file.write_text(f"apiVersion: pdx.dev/v1alpha1\nkind: PDDeployment\nspec:\n{routing}")
    assert main(["convert", "-o", "yaml", str(file)]) == 0
    assert f"pdx: {file}:1: the comments of this document are lost" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        ([], "Name a file, - for stdin, or --cluster."),
        (["--cluster", "f"], "--cluster converts the objects of a cluster; leave out FILE, or --cluster."),
        (["-n", "a", "f"], "--namespace selects a cluster; add --cluster, or leave it out."),
        (["--write", "--check", "f"], "--check writes nothing; leave out --write or --check."),
        (["--write", "-"], "stdin cannot be written; leave out --write, or name a file."),
    ],
)
def test_flags_that_contradict_each_other(argv: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", *argv]) == 2
    assert capsys.readouterr().err == f"pdx: {sentence}\n"
