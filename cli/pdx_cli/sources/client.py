"""HTTP requests of the CLI to engines and to the gateway on this machine.

aiohttp takes 0.2 s to import. It is imported once a server accepts a connection: that none does is reported sooner.
"""

import asyncio
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlsplit

from pdx_cli.errors import CommandError, InputError
from pdx_cli.sources.answers import STATE_PATH, state_of

if TYPE_CHECKING:
    import aiohttp

NOT_FOUND: Final = 404


class AnswerError(Exception):
    """No usable answer: the connection failed, the time ran out, or the status is not 200. The text says which."""

    def __init__(self, message: str, status: int | None = None, body: str = "", location: str = "") -> None:
        super().__init__(message)
        self.status = status
        """The answer's status; None without an answer."""
        self.body = body
        self.location = location
        """The URL to which the server redirects; empty if it does not."""


class NotHTTPError(AnswerError):
    """The server answers, but not in HTTP."""


class ForeignError(AnswerError):
    """The server answers 200, but with something else than what was requested."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer with status 200."""

    body: Any
    headers: Mapping[str, str]
    """Names in lower case."""


class Client:
    """Owns one HTTP session. It ignores the proxies of the environment: most servers are on this machine."""

    def __init__(self, headers: Mapping[str, str] | None = None, *, redirects: bool = True) -> None:
        """`headers`: sent with every request. `redirects`: follow them."""
        self._redirects = redirects
        self._headers = headers
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def is_ok(self, url: str) -> bool:
        """Whether a GET returns 200 within a second."""
        try:
            await self.text(url, seconds=1.0)
        except AnswerError:
            return False
        return True

    async def text(self, url: str, *, seconds: float = 5.0) -> str:
        """Return the body of a GET."""
        return (await self._request("GET", url, None, seconds))[0]

    async def json(self, url: str, *, seconds: float = 5.0) -> Any:
        """Return the JSON body of a GET."""
        return _parsed(url, await self.text(url, seconds=seconds))

    async def state(self, admin: str, *, seconds: float = 5.0) -> dict[str, Any]:
        """Return the state of the gateway with that admin port."""
        url = f"{admin}{STATE_PATH}"
        body = await self.json(url, seconds=seconds)
        try:
            return state_of(body)
        except ValueError as error:
            raise ForeignError(f"{url} did not answer with the state of a gateway") from error

    async def post(
        self, url: str, body: Mapping[str, Any], *, seconds: float, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Return the answer to a POST of JSON. `headers`: sent with this request only."""
        text, received = await self._request("POST", url, body, seconds, headers)
        return Answer(_parsed(url, text), received)

    async def events(self, url: str, body: Mapping[str, Any], *, seconds: float) -> Answer:
        """Return the answer to a POST of JSON with `stream`; its body is the list of the events."""
        text, headers = await self._request("POST", url, {**body, "stream": True}, seconds)
        data = (line.removeprefix("data:").strip() for line in text.splitlines() if line.startswith("data:"))
        events = [_parsed(url, event) for event in data if event != "[DONE]"]
        if failed := next((event["error"] for event in events if "error" in event), None):
            raise AnswerError(f"{url} ended with {failed}")
        return Answer(events, headers)

    async def _request(
        self,
        method: str,
        url: str,
        body: Mapping[str, Any] | None,
        seconds: float,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[str, dict[str, str]]:
        options: dict[str, Any] = {"json": body, "headers": headers, "allow_redirects": self._redirects}
        try:
            async with asyncio.timeout(seconds):
                if self._session is None:
                    await connect(url)
                response, text = await self._send(method, url, options)
        except TimeoutError as error:
            raise AnswerError(f"{url} did not answer within {seconds:g} s") from error
        if response.status != 200:
            message = f"{url} answered {response.status}: {' '.join(text.split())[:200]}"
            raise AnswerError(message, response.status, text, response.headers.get("Location", ""))
        return text, {name.lower(): value for name, value in response.headers.items()}

    async def _send(self, method: str, url: str, options: dict[str, Any]) -> "tuple[aiohttp.ClientResponse, str]":
        """Return an answer and its body; raises TimeoutError or AnswerError."""
        import aiohttp

        if self._session is None:
            # A server may close an idle connection at the moment at which a POST is sent over it.
            connector = aiohttp.TCPConnector(force_close=True)
            self._session = aiohttp.ClientSession(connector=connector, headers=self._headers, trust_env=False)
        try:
            async with self._session.request(method, url, **options) as response:
                return response, await response.text(errors="replace")
        except TimeoutError:
            raise
        except (aiohttp.ClientError, OSError) as error:
            kind = NotHTTPError if _is_not_http(error) else AnswerError
            raise kind(f"{url} did not answer: {reason(error)}") from error


async def connect(url: str) -> None:
    """Raise AnswerError if nothing listens at a URL. Any other failure shows in the request itself."""
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        _, writer = await asyncio.open_connection(parts.hostname or "", port)
    except ConnectionRefusedError as error:
        raise AnswerError(f"{url} did not answer: {os.strerror(error.errno or 0).lower()}") from error
    except (OSError, ValueError):
        return
    writer.close()


def unreadable_gateway(admin: str, error: AnswerError) -> CommandError:
    """Return the error of a command whose gateway does not answer at the URL of its admin port, with code 2."""
    if error.status == NOT_FOUND or isinstance(error, ForeignError):
        return InputError(f"{admin} is not the admin port of a gateway; write the one that `pdx gateway` prints.")
    if isinstance(error, NotHTTPError):
        return InputError(f"{admin} does not speak HTTP; name the admin port of a gateway with --admin.")
    start = "; start the gateway, or name its admin port with --admin" if error.status is None else ""
    return CommandError(f"The gateway cannot be queried: {error}{start}.", code=2)


def is_silent(error: AnswerError) -> bool:
    """Whether nothing was answered, not even something else than what was requested."""
    return error.status is None and not isinstance(error, ForeignError | NotHTTPError)


def is_down(error: AnswerError) -> bool:
    """Whether nothing listens at the address, or what listens there does not answer in time."""
    cause = getattr(error.__cause__, "os_error", error.__cause__)  # aiohttp's error has one
    return isinstance(cause, TimeoutError | ConnectionRefusedError)


def reason(error: BaseException) -> str:
    """Return why a request failed, without the client library's details."""
    import ssl

    import aiohttp

    if isinstance(error, aiohttp.InvalidURL):
        return "its URL is not valid"
    if isinstance(error, aiohttp.TooManyRedirects):
        return "it redirects too often"
    if _is_not_http(error):
        return "it does not speak HTTP"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, aiohttp.ClientConnectorCertificateError | ssl.SSLCertVerificationError):
        return "its certificate is not trusted"
    if isinstance(error, aiohttp.ClientConnectorSSLError | ssl.SSLError):
        return "it does not speak TLS, or not with this client"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "its host name cannot be resolved"
    if isinstance(error, aiohttp.ClientConnectorError):
        error = error.os_error
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "it closed the connection without an answer"
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    return " ".join(str(error).split()) or type(error).__name__


def _is_not_http(error: BaseException | None) -> bool:
    """Whether the client library could not read the answer's head."""
    import aiohttp

    is_answer = isinstance(error, aiohttp.ClientResponseError)
    return is_answer and not isinstance(error, aiohttp.TooManyRedirects | aiohttp.WSServerHandshakeError)


def _parsed(url: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ForeignError(f"{url} did not answer with JSON") from error
