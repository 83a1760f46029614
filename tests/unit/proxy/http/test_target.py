"""Targets of requests: paths and queries as uvicorn reads them, with the library that it uses."""

from urllib.parse import unquote

import httptools
import pytest

from pdx_proxy.http.target import location, split_target

TARGETS = [
    "/v1/completions",
    "/v1/completions?beta=true",
    "/v1/%63ompletions",
    "/v1%2Fcompletions",
    "/v1/%2563ompletions",
    "/v1/models/Qwen%2FQwen3-8B?a=%2F",
    "/v1/models/%E2%82%AC%ff",
    "/v1/models#a?b",
    "/v1/models?a#b",
    "//v1/completions",
    "http://a/v1/completions",
    "http://a:8080/v1/completions?x=http://b/",
    "https://user@[::1]:1/v1/%6dodels/",
    "/http://a/v1/models",
    "/v1/models/",
    "*",
]


@pytest.mark.parametrize("raw", TARGETS)
def test_a_target_is_read_as_uvicorn_reads_it(raw: str) -> None:
    url = httptools.parse_url(raw.encode())  # uvicorn/protocols/http/httptools_impl.py, on_headers_complete
    query = "" if url.query is None else f"?{url.query.decode()}"
    assert split_target(raw) == (unquote(url.path.decode()), query)


@pytest.mark.parametrize(
    ("raw", "path"),
    [("http://a", "/"), ("http://a?b", "/"), ("a:443", "a:443"), ("", "/"), ("1http://a/b", "1http://a/b"), ("?", "/")],
)
def test_targets_that_name_no_path(raw: str, path: str) -> None:
    assert split_target(raw)[0] == path


def test_bytes_that_are_no_text_can_be_written_in_an_error() -> None:
    assert split_target("/v1/models/\udcff\udce2\udc82\udcac")[0] == "/v1/models/\ufffd€"


def test_a_location_is_ascii() -> None:
    assert location("/v1/models", "?a=%2F&b=\udcff\r\n€ ") == "/v1/models?a=%2F&b=%FF%0D%0A%E2%82%AC%20"
