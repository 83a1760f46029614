"""When an engine's answer is open."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdx_proxy.http.upstream.answer import Answer
from pdx_proxy.http.upstream.failures import BadAnswer, Reason
from pdx_proxy.payload.first_event import is_open

ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
TOKEN = b'data: {"choices":[{"text":"a","finish_reason":null}]}\n\n'
ABORT = b'data: {"choices":[{"text":"","finish_reason":"abort"}]}\n\n'
ERROR = b'data: {"error":{"message":"m","type":"t","param":null,"code":500}}\n\n'
REFUSAL = b'data: {"error":{"message":"m","type":"t","param":null,"code":400}}\n\n'
QUOTED = b'data: {"choices":[{"text":"\\"error\\" and \\"finish_reason\\":\\"abort\\"","finish_reason":null}]}\n\n'
DONE = b"data: [DONE]\n\n"


def answer(body: bytes, *, status: int = 200, kind: bytes = b"text/event-stream", complete: bool = False) -> Answer:
    made = Answer()
    made.status, made.complete, made.parts, made.size = status, complete, [body], len(body)
    made.headers = [(b"content-type", kind)]
    return made


OPEN = {
    "nothing": (b"", False),
    "half-event": (TOKEN[:-1], False),
    "token": (TOKEN, True),
    "role-only": (ROLE, False),
    "role-and-token": (ROLE + TOKEN, True),
    "role-and-half": (ROLE + TOKEN[:-2], False),
    "refusal": (REFUSAL, True),
    "quoted": (QUOTED, True),
    "done": (DONE, True),
    "comment": (b": hello\n\n", True),
    "no-json": (b'data: {"error" not json\n\n', True),
    "error-is-text": (b'data: {"error":"text"}\n\n', True),
    "error-code-is-text": (b'data: {"error":{"code":"500"}}\n\n', True),
}


@pytest.mark.parametrize("name", OPEN)
def test_streams(name: str) -> None:
    body, expected = OPEN[name]
    assert is_open("d", answer(body)) is expected
    assert is_open("d", answer(body, complete=True))


@pytest.mark.parametrize("before", [b"", ROLE])
@pytest.mark.parametrize(("event", "reason", "status"), [(ERROR, Reason.ERROR_EVENT, 500), (ABORT, Reason.ABORT, 503)])
def test_bad_first_events(before: bytes, event: bytes, reason: Reason, status: int) -> None:
    for complete in (False, True):
        with pytest.raises(BadAnswer) as raised:
            is_open("d", answer(before + event + DONE, complete=complete))
        assert (raised.value.reason, raised.value.status, raised.value.endpoint) == (reason, status, "d")


def test_only_the_first_event_is_inspected() -> None:
    assert is_open("d", answer(TOKEN + ERROR))


@given(st.integers(0, 200))
def test_a_prefix_never_opens_sooner_than_its_first_event(end: int) -> None:
    body = (ROLE + TOKEN)[:end]
    assert is_open("d", answer(body)) is (end >= len(ROLE + TOKEN))


WHOLE = b'{"choices":[{"text":"a","finish_reason":"%s"}]}'


def test_whole_answers() -> None:
    json = b"application/json"
    assert not is_open("d", answer(WHOLE % b"stop", kind=json))
    assert is_open("d", answer(WHOLE % b"stop", kind=json, complete=True))
    assert is_open("d", answer(b"x" * 2_000_000, kind=json)), "a huge answer is not buffered"
    assert is_open("d", answer(rb'{"text":"\"finish_reason\":\"abort\""}', kind=json, complete=True))
    with pytest.raises(BadAnswer, match="aborted"):
        is_open("d", answer(WHOLE % b"abort", kind=json, complete=True))


@pytest.mark.parametrize("status", [500, 502, 503])
def test_server_errors_are_read_to_their_end(status: int) -> None:
    assert not is_open("d", answer(b"{", status=status))
    with pytest.raises(BadAnswer) as raised:
        is_open("d", answer(b'{"error":1}', status=status, kind=b"application/json", complete=True))
    assert (raised.value.status, raised.value.body) == (status, b'{"error":1}')
    with pytest.raises(BadAnswer) as raised:
        is_open("d", answer(b"Internal Server Error", status=status, kind=b"text/plain", complete=True))
    assert raised.value.body == b"", "only JSON goes to the client as JSON"


@pytest.mark.parametrize("status", [204, 302, 400, 404, 422, 429])
def test_other_answers_go_on_whole(status: int) -> None:
    """The end of a refusal shows whether it comes from D's engine or from its HTTP server."""
    assert not is_open("d", answer(b"", status=status))
    assert is_open("d", answer(b"", status=status, complete=True))
    assert is_open("d", answer(b"x" * (1 << 20) + b"x", status=status))


def test_no_head_no_answer() -> None:
    assert not is_open("d", answer(TOKEN, status=0))
