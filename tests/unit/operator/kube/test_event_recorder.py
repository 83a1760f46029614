"""Events: written one after the other, within the API server's limits."""

import asyncio
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

from pdx_api.kube.client import Cluster, RefusedError
from pdx_api.kube.kinds import Kind
from pdx_operator.kube.event_recorder import EventRecorder
from pdx_operator.kube.resources import Event, Key


async def test_events_are_written_and_rejected_ones_dropped() -> None:
    written: list[dict[str, Any]] = []
    both = asyncio.Event()

    async def create(kind: Kind, namespace: str, body: dict[str, Any]) -> None:
        written.append(body)
        if len(written) == 1:
            raise RefusedError("no")
        both.set()

    fake = cast("Cluster", SimpleNamespace(create=create))
    recorder = EventRecorder(fake, "host", lambda: datetime(2026, 1, 2, 3, 4, 5, 6, UTC))
    for note in ("first", "ä" * 2000):
        recorder.record(Key("ns", "m"), "u", Event("Ready", note, warning=True))
    task = asyncio.create_task(recorder.run())
    await both.wait()
    task.cancel()
    first, second = written
    assert first["metadata"]["name"] != second["metadata"]["name"]
    assert first["eventTime"] == "2026-01-02T03:04:05.000006Z"
    assert first["type"] == "Warning"
    assert first["regarding"]["uid"] == "u"
    assert len(second["note"].encode()) <= 1024
