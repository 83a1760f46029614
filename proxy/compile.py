"""`python proxy/compile.py TARGET`: compile the gateway's hot modules with mypyc, beside the Python files in TARGET.

TARGET is the folder that holds `pdx_proxy` (site-packages of an environment, or a copy of `proxy/`). The Python files
stay: what is compiled is taken first, and without it everything runs as it stands there. Needs mypy, setuptools, a C
compiler and Python's headers; mypy finds the gateway's dependencies in the environment of `--python`.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

HOT: Final = (
    "admission/admission",
    "admission/api_keys",
    "admission/retry_budget",
    "balancing/chooser",
    "balancing/load",
    "balancing/pick",
    "balancing/policies",
    "balancing/shared_load",
    "engines/engines",
    "engines/leg",
    "engines/outlier_detection",
    "engines/transfer_params",
    "handoff/base",
    "handoff/pool",
    "handoff/prefill_first",
    "handoff/pull",
    "handoff/push",
    "handoff/push_settlement",
    "handoff/serving_state",
    "handoff/settlement",
    "http/downstream/exchange",
    "http/downstream/http1",
    "http/messages",
    "http/upstream/connection",
    "http/upstream/connection_pool",
    "http/upstream/deadline",
    "payload/first_event",
    "payload/request",
    "serving/gateway",
    "serving/relay",
    "telemetry/counters",
    "telemetry/timeline",
)
"""Modules that every request passes, but for what goes to other processes: compiled classes cannot be pickled."""

_SETUP: Final = """
import sys
from setuptools import setup
from mypyc.build import mypycify
setup(name="pdx-hot", packages=[], ext_modules=mypycify(sys.argv.pop().split("|"), opt_level="3", strip_asserts=False))
"""


def compile_modules(target: Path, python: str, path: str) -> None:
    """Compile into `target`; raises CalledProcessError with the compiler's words."""
    files = [str(target / "pdx_proxy" / f"{name}.py") for name in HOT]
    options = ["--python-executable", python, "--strict", "--follow-untyped-imports"]
    with tempfile.TemporaryDirectory() as folder:
        setup = Path(folder) / "setup.py"
        setup.write_text(_SETUP)
        command = [sys.executable, str(setup), "build_ext", "--build-lib", str(target), "--build-temp", folder]
        environment = {**os.environ, "MYPYPATH": f"{target}:{path}"}
        subprocess.run([*command, "|".join([*options, *files])], cwd=folder, env=environment, check=True)  # noqa: S603


def main() -> None:
    """Compile as the command line says."""
    parser = argparse.ArgumentParser(prog="python proxy/compile.py", description=__doc__)
    parser.add_argument("target", type=Path, help="the folder that holds pdx_proxy")
    parser.add_argument("--python", default=sys.executable, help="whose packages the gateway runs with (%(default)s)")
    parser.add_argument("--path", default="", help="folders of further packages, as in MYPYPATH")
    given = parser.parse_args()
    compile_modules(given.target.resolve(), given.python, given.path)


if __name__ == "__main__":
    main()
