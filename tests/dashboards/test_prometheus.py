"""Where Prometheus' programs come from."""

import subprocess
from pathlib import Path

import pytest

from pdx_cluster.errors import MissingError
from pdx_cluster.programs import prometheus
from pdx_cluster.programs.prometheus import PROGRAMS, prometheus_programs


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "pdx" / "prometheus"


def only(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Have these commands on PATH and no others."""
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}" if name in names else None)


def test_installed_programs_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, *PROGRAMS)

    assert prometheus_programs() == {name: Path("/usr/bin") / name for name in PROGRAMS}


def test_a_cache_is_filled_once(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    only(monkeypatch, "apt-get", "dpkg-deb")
    ran: list[str] = []

    def run(command: list[str], folder: Path) -> "subprocess.CompletedProcess[str]":
        ran.append(" ".join(command[:2]))
        if command[0] == "apt-get" and command[1] == "download" and "apt-get update" not in ran:
            return subprocess.CompletedProcess(command, 100, "", "no such package")
        if command[0] == "dpkg-deb":
            (folder / "content" / "usr" / "bin").mkdir(parents=True)
            for name in PROGRAMS:
                (folder / "content" / "usr" / "bin" / name).write_bytes(b"open /usr/share/prometheus/alertmanager!")
        else:
            (folder / f"{command[-1]}_1.0_amd64.deb").touch()
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(prometheus, "_run", run)

    assert prometheus_programs() == prometheus_programs() == {name: cache / name for name in PROGRAMS}
    assert (
        ran == ["apt-get download", "apt-get update", "apt-get download", *["dpkg-deb -x", "apt-get download"] * 2][:-1]
    )
    assert (cache / PROGRAMS[-1]).read_bytes() == b"open ." + b"/" * 33 + b"!", "the templates are read from the cache"


def test_a_missing_program_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch)
    with pytest.raises(MissingError, match="Debian package prometheus"):
        prometheus_programs()
