"""Becomes the `conftest.py` of the tests of Anthropic's SDK: clients for the server that is tested, and a report.

Requests name the engine's model, and ask for few tokens: a model with random weights never ends.
"""

import json
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from anthropic import Anthropic, AsyncAnthropic

_TOKENS = 16
_SECONDS = 120.0
_OPTIONS: dict[str, Any] = {"base_url": os.environ.get("TEST_API_BASE_URL", ""), "api_key": "none", "max_retries": 0}


def _fitted(request: httpx2.Request) -> httpx2.Request:
    body = json.loads(request.content or b"null")
    if not isinstance(body, dict) or "model" not in body:
        return request
    body |= {"model": os.environ["TEST_MODEL"]} | ({"max_tokens": _TOKENS} if "max_tokens" in body else {})
    headers = [(name, value) for name, value in request.headers.multi_items() if name.lower() != "content-length"]
    return httpx2.Request(request.method, request.url, headers=headers, json=body, extensions=request.extensions)


class _Transport(httpx2.HTTPTransport):
    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        return super().handle_request(_fitted(request))


class _AsyncTransport(httpx2.AsyncHTTPTransport):
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        return await super().handle_async_request(_fitted(request))


@pytest.fixture
def client(request: pytest.FixtureRequest) -> Iterator[Anthropic]:
    """A client, which checks answers strictly or not."""
    http = httpx2.Client(transport=_Transport(), timeout=_SECONDS)
    with Anthropic(**_OPTIONS, _strict_response_validation=request.param, http_client=http) as made:
        yield made


@pytest.fixture
async def async_client(request: pytest.FixtureRequest) -> AsyncIterator[AsyncAnthropic]:
    """The asynchronous one."""
    http = httpx2.AsyncClient(transport=_AsyncTransport(), timeout=_SECONDS)
    async with AsyncAnthropic(**_OPTIONS, _strict_response_validation=request.param, http_client=http) as made:
        yield made


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write the outcome of each test as a line of JSON."""
    if report.when == "call" or report.outcome != "passed":
        with Path(os.environ["TEST_REPORT"]).open("a", encoding="utf-8") as lines:
            lines.write(json.dumps([report.nodeid, report.outcome]) + "\n")
