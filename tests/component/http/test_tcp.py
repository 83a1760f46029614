"""The options and reports of the kernel, on real sockets."""

import socket
from collections.abc import Iterator

import pytest

from pdx_proxy.http.tcp import detect_lost_peer, peer_state, unacknowledged


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    with ours, theirs:
        yield ours, theirs


def test_bytes_that_the_peer_has_not_accepted(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    ours.setblocking(False)
    assert unacknowledged(ours) == 0
    sent = 0
    try:
        while sent < 1 << 26:
            sent += ours.send(b"x" * 65536)
    except BlockingIOError:
        pass
    waiting, accepted = unacknowledged(ours), peer_state(ours)[1]
    assert waiting > 0, "the peer reads nothing"
    received = 0
    theirs.settimeout(5.0)
    while received < sent:
        received += len(theirs.recv(1 << 20))
    assert peer_state(ours)[1] > accepted


def test_a_peer_that_has_closed(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    ours.settimeout(5.0)
    theirs.send(b"ahead")
    assert not peer_state(ours)[0]
    theirs.close()
    assert ours.recv(5) + ours.recv(5) == b"ahead"
    assert peer_state(ours)[0]


def test_a_transport_without_a_socket() -> None:
    detect_lost_peer(None, 30.0)
