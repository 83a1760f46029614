"""Browsers' requests from other origins: the headers of answers, compared with those of vLLM's server (Starlette's)."""

import asyncio
from typing import Any

import pytest
from starlette.middleware.cors import CORSMiddleware

from pdx_proxy.http.cors import CORSPolicy, is_preflight

CHAT = "https://chat.example.com"
_COMPARED = ("access-control-allow-origin", "access-control-allow-headers", "access-control-max-age")


def _starlette(origins: list[str], method: str, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of vLLM's middleware, with vLLM's defaults for methods and headers."""
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    middleware = CORSMiddleware(app, allow_origins=origins, allow_methods=["*"], allow_headers=["*"])
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": method, "path": "/", "headers": raw}
    asyncio.run(middleware(scope, receive, send))
    found = {name.decode().lower(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], found, sent[1]["body"]


@pytest.mark.parametrize("allowed", [["*"], [CHAT], ["https://a.example", CHAT], []], ids=str)
@pytest.mark.parametrize("origin", [CHAT, "https://evil.example", "null", None])
def test_answers_are_those_of_vllm(allowed: list[str], origin: str | None) -> None:
    headers = {} if origin is None else {"origin": origin}
    lines = CORSPolicy(allowed).lines(headers).decode().split("\r\n")
    own = dict(line.split(": ", 1) for line in lines if line)
    _, theirs, _ = _starlette(allowed, "POST", headers)
    name = "access-control-allow-origin"
    assert own.get(name) == theirs.get(name)
    assert "*" in allowed or own["vary"] == theirs["vary"] == "Origin"
    assert ("access-control-expose-headers" in own) is (name in own)


@pytest.mark.parametrize("allowed", [["*"], [CHAT]], ids=str)
@pytest.mark.parametrize("origin", [CHAT, "https://evil.example"])
@pytest.mark.parametrize("method", ["POST", "GET", "TRACE"])
@pytest.mark.parametrize("requested", ["authorization,content-type", None])
@pytest.mark.parametrize("private", [False, True])
def test_preflight_requests(allowed: list[str], origin: str, method: str, requested: str | None, private: bool) -> None:
    headers = {"origin": origin, "access-control-request-method": method}
    if requested is not None:
        headers["access-control-request-headers"] = requested
    if private:
        headers["access-control-request-private-network"] = "true"
    assert is_preflight("OPTIONS", headers)
    status, text, own = CORSPolicy(allowed).preflight(headers)
    lines = CORSPolicy(allowed).lines(headers).decode().split("\r\n")
    own |= dict(line.split(": ", 1) for line in lines if line.startswith("access-control-allow-origin"))
    their_status, theirs, body = _starlette(allowed, "OPTIONS", headers)
    assert (status, text) == (their_status, body.decode())
    for name in _COMPARED:
        if name in theirs and (requested is not None or name != "access-control-allow-headers"):
            assert own.get(name) == theirs[name], name
    assert "POST" in own["access-control-allow-methods"]


def test_what_is_no_preflight_request() -> None:
    full = {"origin": CHAT, "access-control-request-method": "POST"}
    assert not is_preflight("POST", full)
    for name in full:
        assert not is_preflight("OPTIONS", {key: value for key, value in full.items() if key != name})


def test_headers_that_are_not_ascii_are_refused() -> None:
    headers = {"origin": CHAT, "access-control-request-method": "POST", "access-control-request-headers": "x-\udcff"}
    status, text, answer = CORSPolicy(["*"]).preflight(headers)
    assert (status, text) == (400, "Disallowed CORS headers")
    assert all(value.isascii() for value in answer.values())
