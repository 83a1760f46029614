"""Reads the Retry-After header of an engine's answer. Pure."""

from email.utils import parsedate_to_datetime
from typing import Final

from pdx_proxy.http.upstream.answer import Answer

BUSY: Final = frozenset({429, 503})
"""Statuses whose Retry-After names a time in which the engine accepts no request (RFC 9110, 10.2.3; RFC 6585, 4)."""
LONGEST_SECONDS: Final = 60.0
"""A longer time is cut: an engine that recovers earlier must not stay unused."""
_DATE_BYTES: Final = 64
"""A longer date is none."""


def retry_after(answer: Answer) -> float:
    """Return the seconds for which an engine wants no request, from its answer; 0 if it names none.

    A date counts from the answer's own Date, so that clocks need not agree.
    """
    if answer.status not in BUSY:
        return 0.0
    value = answer.header(b"retry-after").strip()
    if not value:
        return 0.0
    seconds = float(value) if value.isdigit() and len(value) < 10 else _until(value, answer.header(b"date"))
    return min(max(seconds, 0.0), LONGEST_SECONDS)


def _until(date: bytes, now: bytes) -> float:
    if max(len(date), len(now)) > _DATE_BYTES:
        return 0.0
    try:
        return (parsedate_to_datetime(date.decode()) - parsedate_to_datetime(now.decode())).total_seconds()
    except (ValueError, TypeError, OverflowError, LookupError, AttributeError):  # of a date that is none
        return 0.0
