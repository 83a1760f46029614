"""The search for programs, with fake programs; kind, series, and images."""

import os
import tarfile
from pathlib import Path

import pytest

from pdx_cluster.app import cluster, kind
from pdx_cluster.errors import ClusterError, MissingError
from pdx_cluster.node import images
from pdx_cluster.node.images import Image
from pdx_cluster.programs import kubernetes, packages
from pdx_cluster.programs.kubernetes import ETCD, KUBECTL


def write_program(path: Path, output: str) -> Path:
    """Write a program that prints one line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{output}'\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with an empty cache and nothing but `bin` on PATH."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    (tmp_path / "bin" / "sh").symlink_to("/bin/sh")
    return tmp_path


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("Kubernetes v1.36.3", "1.36.3"),
        ("etcd Version: 3.6.8\nGit SHA: Not provided", "3.6.8"),
        ("Client Version: v1.32.4-dispatcher\nKustomize Version: v5.5.0", "1.32.4"),
        ("v4.3.1+g1234567", "4.3.1"),
        ("no version here", ""),
    ],
)
def test_parse_version(text: str, version: str) -> None:
    assert kubernetes.parse_version(text) == version


def test_a_program_on_path_is_used(bare: Path) -> None:
    etcd = write_program(bare / "bin" / "etcd", "etcd Version: 3.6.9")
    assert kubernetes.cluster_programs([ETCD]) == {"etcd": etcd}


def test_ready_made_assets_come_before_path(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_program(bare / "bin" / "etcd", "etcd Version: 3.6.9")
    etcd = write_program(bare / "assets" / "etcd", "etcd Version: 3.6.8")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(bare / "assets"))
    assert kubernetes.cluster_programs([ETCD]) == {"etcd": etcd}


def test_another_version_is_reported_and_skipped(bare: Path) -> None:
    kubectl = write_program(bare / "bin" / "kubectl", "Client Version: v1.32.4")
    lines: list[str] = []
    with pytest.raises(MissingError, match=r"kubectl not found .* there is no Go to build with: install Go 1\.26\."):
        kubernetes.cluster_programs([KUBECTL], lines.append)
    assert lines == [f"{kubectl} is version 1.32.4; kubectl 1.36.x is required, so it is skipped."]


def test_a_built_program_is_found_again(bare: Path) -> None:
    go = bare / "bin" / "go"
    go.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\nprintf whole > "$2/etcd"\n')
    go.chmod(0o755)
    built = kubernetes.cluster_programs([ETCD])["etcd"]
    assert built.read_text() == "whole"
    go.unlink()
    assert kubernetes.cluster_programs([ETCD]) == {"etcd": built}


def test_a_failed_build_leaves_nothing(bare: Path) -> None:
    go = bare / "bin" / "go"
    go.write_text("#!/bin/sh\necho 'main.go:1: no such thing' >&2\nexit 1\n")
    go.chmod(0o755)
    with pytest.raises(ClusterError, match=r"main\.go:1: no such thing"):
        kubernetes.cluster_programs([ETCD])
    assert [path for path in (bare / "cache").rglob("*") if path.name != ".lock" and path.is_file()] == []


def test_a_locked_dependency_changes_the_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes, "TOOLS", tmp_path)
    (tmp_path / "etcd").mkdir()
    folders = set()
    for content in ("one", "two"):
        (tmp_path / "etcd" / "go.sum").write_text(content)
        folders.add(kubernetes.cache_folder("etcd", tmp_path))
    assert len(folders) == 2


def test_kind_with_docker(bare: Path) -> None:
    log = bare / "log"
    for name in ("docker", "kind"):
        program = write_program(bare / "bin" / name, "")
        program.write_text(f'#!/bin/sh\necho {name} "$@" >> {log}\n')
    assert kind.is_available()
    config = kind.up(bare / "state", lambda line: None)
    kind.down(bare / "state")
    commands = [" ".join(line.split()[:3]) for line in log.read_text().splitlines()]
    assert commands == [
        "docker info",
        "kind get clusters",
        "kind create cluster",
        "kind export kubeconfig",
        "kind delete cluster",
    ]
    assert not config.parent.exists()


def test_kind_without_docker(bare: Path) -> None:
    write_program(bare / "bin" / "kind", "")
    docker = write_program(bare / "bin" / "docker", "")
    docker.write_text("#!/bin/sh\nexit 1\n")
    assert not kind.is_available()


@pytest.mark.parametrize(
    ("labels", "total"),
    [({}, 6.0), ({"verb": "POST"}, 3.0), ({"verb": "POST|PUT", "resource": "pods"}, 3.0), ({"verb": "PO"}, 0.0)],
)
def test_sum_of_series(labels: dict[str, str], total: float) -> None:
    text = (
        "# HELP requests_total Requests.\n"
        'requests_total{verb="POST",resource="pods"} 1\n'
        'requests_total{verb="POST",resource="nodes"} 2\n'
        'requests_total{verb="PUT",resource="pods"} 2\n'
        "requests_total 1\n"
        'requests_total_more{verb="POST"} 100\n'
    )
    assert cluster.sum_series(text, "requests_total", labels) == total


def test_images_are_reproducible(tmp_path: Path) -> None:
    image = Image("pdx.local/a:1", {"bin/a": b"program"}, folders={"tmp": 0o1777}, entrypoint=("/bin/a",))
    one, two = (images.write(image, tmp_path / name).read_bytes() for name in ("one.tar", "two.tar"))
    assert one == two
    with tarfile.open(tmp_path / "one.tar") as archive:
        assert "manifest.json" in archive.getnames()
    assert os.path.getsize(tmp_path / "one.tar") < 100_000


def test_missing_packages_without_root(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(MissingError, match=r"^Install containerd runc \(Debian packages\), then try again\.$"):
        packages.require({"containerd": "containerd", "ctr": "containerd", "runc": "runc", "sh": "dash"}, print)
