"""Free loopback ports for processes that bind them some seconds later."""

import random
import socket
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

from pdx_cli.errors import CommandError, InputError

HOST: Final = "127.0.0.1"
FIRST: Final = 10_000
EPHEMERAL: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")


def is_free(port: int) -> bool:
    """Whether a server can bind the port."""
    with closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def check_free(port: int) -> None:
    """Refuse a serving port that cannot be bound; raises InputError."""
    if not is_free(port):
        raise InputError(f"Port {port} is in use or not allowed; choose another with --port.")


def adjacent(port: int) -> int:
    """Return the port after the serving port, or any other free port."""
    return port + 1 if port < 65535 and is_free(port + 1) else allocate(1, taken=frozenset({port}))[0]


def allocate(
    count: int, *, taken: frozenset[int] = frozenset(), choose: Callable[[int, int], int] | None = None
) -> list[int]:
    """Return different free ports, none of `taken`; `choose(low, high)` picks a candidate.

    They are below the kernel's range for outgoing connections, so that no connection takes a port before its process
    binds it. They are random, so that two runs that start together rarely collide.
    """
    choose = choose or random.SystemRandom().randint
    low, high = FIRST, _first_ephemeral() - 1
    found: list[int] = []
    with ExitStack() as held:
        for _ in range(1000 + 100 * count):
            if len(found) == count:
                return found
            port = choose(low, high)
            if port in taken or port in found:
                continue
            probe = held.enter_context(closing(socket.socket()))
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            found.append(port)
    raise CommandError(f"Found fewer than {count} free ports between {low} and {high} on {HOST}.")


def _first_ephemeral() -> int:
    try:
        first = int(EPHEMERAL.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        first = 32768
    return first if first > FIRST + 1000 else 65536
