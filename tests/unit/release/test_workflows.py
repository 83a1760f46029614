"""The workflows for GitHub, which cannot run here: what they push, under which names, and with which rights."""

import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.release.names import IMAGES, read
from tests.documents import ROOT

FOLDER = ROOT / ".github" / "workflows"
NAMES = read(ROOT)
PUSHES = ("docker load", "docker push", "helm push", "gh release create", "cosign attest")
FILES = {(machine, what): file for machine in ("amd64", "arm64") for what, file in NAMES.files(machine).items()}


def workflow(name: str) -> dict[str, Any]:
    """A workflow; PyYAML reads its key `on` as True."""
    found: dict[str, Any] = yaml.safe_load((FOLDER / name).read_text())
    return found


RELEASE = workflow("release.yml")["jobs"]


def steps(job: str) -> list[dict[str, Any]]:
    """The steps of a job of the release."""
    found: list[dict[str, Any]] = RELEASE[job]["steps"]
    return found


def scripts(job: str) -> str:
    """What a job runs, with the values of its variables for each image and platform."""
    texts = [step.get("run", "").replace("\\\n", " ") for step in steps(job)]
    written = "\n".join(line for text in texts for line in text.splitlines() if line.strip().startswith(PUSHES))
    written = written.replace("$VERSION", NAMES.version)
    return "\n".join(
        written.replace("$IMAGE", image).replace("$machine", machine)
        for image in IMAGES
        for machine in ("amd64", "arm64")
    )


def pushed() -> set[str]:
    """The patterns of files that steps push."""
    words = {
        word.strip("\"'").removeprefix("release/")
        for job in ("images", "chart", "release")
        for word in scripts(job).split()
        if "release/" in word
    }
    (moved,) = (step["run"] for step in steps("package") if "mv " in step.get("run", ""))
    (publish,) = (step for step in steps("package") if "pypi-publish" in step.get("uses", ""))
    assert moved.endswith(f" {publish['with']['packages-dir']}")
    return words | {f"pypi:{word.removeprefix('release/')}" for word in moved.split() if word.startswith("release/")}


@pytest.mark.parametrize(("machine", "what"), FILES)
def test_every_artifact_of_the_dry_run_is_pushed_by_a_step(machine: str, what: str) -> None:
    file = FILES[machine, what]
    patterns = pushed()
    if what in ("sdist", "wheel"):
        assert [each for each in patterns if each.startswith("pypi:") and fnmatchcase(file, each[5:])]
    if what.startswith("image ") and not what.endswith("SBOM"):
        assert file in patterns, "docker load"
    else:
        assert [each for each in patterns if fnmatchcase(file, each)]


def test_an_artifact_that_nobody_pushes_is_noticed() -> None:
    assert not [each for each in pushed() if fnmatchcase("pdx.rpm", each)]


def test_every_name_comes_from_the_one_file() -> None:
    """The job `build` reads it; the other jobs read that job's outputs."""
    text = (FOLDER / "release.yml").read_text()
    for name in (NAMES.registry, NAMES.owner, "pdx-serving", f"/{NAMES.repository}/"):
        assert name not in re.sub(r"packaging/release\.toml", "", text), name
    printed = {line.partition("=")[0] for line in NAMES.outputs().splitlines()}
    outputs = RELEASE["build"]["outputs"]
    assert set(outputs) == printed
    assert all(value == f"${{{{ steps.names.outputs.{name} }}}}" for name, value in outputs.items())
    used = set(re.findall(r"needs\.build\.outputs\.(\w+)", text)) | set(
        RELEASE["images"]["strategy"]["matrix"]["image"]
    )
    assert used == printed


def test_the_second_platform_builds_the_images_alone() -> None:
    runs = [
        step["run"] for job in ("build", "arm64") for step in steps(job) if "release-dry-run" in step.get("run", "")
    ]
    assert runs == [
        'make release-dry-run ARGS="--final $GITHUB_REF_NAME --stand-in never"',
        'make release-dry-run ARGS="--final $GITHUB_REF_NAME --stand-in never --only-images"',
    ]


def test_ci_runs_the_script_of_the_checkout() -> None:
    (job,) = workflow("ci.yml")["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    assert (ROOT / ".ci/run").stat().st_mode & 0o111


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yml")), ids=lambda path: path.name)
def test_rights_are_minimal_and_actions_are_pinned(path: Path) -> None:
    found = workflow(path.name)
    assert found["permissions"] == {}
    for name, job in found["jobs"].items():
        assert job["timeout-minutes"]
        writing = {right for right, level in job["permissions"].items() if level == "write"}
        assert not writing or name in ("images", "chart", "package", "release")
        assert not (writing and any("checkout" in step.get("uses", "") for step in job["steps"]))
    for action in re.findall(r"uses: (.*)", path.read_text()):
        assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action
