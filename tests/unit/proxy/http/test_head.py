"""The head of a request on the fast path."""

from random import Random

import httptools
import pytest

from pdx_proxy.http.downstream import head as module
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
    assert head[1]["x-forwarded-for"] == joined


@pytest.mark.parametrize("name", ["Authorization", "Content-Length", "Host", "Traceparent", "Tracestate", "X-Any"])
def test_any_other_repeated_header_goes_to_the_fallback(name: str) -> None:
    lines = f"{name}: 2\r\n{name.lower()}: 2\r\nX-Forwarded-For: 1.1.1.1\r\nX-Forwarded-For: 1.1.1.1\r\n"
    assert read_head((HEAD % lines).encode(), 10) is None


USUAL = ["Host: h:1", "accept: */*", "X-A: b c", "authorization: Bearer k", "Connection: keep-alive", "x-b:c"]
ODD = [
    *("Connection: close", "connection: Close, x", "Connection: upgrade", "Upgrade: h2c", "Proxy-Connection: close"),
    *("Transfer-Encoding: chunked", "Expect: 100-continue", "Host: a,b", "X-Forwarded-For: 1.1.1.1", "X-(: b", "X-A"),
    *("X-A :b", " X-A: b", "X-A:  b ", "X-A: b\t", "X-A:", "X-A: ", ": b", "", "X\xe9: b", "X-A: \xe9", "X-A: b\x00c"),
    *("X-A: b\x7f", "X-A: b\nc: d", "X-A: b\rc: d", "X-C: " + "y" * 3000, "Content-Length: 3", "content-length: 2"),
]
LENGTHS = [
    *("Content-Length: 2", "content-length: 9", "Content-Length: 10", "CONTENT-LENGTH: 2", "Content-Length: +2"),
    *("Content-Length: 2 ", "Content-Length:2", "Content-Length: 0", "Content-Length: 11", "Content-Length: 2, 2"),
    *("X-Content-Length: 2", "Content-Length: 0x2", "Content-Length: " + "9" * 30, "Content-Length: 007"),
]


class Reader:
    """Reads a head with httptools."""

    def __init__(self, head: bytes) -> None:
        self.headers: dict[str, str] = {}
        self.parser = httptools.HttpRequestParser(self)
        self.parser.feed_data(head)

    def on_header(self, name: bytes, value: bytes) -> None:
        assert name, "every header has a name"
        key = name.decode().lower()
        self.headers[key] = f"{self.headers[key]},{value.decode()}" if key in self.headers else value.decode()


def test_what_is_read_is_what_another_parser_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the lines are and whatever is kept of earlier heads; most of the usual heads are read."""
    monkeypatch.setattr(module, "_HEADS", {})
    monkeypatch.setattr(module, "_MOST_KEPT", 20)
    random, read, usual = Random(5), 0, 0
    for _ in range(20_000):
        odd = random.sample(ODD, random.choice((0, 0, 0, 1, 2)))
        lines = random.sample(USUAL, random.randint(2, len(USUAL))) + odd + [random.choice(LENGTHS[:6] + LENGTHS)]
        random.shuffle(lines)
        sent = "\r\n".join(["POST /v1/completions HTTP/1.1", *lines, "\r\n"]).encode("latin-1")
        head = sent[: sent.index(b"\r\n\r\n") + 4]
        usual += not odd and lines.count("Host: h:1")
        found = read_head(head, 10)
        if found is None:
            continue
        path, headers, size, kept = found
        assert path == "/v1/completions"
        reader, read = Reader(head), read + 1
        assert {**headers, "content-length": str(size)} == {**reader.headers, "content-length": str(size)}, head
        assert (int(reader.headers["content-length"]), reader.parser.should_keep_alive()) == (size, kept), head
        assert len(module._HEADS) <= 20
    assert read > usual / 3


def test_a_long_head_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_HEADS", {})
    assert read_head((HEAD % f"X-A: {'y' * 3000}\r\n").encode(), 10)
    assert not module._HEADS
    assert read_head((HEAD % "X-A: y\r\n").encode(), 10) is not None
    assert [*module._HEADS] == [b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nX-A: y\r\n\r\n"]
