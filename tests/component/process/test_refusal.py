"""Connections that wait at a worker that does not run."""

import asyncio
import socket

import pytest

from pdx_proxy.config.settings import Address
from pdx_proxy.process import refusal
from pdx_proxy.process.refusal import refuse_all
from pdx_proxy.process.workers import ListenError, address_of, bind
from tests.component.harness import Shape, request_of

REQUESTS = [
    request_of(Shape().body()),
    b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n",
    request_of({"prompt": "x" * 100_000}),
]


async def test_they_get_a_503_and_later_ones_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusal, "_HANDSHAKE_SECONDS", 0.0)
    sock = bind(Address("127.0.0.1", 0), shared=True)
    sock.listen(8)
    address = address_of(sock)
    clients = [socket.create_connection(address) for _ in REQUESTS]
    for client, request in zip(clients, REQUESTS, strict=True):
        client.sendall(request)
    refused = asyncio.create_task(refuse_all(sock))
    for client in clients:
        reader, writer = await asyncio.open_connection(sock=client)
        answer = await reader.read(-1)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1\r\n" in answer
        writer.close()
    await refused
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)


def test_an_address_that_cannot_be_bound_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with bind(Address("127.0.0.1", 0), shared=False) as sock:
        sock.listen()
        taken = address_of(sock)
        with pytest.raises(
            ListenError, match=f"^cannot listen on {taken}: Address already in use; choose another with --listen$"
        ):
            bind(taken, shared=False)

    def resolve(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(
        ListenError, match=r"^cannot listen on nowhere:1: Name or service not known; choose another with --admin$"
    ):
        bind(Address("nowhere", 1), shared=False, flag="--admin")
