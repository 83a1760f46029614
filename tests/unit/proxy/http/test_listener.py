"""How many clients a process accepts."""

import resource

import pytest

from pdx_proxy.http.downstream.listener import most_connections, raise_file_limit


@pytest.mark.parametrize(("files", "clients"), [(64, 1), (256, 64), (1024, 320), (1 << 20, 349504)])
def test_most_connections(files: int, clients: int) -> None:
    assert most_connections(files) == clients


def test_the_file_limit_is_raised_as_far_as_allowed() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, before[1]), before[1]))
        raise_file_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
