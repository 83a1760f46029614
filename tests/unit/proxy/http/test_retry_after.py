"""Retry-After of engines."""

import pytest

from pdx_proxy.http.upstream.answer import Answer
from pdx_proxy.http.upstream.retry_after import LONGEST_SECONDS, retry_after

DATE = b"Sun, 22 Nov 2026 10:00:00 GMT"


@pytest.mark.parametrize(
    ("status", "value", "seconds"),
    [
        (503, b"7", 7.0),
        (429, b" 7 ", 7.0),
        (503, b"0", 0.0),
        (503, b"-1", 0.0),
        (503, b"soon", 0.0),
        (503, b"", 0.0),
        (503, b"9" * 400, 0.0),
        (503, b"3600", LONGEST_SECONDS),
        (503, b"Sun, 22 Nov 2026 10:00:09 GMT", 9.0),
        (503, b"Sun, 22 Nov 2026 09:59:00 GMT", 0.0),
        (500, b"7", 0.0),
        (200, b"7", 0.0),
        (404, b"7", 0.0),
    ],
)
def test_seconds(status: int, value: bytes, seconds: float) -> None:
    answer = Answer()
    answer.status = status
    answer.headers = [(b"date", DATE), (b"retry-after", value)] if value else []
    assert retry_after(answer) == seconds


def test_a_date_without_a_date_to_compare_it_with() -> None:
    answer = Answer()
    answer.status = 503
    answer.headers = [(b"retry-after", DATE)]
    assert retry_after(answer) == 0.0
