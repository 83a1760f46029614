"""The head of a request on the fast path."""

import pytest

from pdx_proxy.http.downstream.head import read_head

HEAD = "POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n%s\r\n"


@pytest.mark.parametrize(
    ("lines", "joined"),
    [
        (["X-Forwarded-For: 1.1.1.1"], "1.1.1.1"),
        (["X-Forwarded-For: 1.1.1.1", "X-Forwarded-For: 2.2.2.2"], "1.1.1.1,2.2.2.2"),
        (["x-forwarded-FOR: a, b", "Accept: x", "X-Forwarded-For: c", "X-FORWARDED-FOR: "], "a, b,c,"),
    ],
)
def test_lines_of_forwarded_addresses_are_one_list(lines: list[str], joined: str) -> None:
    head = read_head((HEAD % "".join(f"{line}\r\n" for line in lines)).encode(), 10)
    assert head is not None
    assert head[0]["x-forwarded-for"] == joined


@pytest.mark.parametrize("name", ["Authorization", "Content-Length", "Host", "Traceparent", "Tracestate", "X-Any"])
def test_any_other_repeated_header_goes_to_the_fallback(name: str) -> None:
    lines = f"{name}: 2\r\n{name.lower()}: 2\r\nX-Forwarded-For: 1.1.1.1\r\nX-Forwarded-For: 1.1.1.1\r\n"
    assert read_head((HEAD % lines).encode(), 10) is None
