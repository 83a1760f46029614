"""The target of a request line as a path and a query, as vLLM's server reads it. Pure."""

import re
from typing import Final
from urllib.parse import quote, unquote

_ABSOLUTE: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://([^/?#]*)")
"""Scheme and authority of an absolute-form target, as clients send it to a proxy (RFC 9112, 3.2.2)."""
_SAFE: Final = ":/%#?=@[]!$&'()*+,;"
"""What a Location header keeps (starlette/responses.py, RedirectResponse)."""


def split_target(raw: str) -> tuple[str, str]:
    """Return the path, with its percent-encoding decoded, and the query as it was sent, with its question mark.

    Scheme, authority and fragment are dropped, as by uvicorn (protocols/http/httptools_impl.py, on_headers_complete).
    """
    if raw[:1] != "/":
        absolute = _ABSOLUTE.match(raw)
        if absolute is not None:
            raw = raw[absolute.end() :]
    path, mark, query = raw.partition("#")[0].partition("?")
    if not path.isascii():  # bytes that are no UTF-8 came as surrogates
        path = path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return unquote(path) if "%" in path else path or "/", mark + query


def authority_of(raw: str) -> str:
    """Return the host and port of an absolute-form target; empty for any other."""
    absolute = _ABSOLUTE.match(raw) if raw[:1] != "/" else None
    return "" if absolute is None else absolute[1]


def location(path: str, query: str) -> str:
    """Return the Location header for a path and a query: ASCII only, without control characters."""
    return quote(path + query, safe=_SAFE, errors="surrogateescape")
