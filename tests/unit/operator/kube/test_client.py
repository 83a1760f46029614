"""The API client: errors, paths, and the choice of the kubeconfig."""

from typing import Any

import pytest
from kubernetes.aio import config

from pdx_operator.kube import client
from pdx_operator.kube.client import (
    ApiError,
    Cluster,
    ConflictError,
    ExpiredError,
    FaultError,
    MissingError,
    RefusedError,
    UnavailableError,
)
from pdx_operator.kube.resources import EVENT, PDDEPLOYMENT, POD, Kind


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, RefusedError),
        (401, UnavailableError),
        (403, RefusedError),
        (404, MissingError),
        (409, ConflictError),
        (410, ExpiredError),
        (422, RefusedError),
        (429, UnavailableError),
        (500, FaultError),
        (503, FaultError),
    ],
)
def test_errors_by_status(status: int, kind: type[ApiError]) -> None:
    error = client.error_of(status, {"Retry-After": "7"}, "text")
    assert type(error) is kind
    assert str(error) == "text"
    assert error.status == status
    assert getattr(error, "after", 7.0) == 7.0


def test_only_a_status_object_is_quoted() -> None:
    assert client._message(b"<html>secret</html>") == ""
    assert client._message(b'{"message": "secret"}') == ""
    assert client._message(b'{"kind": "Status", "message": "text"}') == "text"
    error = client.error_of(500, {}, "")
    assert (type(error), str(error)) == (UnavailableError, "HTTP 500")


def test_an_unserved_field_is_rejected() -> None:
    text = "failed to create typed patch object (ns/d; apps/v1, Kind=Deployment): .spec.x: field not declared in schema"
    assert type(client.error_of(500, {}, text)) is RefusedError


@pytest.mark.parametrize(
    ("kind", "parts", "path"),
    [
        (POD, ("ns", "p", "log"), "/api/v1/namespaces/ns/pods/p/log"),
        (PDDEPLOYMENT, (None,), "/apis/pdx.dev/v1alpha1/pddeployments"),
        (EVENT, ("ns",), "/apis/events.k8s.io/v1/namespaces/ns/events"),
    ],
)
def test_paths(kind: Kind, parts: tuple[Any, ...], path: str) -> None:
    assert kind.path(*parts) == path


@pytest.mark.parametrize(
    ("environment", "expected"), [({}, ["cluster"]), ({"KUBECONFIG": "k"}, ["file"])], ids=["a pod's own", "KUBECONFIG"]
)
async def test_kubeconfig_precedes_the_service_account(
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
