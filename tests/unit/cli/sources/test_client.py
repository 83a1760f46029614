"""Why a server did not answer, in words that are not the client library's."""

import errno
import ssl

import aiohttp
import pytest
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from pdx_api.kube.client import ApiError, UnavailableError
from pdx_cli.errors import ExitCode
from pdx_cli.sources.access import unreadable
from pdx_cli.sources.client import AnswerError, reason, unreadable_gateway

INFO = aiohttp.RequestInfo(URL("http://h:1"), "GET", CIMultiDictProxy(CIMultiDict()), URL("http://h:1"))
REASONS = [
    (OSError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 1)"), "connection refused"),
    (TimeoutError(), "no answer in time"),
    (aiohttp.ServerTimeoutError(), "no answer in time"),
    (aiohttp.InvalidURL("foo"), "its URL is not valid"),
    (aiohttp.ServerDisconnectedError(), "it closed the connection without an answer"),
    (ssl.SSLCertVerificationError(1, "certificate verify failed: self-signed"), "its certificate is not trusted"),
    (aiohttp.ClientResponseError(INFO, (), status=400, message="Bad status line"), "it does not speak HTTP"),
    (aiohttp.TooManyRedirects(INFO, ()), "it redirects too often"),
    (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER]"), "it does not speak TLS, or not with this client"),
]


@pytest.mark.parametrize(("error", "text"), REASONS)
def test_the_reason_of_an_error(error: Exception, text: str) -> None:
    assert reason(error) == text


@pytest.mark.parametrize(("cause", "text"), REASONS)
def test_an_api_server_that_does_not_answer(cause: Exception, text: str) -> None:
    error = UnavailableError("The API server is unreachable: ssl:default")
    error.__cause__ = cause
    assert str(unreadable(error)) == f"The cluster cannot be read: the API server does not answer: {text}."


def test_an_api_server_that_refuses() -> None:
    error = unreadable(ApiError("pddeployments is forbidden.", status=403))
    assert (str(error), error.code) == ("The cluster cannot be read: pddeployments is forbidden.", ExitCode.INVALID)


def test_a_gateway_that_does_not_answer() -> None:
    error = unreadable_gateway("http://h:1", AnswerError("http://h:1/pdx/state did not answer: connection refused"))
    assert str(error) == (
        "The gateway cannot be queried: http://h:1/pdx/state did not answer: connection refused; start the gateway, or "
        "name its admin port with --admin."
    )
    assert error.code == ExitCode.INVALID


def test_a_port_that_is_not_the_admin_port() -> None:
    error = unreadable_gateway("http://h:1", AnswerError("http://h:1/pdx/state answered 404: Not Found", 404))
    sentence = "http://h:1 is not the admin port of a gateway; write the one that `pdx gateway` prints."
    assert (str(error), error.code) == (sentence, ExitCode.INVALID)
    error = unreadable_gateway("http://h:1", AnswerError("http://h:1/pdx/state answered 500: Oops", 500))
    assert str(error) == "The gateway cannot be queried: http://h:1/pdx/state answered 500: Oops."
    assert error.code == ExitCode.INVALID
