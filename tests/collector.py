"""A real OpenTelemetry Collector as a process: what it receives, it appends to a file."""

import contextlib
import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pdx_cli.local.ports import allocate
from pdx_cluster.errors import MissingError
from pdx_cluster.programs.kubernetes import COLLECTOR, cluster_programs
from tests.otlp import ReceivedSpan, read_spans

_START_SECONDS = 60.0


@dataclass(frozen=True)
class Collector:
    """A running collector."""

    endpoint: str
    file: Path

    @property
    def spans(self) -> list[ReceivedSpan]:
        """Everything that it has received."""
        return read_spans(self.file)


@contextlib.contextmanager
def collector(folder: Path) -> Iterator[Collector]:
    """Run a collector that writes into the folder. It is built once, into the cache of the cluster's programs."""
    try:
        program = cluster_programs([COLLECTOR])[COLLECTOR.name]
    except MissingError as missing:
        pytest.skip(str(missing))
    (port,) = allocate(1)
    found = Collector(f"http://127.0.0.1:{port}", folder / "traces.jsonl")
    config = {
        "receivers": {"otlp": {"protocols": {"http": {"endpoint": f"127.0.0.1:{port}"}}}},
        "exporters": {"file": {"path": str(found.file)}},
        "service": {
            "pipelines": {"traces": {"receivers": ["otlp"], "exporters": ["file"]}},
            "telemetry": {"metrics": {"level": "none"}},
        },
    }
    with (folder / "collector.log").open("wb") as log:
        process = subprocess.Popen([program, f"--config=yaml:{json.dumps(config)}"], stdout=log, stderr=log)
    try:
        _await_start(found.endpoint, process, folder / "collector.log")
        yield found
    finally:
        process.terminate()
        process.wait(timeout=30)


def _await_start(endpoint: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        request = urllib.request.Request(
            f"{endpoint}/v1/traces", b"{}", {"Content-Type": "application/json"}, method="POST"
        )
        with contextlib.suppress(urllib.error.URLError), urllib.request.urlopen(request, timeout=5):
            return
        time.sleep(0.1)
    raise AssertionError(f"the collector does not answer:\n{log.read_text()}")
