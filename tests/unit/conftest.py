"""A test here opens no socket and starts no process. The few that do are marked `machine`."""

import sys
from collections.abc import Generator
from typing import Any, Final

import pytest
import urllib3.util.connection  # noqa: F401  # its import binds a socket, to find out whether there is IPv6
from hypothesis import HealthCheck, settings

settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")  # how long an example takes depends on what else runs

FORBIDDEN: Final = frozenset(
    {
        *("socket.bind", "socket.connect", "socket.getaddrinfo", "subprocess.Popen"),
        *("os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"),
    }
)
"""Audit events of Python. A pair of connected sockets, as an event loop makes it, raises none of them."""


class Guard:
    """Refuses these events while a test of this folder runs."""

    def __init__(self) -> None:
        self.events: list[str] | None = None

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.events is not None and event in FORBIDDEN:
            self.events.append(f"{event} {arguments}")
            raise PermissionError(f"a unit test opens no socket and starts no process: {event} {arguments}")


_guard: Final = Guard()
sys.addaudithook(_guard)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Also fail a test that swallowed the refusal."""
    if item.get_closest_marker("machine"):
        return (yield)
    _guard.events = []
    try:
        yield
        refused = _guard.events
    finally:
        _guard.events = None
    assert not refused, f"a unit test opens no socket and starts no process: {refused}"
