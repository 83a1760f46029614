"""What checkouts with the same locks share."""

import compileall
import os
from pathlib import Path

import pytest

from scripts.shared_caches import SAMPLES, archive, is_valid, main, prepare_bytecode


def _packages(folder: Path) -> Path:
    for name in SAMPLES:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text("A = 1\n")
        os.utime(folder / name / "__init__.py", (1.6e9, 1.6e9))
    return folder


def _compile(folder: Path) -> None:
    compileall.compile_dir(str(folder), quiet=2)


def _fail(folder: Path) -> None:
    pytest.fail(f"{folder} is compiled again")


def test_the_second_environment_takes_the_bytecode_of_the_first(tmp_path: Path) -> None:
    first, second, kept = _packages(tmp_path / "one"), _packages(tmp_path / "two"), tmp_path / "cache" / "a.tar"
    prepare_bytecode(kept, first, _compile)
    prepare_bytecode(kept, second, _fail)
    assert all(is_valid(second / name / "__init__.py") for name in SAMPLES)
    assert [path.name for path in kept.parent.iterdir()] == ["a.tar"]


def test_bytecode_of_other_files_is_compiled_again(tmp_path: Path) -> None:
    first, second, kept = _packages(tmp_path / "one"), _packages(tmp_path / "two"), tmp_path / "a.tar"
    prepare_bytecode(kept, first, _compile)
    (second / SAMPLES[0] / "__init__.py").touch()
    prepare_bytecode(kept, second, _compile)
    assert all(is_valid(second / name / "__init__.py") for name in SAMPLES)


@pytest.mark.parametrize("content", [None, b"", b"no archive"], ids=["a folder", "empty", "damaged"])
def test_a_cache_that_cannot_be_used_costs_time_only(tmp_path: Path, content: bytes | None) -> None:
    kept = tmp_path / "a.tar"
    if content is None:
        kept.mkdir()
    else:
        kept.write_bytes(content)
    packages = _packages(tmp_path / "one")
    prepare_bytecode(kept, packages, _compile)
    assert all(is_valid(packages / name / "__init__.py") for name in SAMPLES)
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".tar"] == ["one"], "no part is left"


def test_an_archive_of_other_locks_is_removed(tmp_path: Path) -> None:
    (tmp_path / "old.tar").touch()
    prepare_bytecode(tmp_path / "new.tar", _packages(tmp_path / "one"), _compile)
    assert not (tmp_path / "old.tar").exists()


def test_other_locks_have_another_archive(tmp_path: Path) -> None:
    locks = tmp_path / "requirements"
    locks.mkdir()
    (locks / "run.lock").write_text("a==1")
    before = archive("types", tmp_path, tmp_path)
    (locks / "run.lock").write_text("a==2")
    assert archive("types", tmp_path, tmp_path) != before


def test_a_wrong_command_is_answered(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bytes"]) == 2
    assert capsys.readouterr().err == "write bytecode, take-types or keep-types\n"
