"""The API client: errors, paths, and the choice of the kubeconfig."""

from pathlib import Path
from typing import Any

import pytest
from kubernetes.aio import config

from pdx_api.kube import client
from pdx_api.kube.client import (
    ApiError,
    Cluster,
    ConflictError,
    ExpiredError,
    FaultError,
    MissingError,
    RefusedError,
    Request,
    UnavailableError,
    UnreadableAnswerError,
)
from pdx_api.kube.credentials import CredentialsError
from pdx_api.kube.kinds import EVENT, PDDEPLOYMENT, POD, Kind


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


@pytest.mark.parametrize(("header", "seconds"), [("3600", 60.0), ("0", 0.0), ("²", 0.0), ("-5", 0.0), ("soon", 0.0)])
def test_an_odd_wait_is_bounded(header: str, seconds: float) -> None:
    error = client.error_of(503, {"Retry-After": header}, "")
    assert isinstance(error, UnavailableError)
    assert error.after == seconds


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
    ("given", "in_pod", "expected"),
    [(False, True, ["pod"]), (True, True, ["given"]), (False, False, ["pod", ".kube/config"])],
    ids=["a pod's own", "KUBECONFIG", "a user's own"],
)
async def test_kubeconfig_precedes_the_service_account(
    given: bool, in_pod: bool, expected: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    used: list[str] = []

    def load_pod(settings: Any) -> None:
        used.append("pod")
        if not in_pod:
            raise config.ConfigException("none")

    async def load_file(path: str, **_: Any) -> None:
        used.append(str(Path(path).relative_to(tmp_path)))

    (tmp_path / ".kube").mkdir()
    for name in ("given", ".kube/config"):
        (tmp_path / name).touch()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "given") if given else "")
    monkeypatch.setattr(config, "load_incluster_config", load_pod)
    monkeypatch.setattr(config, "load_kube_config", load_file)
    connected = await Cluster.connect("pdx-test", 1, 1)
    await connected.close()
    assert used == expected


async def test_a_users_own_kubeconfig_may_be_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A gateway must not take the engines of the cluster that somebody works on."""
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube/config").touch()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    with pytest.raises(CredentialsError):
        await Cluster.connect("pdx-test", 1, 1, own=False)


KUBECONFIG = """\
current-context: c
contexts: [{name: c, context: {cluster: cl, user: u}}]
clusters: [{name: cl, cluster: {server: "https://h:6443"}}]
users: [{name: u, user: {token: x}}]
"""


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (KUBECONFIG.replace("6443", "99999"), "the server https://h:99999 in FILE is not a URL: its port is not a num"),
        (KUBECONFIG.replace("h:6443", "[::1"), "the server https://[::1 in FILE is not a URL: the brackets around its"),
        (KUBECONFIG.replace("h:6443", "a..b"), "the server https://a..b in FILE is not a URL: its host name has an em"),
        (KUBECONFIG.replace('"https://h:6443"', "5"), "FILE is not a kubeconfig with a cluster and a user"),
        ("[", "FILE is not a kubeconfig with a cluster and a user"),
    ],
)
async def test_a_kubeconfig_that_cannot_be_used(
    text: str, problem: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "config"
    file.write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(file))
    with pytest.raises(CredentialsError) as error:
        await Cluster.connect("pdx-test", 1, 1)
    assert str(error.value).replace(str(file), "FILE").startswith(problem)


async def test_a_proxy_variable_that_names_no_proxy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config").write_text(KUBECONFIG)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    monkeypatch.setenv("HTTPS_PROXY", "http://p..q:1")
    with pytest.raises(CredentialsError, match=r"^HTTPS_PROXY is http://p\.\.q:1, which is not the URL of a proxy"):
        await Cluster.connect("pdx-test", 1, 1)


async def test_a_kubeconfig_below_the_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    used: list[str] = []

    async def load_file(path: str, **_: Any) -> None:
        used.append(path)

    (tmp_path / "given").touch()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", "~/given")
    monkeypatch.setattr(config, "load_kube_config", load_file)
    connected = await Cluster.connect("pdx-test", 1, 1)
    await connected.close()
    assert used == ["~/given"]


class _Pages(Cluster):
    """A cluster whose objects have the same size."""

    def __init__(self, objects: int, size: int) -> None:
        super().__init__(None, 1, lambda verb, code: None)  # type: ignore[arg-type]
        self.objects = objects
        self.size = size
        self.limits: list[int] = []

    async def _sized(self, request: Request) -> tuple[dict[str, Any], int]:
        assert request.query is not None
        self.limits.append(int(request.query["limit"]))
        begin = int(request.query.get("continue", 0))
        items = list(range(begin, min(self.objects, begin + self.limits[-1])))
        token = str(items[-1] + 1) if items and items[-1] + 1 < self.objects else ""
        return {"items": items or None, "metadata": {"continue": token}}, self.size * len(items)


@pytest.mark.parametrize(
    ("size", "limits"), [(1000, [25, 50, 100, 200]), (2**20, [25, 12, 6, 3, 1])], ids=["small", "large"]
)
async def test_pages_are_short_while_objects_are_large(size: int, limits: list[int]) -> None:
    cluster = _Pages(500, size)
    found = [item async for page in cluster.pages(POD, None) for item in page["items"]]
    assert found == list(range(500))
    assert cluster.limits[: len(limits)] == limits


async def test_an_empty_list_has_a_page() -> None:
    assert [page["items"] async for page in _Pages(0, 1).pages(POD, None, metadata_only=True)] == [[]]


@pytest.mark.parametrize("page", [{"items": []}, {"metadata": 7, "items": []}, {"metadata": {}, "items": "a"}, {}])
async def test_an_answer_that_is_no_list_is_unreadable(page: dict[str, Any]) -> None:
    cluster = _Pages(1, 1)

    async def send(request: Request) -> tuple[dict[str, Any], int]:
        return page, 0

    cluster._sized = send  # type: ignore[method-assign]
    with pytest.raises(UnreadableAnswerError):
        assert not [each async for each in cluster.pages(POD, None)]


@pytest.mark.parametrize("holds", [True, False])
async def test_an_operator_without_its_lease_writes_nothing(holds: bool) -> None:
    cluster = _Pages(1, 1)
    cluster.fence = lambda: holds
    sent: list[str] = []

    async def send(request: Request) -> tuple[dict[str, Any], int]:
        sent.append(request.method)
        return {}, 0

    cluster._sized = send  # type: ignore[method-assign]
    manifest = {"metadata": {"namespace": "ns", "name": "x"}}
    await cluster.get(POD, "ns", "p")
    for write in (
        lambda: cluster.apply(POD, manifest, uid=None),
        lambda: cluster.delete(POD, "ns", "p", uid="u"),
        lambda: cluster.create(EVENT, "ns", manifest),
        lambda: cluster.apply_status("ns", "m", uid="u", status={}),
    ):
        if holds:
            await write()
        else:
            with pytest.raises(UnavailableError, match="does not hold its Lease"):
                await write()
    await cluster.create(EVENT, "ns", manifest, fenced=False)
    assert sent == ["GET", *(["PATCH", "DELETE", "POST", "PATCH"] if holds else []), "POST"]
