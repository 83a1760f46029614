"""When a status is written: at once, later, or not at all."""

from types import SimpleNamespace
from typing import Any, cast

from pdx_api.kube.client import Cluster
from pdx_operator.controller.intervals import Intervals
from pdx_operator.controller.status_writer import StatusWriter
from pdx_operator.kube.cache import Cache
from pdx_operator.kube.resources import Key, Snapshot


async def test_conditions_are_written_at_once_and_counts_later() -> None:
    now = 100.0
    written: list[dict[str, Any]] = []

    async def write(namespace: str, name: str, *, uid: str, status: dict[str, Any]) -> dict[str, Any]:
        written.append(status)
        return _object(status, version=len(written) + 1)

    cache = Cache(lambda key, spec_changed: None)
    writer = StatusWriter(
        cast("Cluster", SimpleNamespace(apply_status=write)), cache, Key("ns", "m"), Intervals(), lambda: now
    )
    live: dict[str, Any] = {}

    async def write_status(status: dict[str, Any]) -> float:
        wait = await writer.write(Snapshot(_object(live["status"] if live else {}), {}), status)
        if not wait:
            live["status"] = status
        return wait

    assert await write_status(_status("False", 0)) == 0
    assert await write_status(_status("False", 0)) == 0
    assert len(written) == 1
    # A changed count waits; a changed condition does not.
    assert await write_status(_status("False", 1)) == 2.0
    assert await write_status(_status("True", 1)) == 0
    assert len(written) == 2
    now += 2.0
    assert await write_status(_status("True", 2)) == 0
    assert await write_status(_status("True", 3)) == 4.0
    # A condition of another writer is no difference.
    live["status"] = {**live["status"], "conditions": [*live["status"]["conditions"], {"type": "KVTransferVerified"}]}
    assert await write_status(_status("True", 2)) == 0
    assert len(written) == 3
    # A notice of another operator is one: to remove it is the answer.
    notice = {"type": "Managed", "status": "Unknown", "reason": "OwnerSilent"}
    live["status"] = {**_status("True", 2), "conditions": [*_status("True", 2)["conditions"], notice]}
    assert await write_status(_status("True", 2)) == 0
    assert len(written) == 4
    # Fields that a newer CRD fills in are no difference.
    live["status"] = {**_status("True", 2), "newer": {}, "roles": [{"readyReplicas": 2, "newer": 1}]}
    assert await write_status(_status("True", 2)) == 0
    assert len(written) == 4


def _status(ready: str, count: int) -> dict[str, Any]:
    return {"roles": [{"readyReplicas": count}], "conditions": [{"type": "Ready", "status": ready, "reason": "R"}]}


def _object(status: dict[str, Any], version: int = 1) -> dict[str, Any]:
    metadata = {"namespace": "ns", "name": "m", "uid": "u", "resourceVersion": str(version)}
    return {"kind": "PDDeployment", "metadata": metadata, "status": status}
