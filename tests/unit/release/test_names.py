"""One file states where a release is published, and one its version; everything else agrees."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from pdx_api.defaults import GATEWAY_REPOSITORY
from pdx_api.version import DISTRIBUTION
from scripts.generate import PUBLISHED
from scripts.release.__main__ import check_final
from scripts.release.artifacts import ReleaseError
from scripts.release.names import IMAGES, Names, read, stated, with_owner, with_version
from tests.documents import ROOT

NAMES = read(ROOT)
OTHER = Names("ghcr.io", "acme", "pd", "1.2.3")
PLACES = re.compile(r"\b(ghcr\.io|github\.com)/([\w-]+)/(pdx(?![\w-])|charts/pdx)")


def test_the_chart_has_the_version_and_names_the_images() -> None:
    chart = yaml.safe_load((ROOT / "charts/pdx/Chart.yaml").read_text())
    values = yaml.safe_load((ROOT / "charts/pdx/values.yaml").read_text())
    listed = {each["name"]: each["image"] for each in yaml.safe_load(chart["annotations"]["artifacthub.io/images"])}

    assert (chart["version"], chart["appVersion"]) == (NAMES.version, NAMES.version)
    for image in IMAGES:
        assert listed[image] == NAMES.image(image)
        assert (
            f"{values['imageRegistry']}/{values[image]['image']['repository']}:{chart['appVersion']}" == listed[image]
        )


def test_the_command_line_names_the_image_of_the_chart() -> None:
    assert f"{GATEWAY_REPOSITORY}:{NAMES.version}" == NAMES.image("gateway")


@pytest.mark.parametrize("path", sorted({path for pattern in PUBLISHED for path in ROOT.glob(pattern)}), ids=str)
def test_every_published_name_is_that_of_the_one_file(path: Path) -> None:
    for host, owner, _ in PLACES.findall(path.read_text()):
        assert (host, owner) in {(NAMES.registry, NAMES.owner), ("github.com", NAMES.owner)}, path


def test_readme_shows_the_published_commands() -> None:
    readme = (ROOT / "README.md").read_text()
    assert f"helm install pdx {NAMES.chart} " in readme
    assert f"kubectl apply -f {NAMES.downloads}/qwen.yaml" in readme
    assert f"'{DISTRIBUTION}[cli]'" in readme


def test_the_makefile_has_the_targets_that_the_workflow_runs() -> None:
    workflow = (ROOT / ".github/workflows/release.yml").read_text()
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    called = set(re.findall(r"make (?:--\w+ )?([a-z-]+)", re.sub("#.*", "", workflow)))
    assert called == {"release-dry-run", "release-names"}
    assert called <= targets


def test_an_owner_that_is_set_reaches_every_page() -> None:
    places = f"{NAMES.url}/issues, [r]({NAMES.url}), --repo {NAMES.path}"
    text = f"helm install pdx {NAMES.chart} and {places}, not vllm-project/vllm"
    found = with_owner(text, NAMES, OTHER)
    assert found == (
        "helm install pdx oci://ghcr.io/acme/charts/pdx and https://github.com/acme/pd/issues, "
        "[r](https://github.com/acme/pd), --repo acme/pd, not vllm-project/vllm"
    )
    assert with_owner(found, OTHER, NAMES) == text


def test_a_new_version_reaches_the_pages() -> None:
    old = replace(OTHER, version="0.1.0")
    found = with_version("pdx 0.1.0, pdx/gateway:0.1.0. Not 10.1.0, 0.1.0.1 or 0.1.0-rc1", old, OTHER)
    assert found == "pdx 1.2.3, pdx/gateway:1.2.3. Not 10.1.0, 0.1.0.1 or 0.1.0-rc1"


def test_the_chart_states_what_the_pages_were_written_with() -> None:
    assert stated((ROOT / "charts/pdx/Chart.yaml").read_text(), NAMES.registry) == NAMES
    with pytest.raises(ValueError, match="restore it from Git"):
        stated("name: pdx", "r")


@pytest.mark.parametrize(
    ("names", "tag", "says"),
    [
        (replace(NAMES, owner="your--org"), NAMES.tag, "has no owner yet"),
        (replace(NAMES, owner="acme"), "v9", "they must agree"),
        (replace(NAMES, owner="acme", version="9.9.9"), "v9.9.9", "no section"),
    ],
)
def test_what_is_not_ready_is_not_published(names: Names, tag: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
    with pytest.raises((ReleaseError, ValueError), match=says):
        check_final(names, tag)


def test_another_repository_publishes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_REPOSITORY", "fork/pdx")
    with pytest.raises(ReleaseError, match="This is fork/pdx"):
        check_final(replace(NAMES, owner="acme"), NAMES.tag)
