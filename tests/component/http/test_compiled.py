"""The gateway compiled by mypyc, as its image contains it, passes the tests of HTTP and of hostile input.

The campaign of random input takes two seconds here instead of twenty. HTTP tests that replace
a constant (to force the fallback) or a function of the gateway are excluded: compiled code has its own copies. Hostile
input reaches the fallback anyway. `make test` runs the HTTP tests in one order, and `make soak` in all.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from proxy.compile import HOT, cache_root, compiled_copy

ROOT = Path(__file__).resolve().parents[3]
FUZZ_SECONDS = "2"
TESTS = ("tests/component/http/test_http.py", "tests/component/http/test_hostile.py")
SELECTION = "hostile or not (aiohttp or fallback or error_amid{})"
ONE_ORDER = " or DecodeFirst or Concurrent"
COMPILE_SECONDS = 1500
"""Compilation takes minutes on two busy cores; with a warm cache it takes no time."""
RUN_SECONDS = 240
"""Twenty seconds on an idle machine."""
LOAD = """
import importlib, sys
for name in sys.argv[1:]:
    print(importlib.import_module(name).__file__)
"""


@pytest.fixture(scope="module")
def compiled() -> Path:
    return compiled_copy(ROOT, cache_root(os.environ))


def run(compiled: Path, *arguments: str, seconds: float) -> subprocess.CompletedProcess[str]:
    """Run Python with the compiled gateway before the installed one."""
    environment = {**os.environ, "PYTHONPATH": str(compiled), "PDX_FUZZ_SECONDS": FUZZ_SECONDS}
    command = [sys.executable, "-P", *arguments]
    return subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False
    )


@pytest.mark.timeout(COMPILE_SECONDS)
def test_the_hot_modules_are_loaded_as_native_code(compiled: Path) -> None:
    modules = [f"pdx_proxy.{name.replace('/', '.')}" for name in HOT]
    loaded = run(compiled, "-c", LOAD, *modules, seconds=60)
    assert loaded.returncode == 0, loaded.stderr
    files = [Path(line) for line in loaded.stdout.splitlines()]
    assert len(files) == len(HOT)
    assert not [file for file in files if file.suffix != ".so" or not file.is_relative_to(compiled)]


@pytest.mark.timeout(COMPILE_SECONDS)
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
