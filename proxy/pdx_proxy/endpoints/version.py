"""The version of vLLM that an engine reports. Pure. The page is untrusted."""

import re
from typing import Final

import orjson

_PAGE_BYTES: Final = 4096
_VERSION: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+_-]{0,63}")


def read_version(page: bytes) -> str:
    """Return the version on an engine's `/version`; empty for a page that is none, or that exceeds a bound."""
    if len(page) > _PAGE_BYTES:
        return ""
    try:
        version = orjson.loads(page)["version"]
    except (ValueError, LookupError, TypeError):
        return ""
    return version if isinstance(version, str) and _VERSION.fullmatch(version) else ""
