"""Retry-After of engines."""

import random

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
        (503, b"Sun, 22 Nov 99999 10:00:00 GMT", 0.0),
        (503, b"Sun, 22 Nov 2026 10:00:09 +99999999999999999999", 0.0),
        (503, b"Fri, 31 Dec 9999 23:59:59 -9900", 0.0),
        (503, b"Sat, 01 Jan 0001 00:00:00 +2359", 0.0),
        (503, b"Sun, 22 Nov 2026 10:00:09", 0.0),
        (503, b"Sun, 22 Nov 2026 99:99:99 GMT", 0.0),
        (503, b"Sun, 22 Nov 2026 1e9:00:00 GMT", 0.0),
        (503, b"Sun, , , , ,", 0.0),
        (503, b",", 0.0),
        (503, b"(" * 60_000, 0.0),
        (503, b"\xff\xfe", 0.0),
        (503, "\u0663".encode(), 0.0),
        (503, b"1e3", 0.0),
        (503, b"nan", 0.0),
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


def test_random_dates_raise_nothing() -> None:
    rng = random.Random(5)
    words = [b"Sun,", b"22", b"Nov", b"99999999999", b"10:00:09", b"-0000", b"+9999", b"GMT", b":", b"", b"\xff", b"0"]
    for _ in range(3000):
        answer = Answer()
        answer.status = 503
        names = (b"date", b"retry-after")
        answer.headers = [(name, b" ".join(rng.choices(words, k=rng.randrange(8)))) for name in names]
        assert 0.0 <= retry_after(answer) <= LONGEST_SECONDS
