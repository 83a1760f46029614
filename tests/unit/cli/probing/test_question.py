"""The URLs that `pdx probe` accepts."""

import pytest

from pdx_cli.errors import InputError
from pdx_cli.probing.question import engine_url


@pytest.mark.parametrize(
    ("given", "base"),
    [
        ("http://10.0.0.1:8000", "http://10.0.0.1:8000"),
        (" https://p0.example/ ", "https://p0.example"),
        ("http://[::1]:8000/", "http://[::1]:8000"),
    ],
)
def test_urls(given: str, base: str) -> None:
    assert engine_url("--prefill", given) == base


@pytest.mark.parametrize(
    "given", ["10.0.0.1:8000", "ftp://h:1", "http://", "http://h:0", "http://h:99999", "http://u@h:1", "http://a b:1"]
)
def test_what_is_no_url_of_an_engine(given: str) -> None:
    with pytest.raises(InputError, match="is not the URL of an engine; write http://HOST:PORT or https://HOST:PORT"):
        engine_url("--prefill", given)


@pytest.mark.parametrize("path", ["/v1", "/v1/completions", "/?a=b", "/#a"])
def test_a_path(path: str) -> None:
    with pytest.raises(InputError, match=r"has a path; write only http://h:1\."):
        engine_url("--prefill", f"http://h:1{path}")
