"""Many events before the first one with content: the same result, in calls of bounded work."""

import pytest

from pdx_proxy.http.upstream.answer import Answer
from pdx_proxy.http.upstream.failures import BadAnswer
from pdx_proxy.payload import first_event
from pdx_proxy.payload.first_event import is_open
from tests.unit.proxy.payload.test_first_event import CREATED, ERROR, PING, ROLE, TOKEN, answer

EVENTS = 4500
FLOODS = {
    "comments": b":\n\n",
    "comments in CR LF": b":\r\n\r\n",
    "long comments": b": keep-alive " + b"x" * 200 + b"\n\n",
    "empty lines": b"\n\n",
    "retry": b"retry: 1\n\n",
    "pings": PING,
    "pings in CR LF": PING.replace(b"\n", b"\r\n"),
    "roles": ROLE,
    "announcements": CREATED,
}


def calls(made: Answer, flood: bytes, sent: int = 0) -> tuple[bool, int]:
    """Return whether the answer is open, and after how many calls. Checks the work of each call."""
    for count in range(1, 100):
        before = made.event_begin
        is_now_open = is_open("d", made, "/v1/chat/completions", sent)
        assert made.event_begin - before <= 1000 * len(flood)
        if is_now_open or not made.unread:
            return is_now_open, count
    raise AssertionError("never")


@pytest.mark.parametrize("complete", [False, True])
@pytest.mark.parametrize("kind", FLOODS)
def test_what_follows_a_flood_decides(kind: str, complete: bool) -> None:
    flood = FLOODS[kind]
    before = flood * EVENTS
    assert calls(answer(before + TOKEN, complete=complete), flood, len(before)) == (True, 5)
    if complete:
        with pytest.raises(BadAnswer, match="without an event"):
            calls(answer(before, complete=True), flood, len(before))
    else:
        assert calls(answer(before), flood, len(before)) == (False, 5)
    with pytest.raises(BadAnswer, match="an error event"):
        calls(answer(before + ERROR, complete=complete), flood, len(before))


@pytest.mark.parametrize("kind", FLOODS)
def test_a_flood_that_goes_on_is_judged_where_it_was_left(kind: str) -> None:
    flood = FLOODS[kind]
    made = answer(b"")
    for _ in range(5):
        made.content += flood * 700
        made.size = len(made.content)
        assert calls(made, flood, made.size) == (False, 1)
    made.content += TOKEN
    assert calls(made, flood, made.size) == (True, 1)


@pytest.mark.parametrize("kind", ["comments", "pings", "roles"])
def test_a_flood_that_is_faster_than_the_gateway_is_relayed(kind: str) -> None:
    flood = FLOODS[kind]
    made = answer(flood * (3 * (1 << 20) // len(flood)))
    assert is_open("d", made)
    assert made.event_begin <= 1000 * len(flood)


def test_a_mebibyte_in_cr_lf_is_searched_once() -> None:
    """Its bytes contain no LF LF, which ends an event too. A search of the whole for it at each event takes minutes."""
    searched = 0

    class Counted(bytearray):
        def find(self, *args: object) -> int:
            nonlocal searched
            _, begin, *end = args
            assert isinstance(begin, int)
            until = end[0] if end else len(self)
            assert isinstance(until, int)
            position: int = super().find(*args)  # type: ignore[arg-type]
            searched += min(until, len(self)) - begin if position < 0 else position - begin
            return position

    flood = b": x\r\n\r\n"
    made = answer(b"")
    made.content = Counted(flood * EVENTS)
    made.size = len(made.content)
    assert calls(made, flood) == (False, 5)
    assert searched < EVENTS * 5000


LINES = {
    "data": b"data:\n",
    "comments": b": \n",
    "other fields": b"id: 1\n",
    "no fields": b"x\n",
    "CR LF": b"data: 1\r\n",
    "names": b"event: ping\n",
}


@pytest.mark.parametrize(
    "behind", [b"\n", b"\n" + TOKEN, b'data: {"error":{"code":500}}\n\n'], ids=["end", "token", "error"]
)
@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_an_event_of_very_many_lines_is_relayed_unread(
    line: bytes, behind: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No engine sends one, and to split it takes as long as all its lines."""
    monkeypatch.setattr(first_event, "_fields", None)
    assert is_open("d", answer(b"data: {\n" + line * 100_000 + behind), "/v1/completions", 0)


@pytest.mark.parametrize("line", [line for kind, line in LINES.items() if kind != "names"])
def test_one_of_a_few_lines_is_read(line: bytes) -> None:
    with pytest.raises(BadAnswer, match="an error event"):
        is_open("d", answer(b"event: error\n" + line.replace(b"data", b"xata") * 900 + ERROR.lstrip()), "", 0)
