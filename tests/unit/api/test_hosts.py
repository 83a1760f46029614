"""Which host names no resolver accepts."""

import pytest

from pdx_api.hosts import host_problem


@pytest.mark.parametrize(
    ("host", "problem"),
    [
        *((host, "") for host in ("h", "a.b", "a.b.", "127.0.0.1", "::1", "fe80::1%eth0", "büro.example", "a" * 63)),
        *((host, "its host name has an empty part") for host in (".", "a..b", ".a", "a..")),
        *((host, "its host name has a part of more than 63 characters") for host in ("a" * 64, f"a.{'b' * 300}.c")),
        ("h\0h", "its host name has a NUL character"),
        (".".join(["h" * 63] * 4), "its host name has more than 253 characters"),
        *((host, "its host name has a space") for host in ("h h", "h\t", " ")),
        *((host, "its host name is not valid") for host in ("a\ufffd", "\udcff", "ü" * 60)),
    ],
)
def test_a_host_name_that_no_resolver_accepts(host: str, problem: str) -> None:
    assert host_problem(host) == problem
