"""Which proxy the environment names for an API server."""

import re

import pytest

from pdx_api.kube.environment import ProxyError, proxy_of, url_problem

PROXY = "http://proxy:3128"


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.mark.parametrize(
    ("url", "excepted", "proxied"),
    [
        ("https://api.example:6443", "", True),
        ("http://api.example", "", False),
        ("https://localhost:6443", "", False),
        ("https://127.0.0.2:6443", "", False),
        ("https://[::1]:6443", "", False),
        ("https://api.example", "*", False),
        ("https://api.example", "other, API.example", False),
        ("https://api.example", "example", False),
        ("https://api.example", ".example", False),
        ("https://api.example", "*.example", False),
        ("https://example", ".example", True),
        ("https://myexample", "example", True),
        ("https://api.example:6443", "api.example:6443", False),
        ("https://api.example:6443", "api.example:443", True),
        ("https://api.example", "api.example:443", False),
        ("https://10.1.2.3", "10.0.0.0/8", False),
        ("https://11.1.2.3", "10.0.0.0/8,,", True),
        ("https://10.1.2.3:6443", "10.1.2.3:6443", False),
        ("https://[fd00::1]:6443", "[fd00::1]:6443", False),
        ("https://[fd00::1]:6443", "fd00::/8", False),
    ],
)
def test_which_servers_are_reached_directly(
    url: str, excepted: str, proxied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", PROXY)
    monkeypatch.setenv("NO_PROXY", excepted)
    assert proxy_of(url) == (PROXY if proxied else None)


@pytest.mark.parametrize(
    ("value", "proxy"),
    [("", None), ("proxy:3128", PROXY), (PROXY, PROXY), ("https://p", "https://p"), ("socks5://p:1", None)],
)
def test_forms_of_the_variable(value: str, proxy: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", value)
    assert proxy_of("https://api.example") == proxy


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("http://p:99999", "its port is not a number from 1 to 65535"),
        ("http://[::1", "the brackets around its host are wrong"),
        ("p..q:1", "its host name has an empty part"),
    ],
)
def test_a_proxy_that_is_no_url(value: str, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", value)
    shown = value if "://" in value else f"http://{value}"
    with pytest.raises(ProxyError, match=rf"^https_proxy is {re.escape(shown)}, which is not the URL.*: {problem}$"):
        proxy_of("https://api.example")


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        *((url, "") for url in ("https://h", "http://127.0.0.1:1/a", "https://[::1]:6443", "HTTPS://h.:65535")),
        *((url, "it is empty") for url in ("", " ")),
        *((url, "the brackets around its host are wrong") for url in ("https://[::1", "https://[h]")),
        *((url, "it does not begin with https:// or http://") for url in ("h:6443", "//h", "ftp://h", "h")),
        ("https://", "it names no host"),
        ("https://:6443", "it names no host"),
        *((f"https://h:{port}", "its port is not a number from 1 to 65535") for port in ("99999", "x", "0", "-1")),
        ("https://a..b", "its host name has an empty part"),
        ("https://ex\u2100mple.com", "its host name is not valid"),
    ],
)
def test_what_is_not_the_url_of_a_server(url: str, problem: str) -> None:
    assert url_problem(url) == problem
