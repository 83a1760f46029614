"""The history of the accepted counts in git."""

import subprocess
from pathlib import Path

import pytest

from benchmarks.instructions import accepted
from benchmarks.instructions.accepted import Accepted, AcceptedCase, Change, GitError
from benchmarks.instructions.gate import raise_faults

_CHANGE = Change("2026-11-28", "completion", 100, 103, "a feature")


def one(count: int, *changes: Change) -> Accepted:
    return Accepted("2026-11-27", {}, 0, {"completion": AcceptedCase("d", count, 38.0, {}, {})}, changes)


def git(folder: Path, *arguments: str) -> None:
    names = ("-c", "user.name=n", "-c", "user.email=n@example.org")
    subprocess.run(["git", *names, *arguments], cwd=folder, check=True, capture_output=True)


def test_git_has_the_former_versions(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()
    git(repository, "init", "-q")
    path = repository / "accepted.json"
    versions = [one(100), one(103, _CHANGE)]
    for version in versions:
        path.write_text(accepted.render(version))
        git(repository, "add", "accepted.json")
        git(repository, "commit", "-qm", "Accept")

    assert [version.accepted for version in accepted.committed_versions(path)] == versions

    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{repository}", "shallow")
    with pytest.raises(GitError, match="shallow"):
        accepted.committed_versions(tmp_path / "shallow" / "accepted.json")
    with pytest.raises(GitError, match="not a git repository"):
        accepted.committed_versions(tmp_path / "accepted.json")


def test_the_committed_file_obeys_the_rules() -> None:
    recorded, versions = accepted.read(), accepted.committed_versions()
    assert recorded is not None
    assert versions
    assert raise_faults(recorded) == []
    assert accepted.history_faults([version.accepted for version in versions], recorded) == []
