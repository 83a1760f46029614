"""Inflates compressed request bodies in slices, so that a small body with a large content holds nobody up."""

import zlib
from typing import Final

from aiohttp.web import RequestPayloadError

_INFLATED_BYTES: Final = 1024 * 1024
"""The most bytes that are inflated without a pause."""
_WINDOWS: Final = {"gzip": 31, "x-gzip": 31, "deflate": 15}
"""The parameters of zlib by content encoding."""
_UNKNOWN: Final = frozenset(("br", "zstd", "compress"))
"""Content encodings that the gateway cannot read."""


def inflater_of(encoding: str) -> "zlib._Decompress | None":
    """Return what inflates a body of this content encoding; None: nothing has to.

    Raises RequestPayloadError for one that the gateway does not read.
    """
    if encoding in _UNKNOWN:
        raise RequestPayloadError(f"its content encoding is {encoding}; gzip and deflate are read.")
    window = _WINDOWS.get(encoding)
    return None if window is None else zlib.decompressobj(wbits=window)


def inflate(inflater: "zlib._Decompress", data: bytes) -> tuple[bytes, bytes]:
    """Return inflated bytes, at most 1 MiB, and those that were not read; raises RequestPayloadError."""
    try:
        found = inflater.decompress(data, _INFLATED_BYTES)
    except zlib.error as error:
        raise RequestPayloadError(f"its compressed content is invalid: {error}.") from None
    if inflater.unused_data:
        raise RequestPayloadError("bytes follow its compressed content.")
    return found, inflater.unconsumed_tail
