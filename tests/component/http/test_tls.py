"""TLS on the serving port: both servers behind it, clients that fail, and a certificate that is replaced."""

import asyncio
import datetime
import logging
import os
import shutil
import ssl
from ipaddress import ip_address
from pathlib import Path

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from pdx_api.names import Order
from pdx_api.settings.gateway import TLS
from pdx_proxy.http.downstream import certificate, listener
from pdx_proxy.http.downstream.certificate import CertificateError, certificate_of
from tests.component.conftest import MakeWorld
from tests.component.harness import SHAPES, Shape, World, eventually

CURL = shutil.which("curl")
_PERIOD = 0.02


class Authority:
    """Signs certificates for 127.0.0.1, and puts them where a kubelet puts a Secret: behind a symbolic link."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.root = self._sign("authority", self.key, ca=True)
        self.file = folder / "ca.pem"
        self.file.write_bytes(self.root.public_bytes(serialization.Encoding.PEM))
        self.count = 0

    @property
    def tls(self) -> TLS:
        return TLS(str(self.folder / "tls.crt"), str(self.folder / "tls.key"))

    def issue(self, name: str, *, with_key_of_another: bool = False) -> None:
        """Replace the certificate and its key at once."""
        key = ec.generate_private_key(ec.SECP256R1())
        found = self._sign(name, key)
        self.count += 1
        data = self.folder / f"..{self.count}"
        data.mkdir()
        written = ec.generate_private_key(ec.SECP256R1()) if with_key_of_another else key
        (data / "tls.crt").write_bytes(found.public_bytes(serialization.Encoding.PEM))
        form = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        (data / "tls.key").write_bytes(written.private_bytes(serialization.Encoding.PEM, *form))
        link = self.folder / "..data_tmp"
        link.symlink_to(data.name)
        link.rename(self.folder / "..data")
        for file in ("tls.crt", "tls.key"):
            if not (self.folder / file).is_symlink():
                (self.folder / file).symlink_to(f"..data/{file}")

    def _sign(self, name: str, key: ec.EllipticCurvePrivateKey, *, ca: bool = False) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        issuer = subject if ca else self.root.subject
        localhost = x509.IPAddress(ip_address("127.0.0.1"))
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([localhost]), critical=False)
        )
        return builder.sign(self.key, hashes.SHA256())

    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.file))


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Authority:
    monkeypatch.setattr(certificate, "_CHECK_SECONDS", _PERIOD)
    made = Authority(tmp_path)
    made.issue("first")
    return made


@pytest.fixture
async def world(make_world: MakeWorld, authority: Authority) -> World:
    """A gateway that serves TLS, and a client that trusts the authority."""
    made = await make_world(Order.PREFILL_FIRST, tls=authority.tls)
    await made.session.close()
    connector = aiohttp.TCPConnector(ssl=authority.context())
    made.session = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=30))
    return made


async def _name(world: World, authority: Authority) -> str:
    """The name in the certificate that a new connection gets."""
    address = world.gateway.listen
    _, writer = await asyncio.open_connection(address.host, address.port, ssl=authority.context())
    subject = dict(pair[0] for pair in writer.get_extra_info("peercert")["subject"])
    writer.close()
    await writer.wait_closed()
    return str(subject["commonName"])


async def test_both_servers_answer_over_tls(world: World) -> None:
    url = world.url
    assert url.startswith("https://")
    for shape in SHAPES:
        reply = await world.complete(shape)
        assert (reply.status, reply.text) == (200, shape.expected())
    server = world.worker._listener
    assert len(server._connections) == 1, "the fast path serves completions, on one connection"
    assert not server._fallback.transports
    models = await world.call("GET", f"{url}/v1/models")
    assert models.status == 200
    assert server._fallback.transports
    again = await world.complete()
    assert again.text == Shape().expected()
    assert not server._fallback.transports, "the connection returns to the fast path"


async def test_large_bodies_and_their_refusal_over_tls(world: World) -> None:
    assert (await world.complete(user="x" * 3_000_000)).text == Shape().expected()
    refused = await world.post("/v1/completions", b"x" * (65 << 20), counted=False)
    assert refused.status == 413
    world.sent += 1
    assert (await world.complete()).status == 200


def _sweep_soon(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the gateway forget a connection soon after its handshake has failed."""
    monkeypatch.setattr(listener, "HANDSHAKE_SECONDS", 0.3)
    monkeypatch.setattr(listener, "_SWEEP_SECONDS", 0.05)
    world.worker._listener._sweeper.cancel()
    world.worker._listener._sweep()


async def _forgotten(world: World) -> None:
    """Wait until no connection is without a handshake."""
    server = world.worker._listener
    await eventually(lambda: not [c for c in server._connections if c.transport is None], what="forgotten")


