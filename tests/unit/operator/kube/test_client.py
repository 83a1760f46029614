"""The small parts of the runtime: delays, errors, Events, rights, flags."""

import asyncio
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kubernetes.aio import config

from pdx_operator.app.main import parse_arguments
from pdx_operator.app.permissions import ACCESS
from pdx_operator.app.settings import Intervals
from pdx_operator.controller import status_writer
from pdx_operator.controller.applier import Done
from pdx_operator.controller.reconciler import steps
from pdx_operator.kube import client
from pdx_operator.kube.backoff import Backoff
from pdx_operator.kube.cache import ChildKey, Key, Snapshot, Store
from pdx_operator.kube.client import (
    ApiError,
    AwayError,
    Cluster,
    ConflictError,
    ExpiredError,
    FaultError,
    MissingError,
    RefusedError,
)
from pdx_operator.kube.event_recorder import EventRecorder, Step
from pdx_operator.kube.resources import CHILD_KINDS, EVENT, PDDEPLOYMENT, POD, Kind
from pdx_operator.plan.reconcile_plan import Change


def test_delays_grow_to_a_limit_vary_and_begin_anew() -> None:
    backoff = Backoff(1.0, 5.0, lambda: 0.5)
    assert [backoff.next() for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    backoff.reset()
    assert backoff.next() == 1.0
    assert Backoff(1.0, 5.0, lambda: 0.0).next() == 0.5


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, RefusedError),
        (401, AwayError),
        (403, RefusedError),
        (404, MissingError),
        (409, ConflictError),
        (410, ExpiredError),
        (422, RefusedError),
        (429, AwayError),
        (500, FaultError),
        (503, FaultError),
    ],
)
def test_every_answer_is_one_error(status: int, kind: type[ApiError]) -> None:
    error = client.error_of(status, {"Retry-After": "7"}, "words")
    assert type(error) is kind
    assert str(error) == "words"
    assert error.status == status
    assert getattr(error, "after", 7.0) == 7.0


def test_only_a_status_object_is_quoted() -> None:
    assert client._message(b"<html>secret</html>") == ""
    assert client._message(b'{"message": "secret"}') == ""
    assert client._message(b'{"kind": "Status", "message": "words"}') == "words"
    error = client.error_of(500, {}, "")
    assert (type(error), str(error)) == (AwayError, "HTTP 500")


def test_a_field_that_does_not_exist_is_refused_and_no_fault() -> None:
    words = (
        "failed to create typed patch object (ns/d; apps/v1, Kind=Deployment): .spec.x: field not declared in schema"
    )
    assert type(client.error_of(500, {}, words)) is RefusedError


@pytest.mark.parametrize(
    ("kind", "place", "path"),
    [
        (POD, ("ns", "p", "log"), "/api/v1/namespaces/ns/pods/p/log"),
        (PDDEPLOYMENT, (None,), "/apis/pdx.dev/v1alpha1/pddeployments"),
        (EVENT, ("ns",), "/apis/events.k8s.io/v1/namespaces/ns/events"),
    ],
)
def test_paths(kind: Kind, place: tuple[Any, ...], path: str) -> None:
    assert kind.path(*place) == path


def test_every_kind_that_is_written_may_be() -> None:
    for kind in CHILD_KINDS:
        group = kind.api_version.rpartition("/")[0]
        resource = f"{kind.plural}.{group}" if group else kind.plural
        assert set(ACCESS[resource]) == {"create", "delete", "get", "list", "patch", "watch"}


def test_steps_name_what_was_done_by_kind() -> None:
    change = Change({"kind": "Service", "metadata": {"name": "s"}}, "u", "spec.selector")
    made = (ChildKey("Service", "b"), ChildKey("Deployment", "x"), ChildKey("Service", "a"))
    done = Done(made=made, changed=(change,), removed=(ChildKey("Service", "z"),))
    assert steps(done) == [
        Step("Created", "Created Deployment x; Service a, b."),
        Step("Updated", "Updated Service s (spec.selector)."),
        Step("Removed", "Removed Service z."),
    ]
    assert steps(Done()) == []


async def test_an_event_is_written_as_kubernetes_wants_it_and_a_refused_one_is_dropped() -> None:
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
        recorder.post(Key("ns", "m"), "u", Step("Ready", note, warning=True))
    task = asyncio.create_task(recorder.run())
    await both.wait()
    task.cancel()
    first, second = written
    assert first["metadata"]["name"] != second["metadata"]["name"]
    assert first["eventTime"] == "2026-01-02T03:04:05.000006Z"
    assert first["type"] == "Warning"
    assert first["regarding"]["uid"] == "u"
    assert len(second["note"].encode()) <= 1024


async def test_a_status_is_written_at_once_or_later_or_not_at_all() -> None:
    now = 100.0
    written: list[dict[str, Any]] = []

    async def write(namespace: str, name: str, *, uid: str, status: dict[str, Any]) -> dict[str, Any]:
        written.append(status)
        return _object(status, version=len(written) + 1)

    store = Store(lambda key, urgent: None)
    reporter = status_writer.Reporter(
        cast("Cluster", SimpleNamespace(report=write)), store, Key("ns", "m"), Intervals(), lambda: now
    )
    live: dict[str, Any] = {}

    async def turn(status: dict[str, Any]) -> float:
        wait = await reporter.write(Snapshot(_object(live["status"] if live else {}), {}), status)
        if not wait:
            live["status"] = status
        return wait

    assert await turn(_status("False", 0)) == 0
    assert await turn(_status("False", 0)) == 0
    assert len(written) == 1
    # A number alone waits; a condition does not.
    assert await turn(_status("False", 1)) == 2.0
    assert await turn(_status("True", 1)) == 0
    assert len(written) == 2
    now += 2.0
    assert await turn(_status("True", 2)) == 0
    assert await turn(_status("True", 3)) == 4.0
    # A condition of somebody else is no difference.
    live["status"] = {**live["status"], "conditions": [*live["status"]["conditions"], {"type": "KVTransferVerified"}]}
    assert await turn(_status("True", 2)) == 0
    assert len(written) == 3


def _status(ready: str, count: int) -> dict[str, Any]:
    return {"prefill": {"ready": count}, "conditions": [{"type": "Ready", "status": ready, "reason": "R"}]}


def _object(status: dict[str, Any], version: int = 1) -> dict[str, Any]:
    metadata = {"namespace": "ns", "name": "m", "uid": "u", "resourceVersion": str(version)}
    return {"kind": "PDDeployment", "metadata": metadata, "status": status}


def test_flags() -> None:
    settings = parse_arguments(["--namespace", "a", "--namespace", "b", "--namespace", "a", "--health-port", "1"])
    assert settings.namespaces == ("a", "b")
    assert settings.health_port == 1
    assert not parse_arguments([]).verbose


@pytest.mark.parametrize(
    ("environment", "expected"), [({}, ["cluster"]), ({"KUBECONFIG": "k"}, ["file"])], ids=["a pod's own", "KUBECONFIG"]
)
async def test_a_kubeconfig_that_is_named_comes_before_the_service_account(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: list[str]
) -> None:
    used: list[str] = []

    async def load(**_: Any) -> None:
        used.append("file")

    monkeypatch.delenv("KUBECONFIG", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(config, "load_incluster_config", lambda settings: used.append("cluster"))
    monkeypatch.setattr(config, "load_kube_config", load)
    connected = await Cluster.connect(1, 1, lambda verb, code: None)
    await connected.close()
    assert used == expected
