"""`pdx probe` against keys, TLS, and servers that are no engine or only pass requests on."""

import asyncio
import contextlib
import os
import ssl
import sys
from pathlib import Path
from typing import Final

import pytest

from pdx_api.names import Order
from pdx_cli.probing import engines
from tests.component.cli.probes import Captured, check_engines, command, passed_on, probe, received, run_in_threads
from tests.component.conftest import MakeWorld
from tests.component.http.test_tls import Authority
from tests.component.servers import serving

PUSHES: Final = (Order.DECODE_FIRST, Order.CONCURRENT)


@pytest.fixture(autouse=True)
def _in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    run_in_threads(monkeypatch)


async def test_a_key(make_world: MakeWorld, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    world = await make_world(Order.PREFILL_FIRST, sim={"api_key": "right"}, gateway=False)
    for argv in ((), ("--api-key", "wrong")):
        code, line, _ = await probe(capsys, command(world, *argv))
        assert code == 2
        assert line["prefill"] == "requires a key (status 401); set VLLM_API_KEY, or write --api-key KEY"
    assert (await probe(capsys, command(world, "--api-key", "right")))[0] == 0
    monkeypatch.setenv("VLLM_API_KEY", "right")
    assert (await probe(capsys, command(world)))[0] == 0


async def test_the_url_of_a_gateway(make_world: MakeWorld, capsys: Captured) -> None:
    world = await make_world(Order.PREFILL_FIRST)
    argv = ["probe", "--prefill", world.p.url, "--decode", world.url]
    world.sent += 1  # the gateway answers /version
    code, line, _ = await probe(capsys, argv)
    assert code == 2
    assert line["decode"] == (
        f"answers, but {world.url} is not an engine: it has no metrics of a vLLM engine, as a gateway or router has "
        "none; write the URL of `vllm serve` itself"
    )


@pytest.mark.parametrize(
    ("page", "code"),
    [(b"python_info 1\n", 0), (b'# router\nvllm:num_requests_running{server="http://a"} 1\n', 2)],
    ids=["without-statistics", "router"],
)
async def test_metrics_that_are_not_those_of_an_engine(
    page: bytes, code: int, make_world: MakeWorld, capsys: Captured
) -> None:
    """An engine may have disabled its statistics (--disable-log-stats). Then only its answers show what moved."""
    world = await make_world(Order.PREFILL_FIRST, gateway=False)

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, body = await received(reader)
        if head.startswith(b"GET /metrics "):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(page), page))
            await writer.drain()
        else:
            await passed_on(head, body, world.d.port, writer)

    async with serving(relay) as port:
        argv = ["probe", "--prefill", world.p.url, "--decode", f"http://127.0.0.1:{port}"]
        done, line, out = await probe(capsys, argv)
    assert done == code, out
    assert ("it has no metrics of a vLLM engine" in line["decode"]) is (code == 2)
    await check_engines(world)


@pytest.mark.parametrize(
    ("answer", "clause"),
    [
        (
            b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
            "answers, but URL is not an engine: /v1/models answers 404; write the URL of `vllm serve` itself",
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
            "answers, but URL is not an engine: it lists no models; write the URL of `vllm serve` itself",
        ),
        (
            b"HTTP/1.1 301 Moved\r\nLocation: https://there/v1/models\r\nContent-Length: 0\r\n\r\n",
            "redirects to https://there/v1/models; write the base URL of that",
        ),
        (b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n", "answers 503; wait until it is ready, or see its log"),
        (
            b"SSH-2.0-OpenSSH\r\n",
            "did not answer: it does not speak HTTP; write https:// if it serves TLS, or another port",
        ),
    ],
    ids=["404", "no-models", "redirect", "503", "not-http"],
)
async def test_servers_that_are_no_engine(answer: bytes, clause: str, make_world: MakeWorld, capsys: Captured) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()

    world = await make_world(Order.PREFILL_FIRST, gateway=False)
    async with serving(handle) as port:
        url = f"http://127.0.0.1:{port}"
        code, line, out = await probe(capsys, ["probe", "--prefill", url, "--decode", world.d.url])
    assert code == 2
    assert line["prefill"] == clause.replace("URL", url, 1) if "URL is" in clause else line["prefill"] == clause, out


async def test_tls_that_is_not_served(make_world: MakeWorld, capsys: Captured) -> None:
    world = await make_world(Order.PREFILL_FIRST, gateway=False)
    url = world.p.url.replace("http", "https")
    code, line, _ = await probe(capsys, ["probe", "--prefill", url, "--decode", world.d.url])
    assert code == 2
    assert line["prefill"].endswith("it does not speak TLS, or not with this client; write http:// instead of https://")


async def test_tls(make_world: MakeWorld, capsys: Captured, tmp_path: Path) -> None:
    """A certificate that nothing vouches for is refused; SSL_CERT_FILE names its authority."""
    world = await make_world(Order.PREFILL_FIRST, gateway=False)
    authority = Authority(tmp_path)
    authority.issue("127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", world.p.port)
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await asyncio.gather(pump(reader, back), pump(there, writer))
        for each in (back, writer):
            each.close()

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
        if sink.can_write_eof():
            sink.write_eof()

    server = await asyncio.start_server(relay, "127.0.0.1", 0, ssl=context)
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    argv = ["probe", "--prefill", url, "--decode", world.d.url]
    code, line, _ = await probe(capsys, argv)
    remedy = "set SSL_CERT_FILE to the file with its certificate authority"
    assert (code, line["prefill"]) == (2, f"did not answer: its certificate is not trusted; {remedy}")
    trusting = {**os.environ, "SSL_CERT_FILE": str(authority.file)}
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "pdx_cli", *argv, env=trusting)
    assert await process.wait() == 0
    server.close()


@pytest.mark.parametrize("ranks", [1, 2])
async def test_every_prefill_leg_goes_to_one_rank(
    ranks: int, make_world: MakeWorld, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await make_world(Order.CONCURRENT, gateway=False)
    monkeypatch.setattr(engines, "ranks_of", lambda _page: ranks)
    assert (await probe(capsys, command(world)))[0] == 0
    given = [seen.headers.get("x-data-parallel-rank") for seen in world.p.seen]
    assert given == [None if ranks == 1 else "0"] * 2
