"""Cross-origin requests of browsers (CORS): which origins may read answers. Pure.

Answers are those of vLLM's server with `--allowed-origins` (starlette/middleware/cors.py), without credentials: API
keys travel in a header that the page sets itself.
"""

from collections.abc import Mapping, Sequence
from typing import Final

ALL_ORIGINS: Final = "*"
_METHODS: Final = ("GET", "HEAD", "OPTIONS", "POST")
_EXPOSED: Final = "Retry-After, Server-Timing, X-Request-Id"
"""Headers of an answer that a page may read besides those that every page may."""
_VARY: Final = "Origin, Access-Control-Request-Method, Access-Control-Request-Headers"
_MAX_AGE_SECONDS: Final = 600
"""How long a browser may keep the answer to a preflight request; also Starlette's."""


class CORSPolicy:
    """The origins whose pages may read answers."""

    __slots__ = ("_all", "_origins")

    def __init__(self, origins: Sequence[str]) -> None:
        """`origins`: each as browsers send it, for example https://chat.example.com; `*` stands for all."""
        self._all = ALL_ORIGINS in origins
        self._origins = frozenset(origins)

    def lines(self, headers: Mapping[str, str]) -> bytes:
        """Return the header lines of an answer to a request with these headers, each with its line end."""
        origin = headers.get("origin", "")
        vary = b"" if self._all else b"vary: Origin\r\n"
        if not self._allows(origin):
            return vary
        allowed = ALL_ORIGINS if self._all else origin
        own = f"access-control-allow-origin: {allowed}\r\naccess-control-expose-headers: {_EXPOSED}\r\n"
        return own.encode() + vary

    def preflight(self, headers: Mapping[str, str]) -> tuple[int, str, dict[str, str]]:
        """Return status, text and headers of the answer to a preflight request: may a page send such a request?"""
        answer = {
            "vary": _VARY,
            "access-control-allow-methods": ", ".join(_METHODS),
            "access-control-max-age": str(_MAX_AGE_SECONDS),
        }
        failures = [] if self._allows(headers.get("origin", "")) else ["origin"]
        if headers.get("access-control-request-method") not in _METHODS:
            failures.append("method")
        requested = headers.get("access-control-request-headers", "")
        if requested.isascii():
            answer["access-control-allow-headers"] = requested or "*"
        else:
            failures.append("headers")
        if "access-control-request-private-network" in headers:
            failures.append("private-network")
        return (400, f"Disallowed CORS {', '.join(failures)}", answer) if failures else (200, "OK", answer)

    def _allows(self, origin: str) -> bool:
        return bool(origin) and (self._all or origin in self._origins)


def is_preflight(method: str, headers: Mapping[str, str]) -> bool:
    """Whether the request is a browser's, before that of a page of another origin."""
    return method == "OPTIONS" and "origin" in headers and "access-control-request-method" in headers
