"""`python proxy/compile.py TARGET`: compile the gateway's hot modules with mypyc, next to the Python files in TARGET.

TARGET is the folder that contains `pdx_proxy` (site-packages of an environment, or a copy of `proxy/`). The Python
files stay: Python imports a compiled module first and runs the file without it. Needs mypy, setuptools, a C compiler
and Python's headers. mypy finds the gateway's dependencies in the environment of `--python`.
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
    "admission/fair_queue",
    "admission/permit",
    "admission/retry_budget",
    "admission/senders",
    "admission/usage",
    "balancing/chooser",
    "balancing/decode/balancer",
    "balancing/decode/itl",
    "balancing/decode/kept_prompts",
    "balancing/decode/placement",
    "balancing/decode/reservations",
    "balancing/decode/view",
    "balancing/load",
    "balancing/pick",
    "balancing/policies",
    "balancing/prefill/backlog",
    "balancing/prefill/balancer",
    "balancing/prefill/expected_wait",
    "balancing/prefill/prefix_cache",
    "balancing/prefill/rate",
    "balancing/prefill/shared_log",
    "balancing/shared_load",
    "endpoints/endpoint",
    "endpoints/snapshot",
    "engines/upstreams",
    "engines/leg",
    "engines/leg_observer",
    "engines/observer",
    "engines/attribution",
    "engines/outlier_detection",
    "engines/param_checks",
    "engines/transfer_params",
    "handoff/failures",
    "handoff/push_watch",
    "handoff/handshakes",
    "handoff/prefill_first_legs",
    "handoff/pool",
    "handoff/pull",
    "handoff/pull_watch",
    "handoff/push",
    "handoff/push_legs",
    "handoff/push_prefill",
    "handoff/request",
    "handoff/settlements",
    "handoff/transfer",
    "handoff/worker_state",
    "http/downstream/exchange",
    "http/downstream/head",
    "http/downstream/http1",
    "http/downstream/transport",
    "http/errors",
    "http/messages",
    "http/upstream/answer",
    "http/upstream/connection",
    "http/upstream/connection_pool",
    "http/upstream/deadline",
    "payload/answer_members",
    "payload/apis",
    "payload/body",
    "payload/cache_hits",
    "payload/decisions",
    "payload/features",
    "payload/first_event",
    "payload/json_scanner",
    "payload/prompt_blocks",
    "payload/prompt_tokens",
    "payload/structure",
    "serving/answers",
    "serving/attempts",
    "serving/gateway",
    "serving/isolation",
    "serving/params_sink",
    "serving/reader",
    "serving/relay",
    "serving/retry",
    "serving/usage_sink",
    "telemetry/counters",
    "telemetry/timeline",
    "telemetry/trace_context",
)
"""The modules that every request runs through.

Without most of those whose objects are sent to other processes: of a compiled class, only objects that define
`__reduce__` can be pickled.
"""
_SETUP: Final = """
import sys
from setuptools import setup
from mypyc.build import mypycify
modules = mypycify(sys.argv.pop().split("|"), opt_level="3", debug_level="0", strip_asserts=False)
setup(name="pdx-hot", packages=[], ext_modules=modules)
"""
_FLAGS: Final = "-Wno-all -fno-semantic-interposition -fvisibility=hidden -fno-plt"
"""Analysing 45 MB of generated C for the warnings that Python's own flags request takes half of gcc's time. With the
other flags, compiled functions call each other and Python directly."""


def compile_modules(target: Path, python: str, path: str) -> None:
    """Compile into `target`; raises CalledProcessError."""
    files = [str(target / "pdx_proxy" / f"{name}.py") for name in HOT]
    options = ["--python-executable", python, "--strict", "--follow-untyped-imports"]
    with tempfile.TemporaryDirectory() as folder:
        setup = Path(folder) / "setup.py"
        setup.write_text(_SETUP)
        command = [sys.executable, str(setup), "build_ext", "--build-lib", str(target), "--build-temp", folder]
        flags = f"{os.environ.get('CFLAGS', '')} {_FLAGS}"
        environment = {**os.environ, "MYPYPATH": f"{target}:{path}", "CFLAGS": flags}
        subprocess.run([*command, "|".join([*options, *files])], cwd=folder, env=environment, check=True)  # noqa: S603


def main() -> None:
    """Compile as the command line requests."""
    parser = argparse.ArgumentParser(prog="python proxy/compile.py", description=__doc__)
    parser.add_argument("target", type=Path, help="the folder that contains pdx_proxy")
    parser.add_argument("--python", default=sys.executable, help="Python whose packages the gateway uses (%(default)s)")
    parser.add_argument("--path", default="", help="folders of further packages, as in MYPYPATH")
    given = parser.parse_args()
    compile_modules(given.target.resolve(), given.python, given.path)


if __name__ == "__main__":
    main()
