"""Commands at a server that is no gateway, or no API server: one sentence and exit code 2."""

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from pdx_cli.display.overview import _report
from pdx_cli.main import main
from pdx_cli.runs.run_record import Run
from pdx_cli.sources.client import Client

pytestmark = pytest.mark.machine

Serve = Callable[[bytes], int]
"""Starts a server that answers every request with these bytes; returns its port."""
GATEWAY: Mapping[str, Any] = {"endpoints": [], "mode": None, "inFlight": {}, "outcomes": {}}
NO_GATEWAY = "is not the admin port of a gateway; write the one that `pdx gateway` prints."
KUBECONFIG = """\
current-context: c
contexts: [{name: c, context: {cluster: cl, user: u}}]
clusters: [{name: cl, cluster: {server: "http://127.0.0.1:PORT"}}]
users: [{name: u, user: {token: x}}]
"""
NO_CRD = "This cluster has no CRD for PDDeployments; install PDX, or choose another cluster with --context."
REFUSED = (
    "The API server refuses the credentials of context c (401); log in again, or choose another context with --context."
)
FOREIGN = (
    "http://127.0.0.1:PORT (context c) does not answer like an API server of Kubernetes; correct the server of this "
    "context, or choose another with --context."
)
FAILING = (
    "The cluster cannot be read: the API server answers with status 500; try again later, or choose another context "
    "with --context."
)


def page(body: bytes, status: str = "200 OK") -> bytes:
    """Return an answer of HTTP."""
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body


@pytest.fixture
def serve() -> Iterator[Serve]:
    listeners: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def start(answer: bytes) -> int:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)
        threads.append(threading.Thread(target=_answer, args=(listener, answer)))
        threads[-1].start()
        port: int = listener.getsockname()[1]
        return port

    yield start
    for listener in listeners:
        listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
        listener.close()
    for thread in threads:
        thread.join()


def _answer(listener: socket.socket, answer: bytes) -> None:
    with suppress(OSError):
        while True:
            connection, _ = listener.accept()
            with closing(connection), suppress(OSError):
                connection.recv(65536)
                connection.sendall(answer)


def run(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command that fails, and return its sentence."""
    code = main(argv)
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1), err
    return err.removeprefix("pdx: ").rstrip()


@pytest.mark.parametrize(
    "body",
    [
        b"<html>spa</html>",
        b"",
        b"\xff\xfe",
        b"null",
        b"[]",
        b"{}",
        b'{"hello": 1}',
        b'{"endpoints": [5], "inFlight": {}, "outcomes": {}}',
        json.dumps({**GATEWAY, "mode": "Serial"}).encode(),
    ],
)
@pytest.mark.parametrize("command", [["doctor"], ["top", "--once"]], ids=["doctor", "top"])
def test_a_server_that_is_no_gateway(
    body: bytes, command: list[str], serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"http://127.0.0.1:{serve(page(body))}"
    assert run([*command, "--admin", url], capsys) == f"{url} {NO_GATEWAY}"


@pytest.mark.parametrize("command", [["doctor"], ["top", "--once"]], ids=["doctor", "top"])
def test_a_port_that_does_not_speak_http(command: list[str], serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{serve(b'SSH-2.0-OpenSSH' + bytes([13, 10]))}"
    sentence = f"{url} does not speak HTTP; name the admin port of a gateway with --admin."
    assert run([*command, "--admin", url], capsys) == sentence


def test_a_gateway_without_engines(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{serve(page(json.dumps(GATEWAY).encode()))}"
    assert main(["doctor", "--admin", url]) == 0
    assert "Inspected 1 gateway and 0 engines." in capsys.readouterr().out


async def test_a_run_whose_admin_port_another_server_has(serve: Serve) -> None:
    run = Run("tiny", 1, 0.0, "Aggregated", None, None, "sim", "tiny", "", f"http://127.0.0.1:{serve(page(b'{}'))}", ())
    async with Client() as client:
        assert (await _report(client, run)).state is None


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        pytest.param(page(b"<html>log in</html>"), FOREIGN, id="HTML"),
        pytest.param(page(b"\xff\xfe"), FOREIGN, id="bytes"),
        pytest.param(page(b"[]"), FOREIGN, id="a list"),
        pytest.param(page(b"{}"), FOREIGN, id="no object"),
        pytest.param(page(b"404 page not found\n", "404 Not Found"), NO_CRD, id="no CRD"),
        pytest.param(page(b"no", "401 Unauthorized"), REFUSED, id="401"),
        pytest.param(page(b"Internal Server Error", "500 Internal Server Error"), FAILING, id="500"),
    ],
)
@pytest.mark.parametrize("command", [["doctor"], ["doctor", "x"], ["top", "x"], ["top"]], ids=" ".join)
def test_a_server_that_is_no_usable_api_server(
    answer: bytes,
    sentence: str,
    command: list[str],
    serve: Serve,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    port = serve(answer)
    file = kubeconfig(tmp_path, port)
    assert run([*command, "--kubeconfig", str(file)], capsys) == sentence.replace("PORT", str(port))


@pytest.mark.parametrize("items", ["5", "[5]", '"x"'])
def test_a_list_that_is_none(items: str, serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port = serve(page(f'{{"kind": "PDDeploymentList", "metadata": {{}}, "items": {items}}}'.encode()))
    sentence = run(["doctor", "--kubeconfig", str(kubeconfig(tmp_path, port))], capsys)
    assert sentence == FOREIGN.replace("PORT", str(port))


def kubeconfig(folder: Path, port: int) -> Path:
    """Write the kubeconfig of a server on this machine."""
    file = folder / "kubeconfig"
    file.write_text(KUBECONFIG.replace("PORT", str(port)))
    return file
