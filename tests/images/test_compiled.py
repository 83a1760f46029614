"""The gateway as the image contains it, with modules compiled by mypyc, passes the tests of HTTP and of hostile input.

The random input takes two seconds here instead of eight. HTTP tests that replace a constant (to force the fallback) or
a function of the gateway are excluded: compiled code has its own copies. Hostile input reaches the fallback anyway.
`make test` runs the HTTP tests in one order. `make soak` runs them in all orders, but leaves out the ten minutes of
random input in each order.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from images.build import ROOT
from proxy.compile import HOT
from tests.images.conftest import Image

FUZZ_SECONDS = "2"
TESTS = ("tests/component/http/test_http.py", "tests/component/http/test_hostile.py")
SELECTION = "not for_long and (hostile or not (aiohttp or fallback or error_amid{}))"
ONE_ORDER = " or DecodeFirst or Concurrent"
RUN_SECONDS = 240
"""Twenty seconds on an idle machine."""
LOAD = """
import importlib, sys
for name in sys.argv[1:]:
    print(importlib.import_module(name).__file__)
"""


@pytest.fixture(scope="module")
def compiled(images: Callable[[str], Image], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the `pdx_proxy` of the image."""
    [packages] = (images("gateway").root / "opt/pdx/lib").glob("python3*/site-packages")
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    if packages.parent.name != python:
        pytest.skip(f"the image contains modules for {packages.parent.name}, and this is {python}")
    folder = tmp_path_factory.mktemp("compiled")
    shutil.copytree(packages / "pdx_proxy", folder / "pdx_proxy")
    for shared in packages.glob("*__mypyc*.so"):
        shutil.copy(shared, folder)
    return folder


def run(compiled: Path, *arguments: str, seconds: float) -> subprocess.CompletedProcess[str]:
    """Run Python with the compiled gateway before the installed one."""
    environment = {**os.environ, "PYTHONPATH": str(compiled), "PDX_FUZZ_SECONDS": FUZZ_SECONDS}
    command = [sys.executable, "-P", *arguments]
    return subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False
    )


def test_the_hot_modules_are_loaded_as_native_code(compiled: Path) -> None:
    modules = [f"pdx_proxy.{name.replace('/', '.')}" for name in HOT]
    loaded = run(compiled, "-c", LOAD, *modules, seconds=60)
    assert loaded.returncode == 0, loaded.stderr
    files = [Path(line) for line in loaded.stdout.splitlines()]
    assert len(files) == len(HOT)
    assert not [file for file in files if file.suffix != ".so" or not file.is_relative_to(compiled)]


@pytest.mark.parametrize(
    ("marks", "less"),
    [("not soak", ONE_ORDER), pytest.param("", "", marks=pytest.mark.soak)],
    ids=["one order", "all"],
)
def test_the_compiled_gateway_serves_http(marks: str, less: str, compiled: Path) -> None:
    ended = run(
        compiled,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--timeout=30",
        "-m",
        marks,
        "-k",
        SELECTION.format(less),
        *TESTS,
        seconds=RUN_SECONDS,
    )
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-2000:]
    assert " passed" in ended.stdout
