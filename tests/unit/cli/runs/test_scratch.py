"""The temporary directories of a run: they end with it, and nothing else is removed."""

import json
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from pdx_cli.runs.run_record import LOCK, SCRATCH, RunDirectory, Scratch
from tests.unit.cli.runs.records import RUN


def _killed(directory: RunDirectory) -> Scratch:
    """Leave what a killed run leaves: its record and its temporary directories, without a lock."""
    left = Scratch(Path(tempfile.mkdtemp(prefix="pdx-")), Path(tempfile.mkdtemp(prefix="kv-", dir=directory.path)))
    (left.storage / "block").touch()
    listed = {"run": str(directory.path.resolve()), "directories": [str(left.sockets), str(left.storage)]}
    (directory.path / SCRATCH).write_text(json.dumps(listed))
    directory.write(RUN)
    return left


@pytest.mark.parametrize("finds", ["next run", "status"])
def test_what_a_killed_run_left_is_removed(finds: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    directory = RunDirectory(tmp_path / "tiny")
    directory.logs.mkdir(parents=True)
    (directory.path / "kv-of-the-user").mkdir()
    left = _killed(directory)
    (directory.path / LOCK).touch()
    if finds == "status":
        assert directory.live() is None
    else:
        with directory.held("tiny"):
            assert directory.live() is None, "the record is that of the killed run"
    assert not left.sockets.exists()
    assert not left.storage.exists()
    assert (directory.path / "kv-of-the-user").is_dir(), "no run made it"


def test_only_directories_that_a_run_made_are_removed(tmp_path: Path) -> None:
    """In a shared directory, another user can write the list, or replace it by a link."""
    precious = [tmp_path / "home", tmp_path / "run" / "home", tmp_path / "kv-home"]
    for path in precious:
        path.mkdir(parents=True)
    link = tmp_path / "run" / "kv-link"
    link.symlink_to(precious[0])
    directory = RunDirectory(tmp_path / "run")
    listed = [*map(str, precious), str(link), str(tmp_path / "nowhere")]
    (directory.path / SCRATCH).write_text(json.dumps({"run": str(directory.path.resolve()), "directories": listed}))
    directory.remove_scratch()
    assert all(path.is_dir() for path in precious)


@pytest.mark.parametrize("text", ["", "[]", "{}", '["/tmp/pdx-1"]'])
def test_a_list_that_cannot_be_read_removes_nothing(text: str, tmp_path: Path) -> None:
    (tmp_path / SCRATCH).write_text(text)
    RunDirectory(tmp_path).remove_scratch()
    assert (tmp_path / SCRATCH).exists()


def test_a_copy_of_a_run_directory_removes_nothing_of_the_run(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    directory.path.mkdir()
    with directory.scratch() as made:
        shutil.copytree(directory.path, tmp_path / "copy")
        RunDirectory(tmp_path / "copy").remove_scratch()
        assert made.sockets.is_dir()
        assert made.storage.is_dir()


def test_the_list_of_another_user_removes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = RunDirectory(tmp_path)
    with directory.scratch() as made:
        monkeypatch.setattr(os, "fstat", lambda _: os.stat_result((0, 0, 0, 0, os.getuid() + 1, 0, 0, 0, 0, 0)))
        directory.remove_scratch()
        monkeypatch.undo()
        assert made.sockets.is_dir()


def test_the_list_stays_while_a_directory_cannot_be_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = RunDirectory(tmp_path)
    with directory.scratch() as made:
        monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
        directory.remove_scratch()
        monkeypatch.undo()
        assert (tmp_path / SCRATCH).is_file()
        directory.remove_scratch()
        assert not (tmp_path / SCRATCH).exists()
        made.sockets.mkdir()
        made.storage.mkdir()


def test_the_temporary_directories_end_with_the_run(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    with directory.scratch() as made:
        assert made.sockets.is_dir()
        assert made.storage.parent == tmp_path
    assert not made.sockets.exists()
    assert list(tmp_path.iterdir()) == []