async def test_plain_http_is_not_served(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    _sweep_soon(world, monkeypatch)
    address = world.gateway.listen
    with pytest.raises(aiohttp.ClientError):
        await world.call("GET", f"http://{address}/v1/models")
    assert (await world.complete()).status == 200
    await _forgotten(world)  # the end of the gateway would wait for it


async def test_clients_that_end_no_handshake_take_no_room(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    _sweep_soon(world, monkeypatch)
    server, address = world.worker._listener, world.gateway.listen
    writers = []
    for data in (b"GET / HTTP/1.1\r\n\r\n", b"", b"\x16\x03\x01"):
        _, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(data)
        writers.append(writer)
    await eventually(lambda: len(server._connections) >= 1, what="accepted")
    await _forgotten(world)
    for writer in writers:
        writer.close()
    assert (await world.complete()).status == 200


async def test_a_stop_finishes_open_answers(world: World) -> None:
    open_request = asyncio.create_task(world.complete(Shape(stream=True), tokens=200))
    await eventually(lambda: world.d.counts.running_now, what="D runs")
    await world.worker._listener.close(0.0)
    reply = await open_request
    assert reply.text == Shape().expected(tokens=200)
    assert reply.done


async def test_a_new_certificate_is_used_and_open_connections_stay(world: World, authority: Authority) -> None:
    assert await _name(world, authority) == "first"
    await world.complete()
    (kept,) = world.worker._listener._connections
    authority.issue("second")
    while await _name(world, authority) != "second":  # noqa: ASYNC110
        await asyncio.sleep(_PERIOD)
    assert (await world.complete()).status == 200
    assert kept in world.worker._listener._connections, "the client's connection has stayed"


async def test_a_wrong_certificate_changes_nothing_and_is_logged_once(
    world: World, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        authority.issue("wrong", with_key_of_another=True)
        await eventually(lambda: caplog.records, what="logged")
        await asyncio.sleep(5 * _PERIOD)
        assert await _name(world, authority) == "first"
        (authority.folder / "..data").unlink()
        await eventually(lambda: len(caplog.records) == 2, what="the missing files are logged")
        assert await _name(world, authority) == "first"
    assert all("The certificate that was in force stays." in record.message for record in caplog.records)
    assert "does not belong to the certificate" in caplog.records[0].message
    authority.issue("third")
    while await _name(world, authority) != "third":  # noqa: ASYNC110
        await asyncio.sleep(_PERIOD)


def test_files_that_cannot_be_used_are_refused_at_the_start(authority: Authority) -> None:
    assert certificate_of(TLS(), lambda _: None) is None
    missing = TLS(str(authority.folder / "none"), authority.tls.key)
    with pytest.raises(CertificateError, match=r"--tls-certificate: .*none does not exist; name a PEM file"):
        certificate_of(missing, lambda _: None)
    authority.issue("wrong", with_key_of_another=True)
    with pytest.raises(CertificateError, match=r"the key .* does not belong to the certificate"):
        certificate_of(authority.tls, lambda _: None)


@pytest.mark.parametrize(
    ("file", "kind", "label"), [("crt", "certificate", "CERTIFICATE"), ("key", "key", "PRIVATE KEY")]
)
def test_a_file_that_is_not_pem_is_named(authority: Authority, file: str, kind: str, label: str) -> None:
    authority.issue("first")
    path = authority.folder / f"tls.{file}"
    path.write_text("a: 1\n")
    with pytest.raises(CertificateError) as raised:
        certificate_of(authority.tls, lambda _: None)
    instead = f"write a file that begins with -----BEGIN {label}-----."
    assert str(raised.value) == f"{path} is not a {kind} in PEM form; {instead}"


@pytest.mark.skipif(CURL is None, reason="curl is not installed")
@pytest.mark.parametrize("workers", [1, 2])
async def test_curl_loses_no_request_while_the_certificate_rotates(
    make_world: MakeWorld, authority: Authority, workers: int
) -> None:
    """New connections and kept ones, on one worker and on several, which read the files in processes of their own."""
    world = await make_world(Order.PREFILL_FIRST, tls=authority.tls, workers=workers)
    rotations, done = 6, asyncio.Event()

    async def client(*, keep: bool) -> int:
        count = 0
        while not done.is_set():
            urls = 5 if keep else 1
            count += urls
            statuses = await _curl(world, authority, urls)
            assert statuses == ["200"] * urls
        return count

    clients = [asyncio.create_task(client(keep=keep)) for keep in (True, False)]
    try:
        for number in range(rotations):
            authority.issue(f"number {number}")
            # A worker in a process reads the files every second.
            await asyncio.sleep(0.4)
    finally:
        done.set()
    world.sent += sum(await asyncio.gather(*clients))


async def _curl(world: World, authority: Authority, count: int) -> list[str]:
    """The statuses of so many completions over one connection of curl."""
    assert CURL is not None
    body = '{"model": "sim", "prompt": "hello", "max_tokens": 2}'
    request = ["-H", "Content-Type: application/json", "--data", body, "-o", os.devnull, "-w", "%{http_code}\n"]
    each = ["--silent", "--show-error", "--max-time", "30", "--cacert", str(authority.file), *request]
    arguments: list[str] = []
    for number in range(count):
        arguments += [*(["--next"] if number else []), *each, f"{world.url}/v1/completions"]
    process = await asyncio.create_subprocess_exec(
        CURL, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return out.decode().split()
