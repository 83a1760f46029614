"""The cache of compiled modules beside the package."""

import os
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

import pdx_api
import pdx_cli
import pdx_proxy

SUFFIX = EXTENSION_SUFFIXES[0]
STATE = "import pdx_proxy.http.target as t; from pdx_proxy import compiled; print(t.__file__); print(compiled.state())"
SCRIPT = """
import subprocess, sys, sysconfig
from pathlib import Path
target = Path(sys.argv[1])
assert sys.argv[2] == "--path" and (Path(sys.argv[3]) / "pdx_api").is_dir()
for name, folder in (("ab__mypyc", ""), ("target", "pdx_proxy/http/")):
    source = target / "source.c"
    source.write_text(
        '#include <Python.h>\\nstatic struct PyModuleDef m = {{PyModuleDef_HEAD_INIT, "x", 0, -1, 0}};\\n'
        "PyMODINIT_FUNC PyInit_" + name + "(void) {{ return PyModule_Create(&m); }}\\n"
    )
    include = sysconfig.get_paths()["include"]
    built = str(target / (folder + name + "{suffix}"))
    subprocess.run(["cc", "-shared", "-fPIC", "-I", include, str(source), "-o", built], check=True)
"""
PDX = "import sys; from pdx_cli.main import main; sys.exit(main(['gateway', '{}']))"
BUILD = "from pdx_proxy import compiled; print(compiled.build())"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Return a folder with a copy of the package, whose compiler writes one module."""
    shutil.copytree(
        Path(pdx_proxy.__file__).parent, tmp_path / "pdx_proxy", ignore=shutil.ignore_patterns("__pycache__")
    )
    (tmp_path / "compile.py").write_text(SCRIPT.format(suffix=SUFFIX))
    return tmp_path


def run(package: Path, program: str, **more: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join((str(package), *(str(Path(str(each.__file__)).parents[1]) for each in (pdx_api, pdx_cli))))
    environment = {**os.environ, "PDX_COMPILED": "", "PYTHONPATH": path, **more}
    command = [sys.executable, "-P", "-c", program]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)


def test_what_was_compiled_is_used_as_long_as_the_sources_are_the_same(package: Path) -> None:
    assert run(package, STATE).stdout == f"{package}/pdx_proxy/http/target.py\nnot compiled (about half as fast)\n"
    built = Path(run(package, BUILD).stdout.strip())
    assert built.parent == package / ".compiled"
    assert Path(run(package, BUILD).stdout.strip()) == built, "nothing is compiled again"
    assert run(package, STATE).stdout.startswith(f"{built}/pdx_proxy/http/target{SUFFIX}\n")
    assert run(package, STATE, PDX_COMPILED="0").returncode == 0
    version = run(package, PDX.format("--version"), PDX_COMPILED="0").stdout
    assert version.startswith("pdx gateway "), version
    assert version.endswith(": not compiled (about half as fast)\n")
    with (package / "pdx_proxy/http/target.py").open("a") as file:
        file.write("# changed\n")
    assert run(package, STATE).stdout.startswith(f"{package}/pdx_proxy/http/target.py\n"), "another source"
    again = Path(run(package, BUILD).stdout.strip())
    assert {*again.parent.iterdir()} == {again, again.parent / ".lock"}
    assert again != built


def test_a_build_that_cannot_be_loaded_is_not_used_and_is_built_again(package: Path) -> None:
    built = Path(run(package, BUILD).stdout.strip())
    (built / f"ab__mypyc{SUFFIX}").write_bytes(b"no library")
    assert run(package, STATE).stdout == f"{package}/pdx_proxy/http/target.py\nnot compiled (about half as fast)\n"
    assert run(package, BUILD).stdout.strip() == str(built)
    assert run(package, STATE).stdout.startswith(f"{built}/")


def test_sources_that_are_being_edited_stop_nothing(package: Path) -> None:
    (package / ".compiled").mkdir()
    (package / "pdx_proxy/.#target.py").symlink_to("nobody@nowhere")
    assert run(package, STATE).returncode == 0


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (
            "import sys; sys.exit('no cc')",
            "mypyc has failed; it needs mypy, setuptools, a C compiler and Python's headers",
        ),
        (None, "compile.py does not exist"),
    ],
)
def test_a_build_that_fails_leaves_nothing(script: str | None, reason: str, package: Path) -> None:
    (package / "compile.py").unlink() if script is None else (package / "compile.py").write_text(script)
    done = run(package, PDX.format("--compile"))
    assert done.returncode == 1
    assert reason in done.stderr
    assert "Traceback" not in done.stderr
    assert {path.name for path in package.glob(".compiled/*")} <= {".lock"}
