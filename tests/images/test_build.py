"""Inputs, arguments, cache keys and containers of image builds; nothing is built."""

import os
import shutil
from pathlib import Path

import pytest

from images import build
from images.build import (
    ROOT,
    BuildError,
    Request,
    Store,
    build_arguments,
    inputs,
    key,
    main,
    needs_stand_in,
    pip_conf,
    published_registry,
)
from pdx_api.defaults import GATEWAY_REPOSITORY

REQUEST = Request("operator", "1.2.3", "buildah")
FILES = {
    "pyproject.toml": '[project]\nversion = "1.2.3"\n',
    "packaging/pypi.md": "",
    "LICENSE": "",
    ".dockerignore": "",
    "images/build.lock": "",
    "images/build.py": "",
    "images/operator.Dockerfile": "FROM x",
    "requirements/operator.lock": "kopf==1",
    "api/pdx_api/names.py": "A = 1",
    "operator/pdx_operator/app/main.py": "B = 1",
    "proxy/pdx_proxy/process/main.py": "C = 1",
    "api/pdx_api/__pycache__/names.pyc": "",
    "docs/install.md": "",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_build_arguments() -> None:
    request = Request("gateway", "1.2.3", "docker", base="b@sha256:0", revision="abc", pip_conf=Path("/etc/pip.conf"))

    assert build_arguments(request) == [
        *("-f", "images/gateway.Dockerfile", "-t", "pdx/gateway:1.2.3", "--build-arg", "BASE=b@sha256:0"),
        *("--build-arg", "BUILD_BASE=docker.io/library/python:3.11-bookworm"),
        *("--label", "org.opencontainers.image.version=1.2.3", "--label", "org.opencontainers.image.revision=abc"),
        *("--secret", "id=pip,src=/etc/pip.conf", "."),
    ]


def test_a_registry_precedes_the_name() -> None:
    assert Request("gateway", "1.2.3", "docker", registry="r.example/o").reference == "r.example/o/pdx/gateway:1.2.3"
    assert f"{published_registry(ROOT)}/" == GATEWAY_REPOSITORY.removesuffix("pdx/gateway")


def test_inputs_match_dockerignore(root: Path) -> None:
    assert {str(path) for path in inputs(root, "operator")} == set(FILES) - {
        "proxy/pdx_proxy/process/main.py",
        "api/pdx_api/__pycache__/names.pyc",
        "docs/install.md",
    }


@pytest.mark.parametrize("name", sorted(FILES))
def test_only_inputs_change_the_key(root: Path, name: str) -> None:
    before, changes = key(root, REQUEST), Path(name) in inputs(root, "operator")
    (root / name).write_text("changed")

    assert (key(root, REQUEST) != before) == changes


@pytest.mark.parametrize(
    "other",
    [
        Request("operator", "1.2.4", "buildah"),
        Request("operator", "1.2.3", "buildah", base="b"),
        Request("operator", "1.2.3", "buildah", stand_in=True),
        Request("operator", "1.2.3", "buildah", revision="abc"),
    ],
)
def test_name_and_base_change_the_key(root: Path, other: Request) -> None:
    assert key(root, other) != key(root, REQUEST)


def test_pip_conf_from_the_environment(tmp_path: Path) -> None:
    (tmp_path / "pip.conf").touch()

    assert pip_conf({"PIP_CONFIG_FILE": str(tmp_path / "pip.conf")}) == tmp_path / "pip.conf"
    assert pip_conf({"PIP_CONFIG_FILE": os.devnull}) is None


def test_only_buildah_creates_a_stand_in(tmp_path: Path) -> None:
    assert needs_stand_in("auto", "docker", "b", tmp_path) is False
    with pytest.raises(BuildError, match="docker builds here"):
        needs_stand_in("always", "docker", "b", tmp_path)


def test_missing_builder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)

    assert main(["--out", str(tmp_path)]) == 1
    assert "apt-get install buildah" in capsys.readouterr().err


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return an empty store of layers."""
    if os.geteuid() or shutil.which("buildah") is None:
        pytest.skip("needs root and buildah")
    return Store(tmp_path)


def test_containers_of_killed_processes_are_removed(store: Store) -> None:
    store.buildah("from", "scratch")

    store.remove_containers()

    assert not store.buildah("containers", "--quiet")


def test_a_mounted_container_stays(store: Store) -> None:
    container = store.buildah("from", "scratch").strip()
    image = store.buildah("commit", "--quiet", "--rm", container).strip()

    with store.mounted(image) as folder:
        store.remove_containers()
        assert folder.is_dir()
        assert store.buildah("containers", "--quiet")

    assert not store.buildah("containers", "--quiet")


@pytest.mark.parametrize(
    ("error", "tries"), [("Close_Fd sealing memfd copy: Device or resource busy", 2), ("no space left on device", 1)]
)
def test_only_a_memory_file_that_was_not_sealed_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str, tries: int
) -> None:
    tried = []

    def fails(command: list[str], cwd: Path | None) -> str:
        tried.append(command)
        raise BuildError(error)

    monkeypatch.setattr(build, "_overlay_works", lambda root: False)
    monkeypatch.setattr(build, "_run", fails)
    with pytest.raises(BuildError, match=error):
        Store(tmp_path).buildah("build", ".")
    assert len(tried) == tries
