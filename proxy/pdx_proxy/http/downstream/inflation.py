"""Inflates compressed request bodies in slices, so that a small body with a large content holds nobody up."""

import zlib
from typing import Final

from aiohttp.web import RequestPayloadError

from pdx_proxy.http.errors import body_inflates, unknown_coding

_INFLATED_BYTES: Final = 1024 * 1024
"""The most bytes that are inflated without a pause."""
_WINDOWS: Final = {"gzip": 31, "x-gzip": 31, "deflate": 15}
"""The parameters of zlib by content encoding."""
_PLAIN: Final = ("", "identity")
_ANY_RATIO_BYTES: Final = 8 * 1024 * 1024
"""So many bytes may be inflated from any number."""
_MOST_RATIO: Final = 100
"""The most bytes of larger content for one that has arrived. Texts have 3 to 30, one repeated byte has 1000."""


def inflater_of(encoding: str) -> "zlib._Decompress | None":
    """Return what inflates a body of this content encoding; None: nothing has to.

    Raises RefusedError for one that the gateway does not read.
    """
    if encoding in _PLAIN:
        return None
    window = _WINDOWS.get(encoding)
    if window is None:
        raise unknown_coding()
    return zlib.decompressobj(wbits=window)


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
