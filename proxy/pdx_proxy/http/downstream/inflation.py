"""Inflates compressed request bodies in slices, so that a small body with a large content holds nobody up."""

import zlib
from typing import Final

from aiohttp.web import RequestPayloadError

from pdx_proxy.http.errors import body_inflates, unknown_coding

_INFLATED_BYTES: Final = 1024 * 1024
"""The most bytes that are inflated without a pause."""
_ZLIB: Final = 15
_METHOD: Final = 8
_WINDOWS: Final = {"gzip": 31, "x-gzip": 31, "deflate": _ZLIB}
"""The parameters of zlib by content encoding."""
_PLAIN: Final = ("", "identity")
_ANY_RATIO_BYTES: Final = 8 * 1024 * 1024
"""So many bytes may be inflated from any number."""
_MOST_RATIO: Final = 100
"""The most bytes of larger content for one that has arrived. Texts have 3 to 30, one repeated byte has 1000."""


def window_of(encoding: str) -> int:
    """Return the parameter of zlib for a body of this content encoding; 0: there is nothing to inflate.

    Raises RefusedError for one that the gateway does not read.
    """
    if encoding in _PLAIN:
        return 0
    if encoding not in _WINDOWS:
        raise unknown_coding()
    return _WINDOWS[encoding]


def inflater_of(window: int, first: bytes) -> "zlib._Decompress":
    """Return what inflates a body that begins with `first`.

    Some clients send deflate without the header of zlib (RFC 9110, 8.4.1.2). The method of that header is 8.
    """
    return zlib.decompressobj(wbits=-window if window == _ZLIB and first[0] & 15 != _METHOD else window)


def check_ratio(inflated: int, received: int) -> None:
    """Raise RefusedError if `received` bytes have become too many: to inflate them costs more than to send them."""
    if inflated > _ANY_RATIO_BYTES and inflated > _MOST_RATIO * received:
        raise body_inflates(_MOST_RATIO)


def inflate(inflater: "zlib._Decompress", data: bytes) -> tuple[bytes, bytes]:
    """Return inflated bytes, at most 1 MiB, and those that were not read; raises RequestPayloadError."""
    try:
        found = inflater.decompress(data, _INFLATED_BYTES)
    except zlib.error as error:
        raise RequestPayloadError(f"its compressed content is invalid: {error}.") from None
    if inflater.unused_data:
        raise RequestPayloadError("bytes follow its compressed content.")
    return found, inflater.unconsumed_tail


def end_of(inflater: "zlib._Decompress | None") -> bytes:
    """Return the last bytes, at most what was left of a match; raises RequestPayloadError for a body that is cut."""
    last = b"" if inflater is None else inflater.flush()
    if inflater is None or not inflater.eof:
        raise RequestPayloadError("its compressed content is cut short.")
    return last
