"""The tests of Anthropic's SDK for /v1/messages, from its source distribution, against an engine or a gateway.

The project contains no copy of them. `python -m tests.sdk_suite` puts the distribution of the locked version into a
cache; without it, the tests that need it are skipped by name.
"""

import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import venv
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final

import pytest

_ROOT: Final = Path(__file__).parents[1]
_LOCK: Final = _ROOT / "requirements" / "dev.lock"
_CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pdx" / "sdk"
_FILES: Final = (
    *("tests/__init__.py", "tests/utils.py", "tests/api_resources/__init__.py", "tests/api_resources/test_messages.py"),
    *("tests/api_resources/beta/__init__.py", "tests/api_resources/beta/test_messages.py"),
)
_LEFT_OUT: Final = "not aiohttp"
"""The SDK's second transport, for which it needs another package."""
ALL: Final = "test"
EACH_ONCE: Final = "TestMessages and strict"
"""Each request once, by the synchronous client."""
_SECONDS: Final = 500


def locked() -> tuple[str, frozenset[str], str]:
    """The version of the SDK, the hashes of its files, and their lines in the lock."""
    found = re.search(
        r"^anthropic==(\S+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", _LOCK.read_text(), re.MULTILINE
    )
    assert found is not None, _LOCK
    return found[1], frozenset(re.findall(r"[0-9a-f]{64}", found[2])), found[0]


def archive() -> Path | None:
    """The distribution in the cache; None if it is not there, or is another one than the lock names."""
    version, hashes, _ = locked()
    path = _CACHE / f"anthropic-{version}.tar.gz"
    return path if path.exists() and sha256(path.read_bytes()).hexdigest() in hashes else None


def fetch() -> int:
    """Download the distribution of the locked version into the cache. Returns 1 if it cannot be had."""
    if archive() is not None:
        return 0
    with tempfile.TemporaryDirectory() as folder:
        requirements = Path(folder, "requirements.txt")
        requirements.write_text(locked()[2])
        python = Path(folder, "venv", "bin", "python")
        venv.create(python.parents[1], with_pip=True)
        options = ("--no-deps", "--no-binary=anthropic", "--require-hashes", "--requirement", requirements)
        _CACHE.mkdir(parents=True, exist_ok=True)
        done = subprocess.run([python, "-m", "pip", "download", "-q", "--dest", _CACHE, *options], check=False)
    if done.returncode or archive() is None:
        sys.stderr.write("The tests of Anthropic's SDK cannot be had: they are skipped.\n")
        return 1
    return 0


def unpacked(folder: Path) -> Path:
    """The SDK's tests in a new folder; a skip if they cannot be had."""
    found = archive()
    if found is None:
        pytest.skip(f"Anthropic's SDK {locked()[0]} is not in {_CACHE}: run `python -m tests.sdk_suite`")
    with tarfile.open(found) as distribution:
        for name in _FILES:
            member = distribution.extractfile(f"{found.name.removesuffix('.tar.gz')}/{name}")
            assert member is not None
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(member.read())
    (folder / "tests" / "conftest.py").write_bytes((Path(__file__).parent / "sdk_suite_clients.py").read_bytes())
    return folder


def outcomes(folder: Path, url: str, model: str, which: str = ALL) -> Mapping[str, str]:
    """Run the tests against a server: the outcome of each. `model` takes the place of the models that they name.

    `which` selects tests, as pytest's option `-k` does.
    """
    report = folder / "outcomes.jsonl"
    report.unlink(missing_ok=True)
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("ANTHROPIC_", "PYTEST_"))}
    environment = {**plain, "TEST_API_BASE_URL": url, "TEST_MODEL": model, "TEST_REPORT": str(report), "PYTHONPATH": ""}
    options = ("-q", "-c", os.devnull, "--rootdir", str(folder), "-p", "no:cacheprovider", "--asyncio-mode=auto")
    with (folder / "log.txt").open("wb") as log:
        command = [sys.executable, "-m", "pytest", *options, "-k", f"{_LEFT_OUT} and {which}", "tests"]
        subprocess.run(command, cwd=folder, env=environment, stdout=log, stderr=log, timeout=_SECONDS, check=False)
    assert report.exists(), (folder / "log.txt").read_text()[-3000:]
    return dict(json.loads(line) for line in report.read_text().splitlines())


def lost(direct: Mapping[str, str], through: Mapping[str, str]) -> list[str]:
    """The tests that pass against the engine and not through the gateway."""
    return [name for name, outcome in direct.items() if outcome == "passed" and through.get(name) != "passed"]


if __name__ == "__main__":
    sys.exit(fetch())
