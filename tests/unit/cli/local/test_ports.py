"""Free ports for processes that bind later."""

import socket
from contextlib import closing

import pytest

from pdx_cli.errors import CommandError
from pdx_cli.local import ports

pytestmark = pytest.mark.machine


def test_ports_are_different_and_below_the_ephemeral_range() -> None:
    found = ports.allocate(50)
    assert len(set(found)) == 50
    assert all(ports.FIRST <= port < ports._first_ephemeral() for port in found)
    assert all(ports.is_free(port) for port in found)


def test_unusable_candidates_are_skipped() -> None:
    with closing(socket.create_server((ports.HOST, 0))) as server:
        bound = server.getsockname()[1]
        first, second, taken = ports.allocate(3)
        candidates = iter([taken, bound, first, first, second])
        found = ports.allocate(2, taken=frozenset({taken}), choose=lambda _low, _high: next(candidates))
    assert found == [first, second]


def test_no_free_port() -> None:
    with closing(socket.create_server((ports.HOST, 0))) as server:
        bound = server.getsockname()[1]
        with pytest.raises(CommandError, match="Found fewer than 1 free ports between"):
            ports.allocate(1, choose=lambda _low, _high: bound)


def test_adjacent_port() -> None:
    port = ports.allocate(1)[0]
    assert ports.adjacent(port) == port + 1 or not ports.is_free(port + 1)
    with closing(socket.create_server((ports.HOST, 0))) as server:
        bound = server.getsockname()[1]
        assert ports.adjacent(bound - 1) not in {bound, bound - 1}
    assert ports.adjacent(65535) < 65535
