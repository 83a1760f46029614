"""When an engine's answer is open."""

import itertools
import json

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
CREATED = b'event: response.created\ndata: {"response":{"error":null},"type":"response.created"}\n\n'
IN_PROGRESS = b'event: response.in_progress\ndata: {"response":{"error":null},"type":"response.in_progress"}\n\n'
ITEM = b'event: response.output_item.added\ndata: {"item":{},"type":"response.output_item.added"}\n\n'
MESSAGE_START = b'event: message_start\ndata: {"type":"message_start","message":{"role":"assistant"}}\n\n'
PING = b'event: ping\ndata: {"type":"ping"}\n\n'
BLOCK = b'event: content_block_start\ndata: {"type":"content_block_start","index":0}\n\n'
DONE = b"data: [DONE]\n\n"


def answer(body: bytes, *, status: int = 200, kind: bytes = b"text/event-stream", complete: bool = False) -> Answer:
    made = Answer()
    made.status, made.complete, made.content, made.size = status, complete, bytearray(body), len(body)
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
    "comment": (b": keep-alive\n\n", False),
    "comments-and-token": (b": keep-alive\n\n: keep-alive\n\n" + TOKEN, True),
    "comment-within": (b": x\n" + TOKEN, True),
    "empty-lines": (b"\n\n\n\n", False),
    "retry-only": (b"retry: 100\n\n", False),
    "crlf": (TOKEN.replace(b"\n", b"\r\n"), True),
    "crlf-comment": (b": keep-alive\r\n\r\n", False),
    "crlf-half": (TOKEN.replace(b"\n", b"\r\n")[:-1], False),
    "crlf-role-and-token": ((ROLE + TOKEN).replace(b"\n", b"\r\n"), True),
    "mixed-lines": (ROLE + b"data: x\n\r\n", True),
    "several-lines": (b'id: 1\ndata: {"a":\ndata: 1}\n\n', True),
    "created": (CREATED + IN_PROGRESS, False),
    "created-and-item": (CREATED + IN_PROGRESS + ITEM, True),
    "message-start": (MESSAGE_START + PING, False),
    "message-start-and-block": (MESSAGE_START + PING + BLOCK, True),
    "done": (DONE, False),
    "done-crlf": (b"data:[DONE]\r\n\r\n", False),
    "usage-and-done": (b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":7}}\n\n' + DONE, False),
    "role-and-done": (ROLE + DONE, False),
    "text-that-quotes-the-end": (b'data: {"choices":[{"text":"\\"choices\\":[] data: [DONE]"}]}\n\n', True),
    "no-json": (b'data: {"error" not json\n\n', True),
    "error-is-text": (b'data: {"error":"text"}\n\n', True),
    "error-code-is-text": (b'data: {"error":{"code":"500"}}\n\n', True),
}


@pytest.mark.parametrize("name", OPEN)
def test_streams(name: str) -> None:
    body, expected = OPEN[name]
    assert is_open("d", answer(body)) is expected
    if expected or "half" in name:
        assert is_open("d", answer(body, complete=True))
    else:
        with pytest.raises(BadAnswer, match="without an event"):
            is_open("d", answer(body, complete=True))


LONG_START = b'event: message_start\ndata: {"type":"message_start","id":"%b"}\n\n' % (b"x" * 5000)
OUTPUTS = {
    "role": (ROLE, True),
    "role-and-comment": (ROLE + b": keep-alive\n\n", True),
    "half-role": (ROLE[:-1], False),
    "message-start": (MESSAGE_START, True),
    "long-message-start": (LONG_START, True),
    "ping": (PING, False),
    "created": (CREATED + IN_PROGRESS, False),
    "comment": (b": keep-alive\n\n", False),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_events_that_come_with_the_first_output(name: str) -> None:
    body, expected = OUTPUTS[name]
    made = answer(body)
    assert not is_open("d", made)
    assert made.generates is expected


@pytest.mark.parametrize("before", [b"", ROLE])
@pytest.mark.parametrize(("event", "reason", "status"), [(ERROR, Reason.ERROR_EVENT, 500), (ABORT, Reason.ABORT, 503)])
def test_bad_first_events(before: bytes, event: bytes, reason: Reason, status: int) -> None:
    for complete in (False, True):
        with pytest.raises(BadAnswer) as raised:
            is_open("d", answer(before + event + DONE, complete=complete))
        assert (raised.value.reason, raised.value.status, raised.value.endpoint) == (reason, status, "d")


def test_only_the_first_event_is_inspected() -> None:
    assert is_open("d", answer(TOKEN + ERROR))


NAMED = {
    "anthropic": (b'event: error\ndata: {"type":"error","error":{"type":"internal_error","message":"m"}}\n\n', 500),
    "anthropic-busy": (b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error"}}\n\n', 503),
    "responses": (b'event: error\ndata: {"type":"error","code":"server_error","message":"m"}\n\n', 500),
    "responses-no-code": (b'event: error\ndata: {"type":"error","code":null,"message":"m"}\n\n', 500),
    "responses-number": (b'event: error\ndata: {"type":"error","code":502,"message":"m"}\n\n', 502),
    "name-only": (b'event: error\ndata: {"error":{"message":"m"}}\n\n', 500),
    "failed": (
        b'event: response.failed\ndata: {"type":"response.failed","response":{"status":"failed",'
        b'"error":{"code":"server_error","message":"m"}}}\n\n',
        500,
    ),
    "huge-code": (b'data: {"error":{"code":70000}}\n\n', 500),
}
CLIENTS = {
    "anthropic": b'event: error\ndata: {"type":"error","error":{"type":"invalid_request_error"}}\n\n',
    "responses": b'event: error\ndata: {"type":"error","code":"invalid_prompt","message":"m"}\n\n',
    "failed": b'data: {"type":"response.failed","response":{"error":{"code":"invalid_image"}}}\n\n',
    "completion": b'data: {"error":{"message":"m","type":"BadRequestError","param":null,"code":400}}\n\n',
    "response-of-vllm": b'event: error\ndata: {"type":"error","code":422,"message":"m"}\n\n',
    "failed-number": b'data: {"type":"response.failed","response":{"error":{"code":404}}}\n\n',
    "code-of-a-success": b'data: {"error":{"code":200}}\n\n',
    "completed": b'event: response.completed\ndata: {"type":"response.completed","response":{"error":null}}\n\n',
    "no-object": b'event: error\ndata: ["error"]\n\n',
}


@pytest.mark.parametrize("lines", [b"\n", b"\r\n"])
@pytest.mark.parametrize("name", NAMED)
def test_error_events_of_other_protocols(name: str, lines: bytes) -> None:
    event, status = NAMED[name]
    body = (b": keep-alive\n\n" + CREATED + event).replace(b"\n", lines)
    with pytest.raises(BadAnswer) as raised:
        is_open("d", answer(body))
    assert (raised.value.reason, raised.value.status) == (Reason.ERROR_EVENT, status)
    assert b'"error":{' in raised.value.body


NOT_REFUSED = ("completed", "no-object", "code-of-a-success")


@pytest.mark.parametrize("before", [b"", ROLE, CREATED])
@pytest.mark.parametrize("name", CLIENTS)
def test_errors_of_the_client_are_answers(name: str, before: bytes) -> None:
    made = answer(before + CLIENTS[name])
    assert is_open("d", made)
    assert made.refused is (name not in NOT_REFUSED)


def _wrapped(*codes: int, quoted: str = "Gr") -> bytes:
    """What vLLM 0.32 sends at `/v1/messages` when its wrapper cannot read the error of its chat stream."""
    lines = [f"{len(codes)} validation errors for ChatCompletionStreamResponse"]
    for code in codes:
        value = f"{{'error': {{'message': '{quoted}...am': None, 'code': {code}}}}}"
        lines += ["model", f"  Field required [type=missing, input_value={value}, input_type=dict]"]
        lines.append("    For further information visit https://errors.pydantic.dev/2.14/v/missing")
    return _error("\n".join(lines))


def _error(message: str, kind: str = "internal_error") -> bytes:
    error = {"type": "error", "error": {"type": kind, "message": message}}
    return b"event: error\ndata: " + json.dumps(error).encode() + b"\n\n"


@pytest.mark.parametrize(
    "event",
    [
        _wrapped(400, 400),
        _wrapped(400),
        _wrapped(422, 404),
        _wrapped(400, 400, quoted="'c"),
        _error("1 validation error for ChatCompletionStreamResponse … 'code': 400 …"),
    ],
)
def test_an_error_of_the_client_inside_vllms_text(event: bytes) -> None:
    made = answer(event)
    assert is_open("d", made)
    assert made.refused


@pytest.mark.parametrize(
    "event",
    [
        _wrapped(500, 500),
        _wrapped(400, 500),
        _wrapped(40000),
        _wrapped(),
        _error("The engine failed on the prompt \"2 validation errors for A 'code': 400\""),
        _error("'code': 400"),
        _error("EngineCore encountered an issue: {'error': {'code': 400}}"),
        _error("2 validation errors for A: 'code': 4"),
        b'data: {"error":{"message":"2 validation errors for A \'code\': 400","code":500}}\n\n',
        b'event: error\ndata: {"type":"error","code":"server_error","message":"1 validation error for A: 400"}\n\n',
    ],
)
def test_a_failure_of_the_engine_that_quotes_the_client_stays_one(event: bytes) -> None:
    with pytest.raises(BadAnswer) as raised:
        is_open("d", answer(event))
    assert raised.value.reason is Reason.ERROR_EVENT


@given(st.lists(st.integers(0, 300), max_size=20), st.booleans())
def test_pieces_are_judged_like_the_whole(cuts: list[int], crlf: bool) -> None:
    body = b": keep-alive\n\n" + ROLE + TOKEN
    body = body.replace(b"\n", b"\r\n") if crlf else body
    made = answer(b"")
    for begin, end in itertools.pairwise(sorted({0, len(body), *(cut % len(body) for cut in cuts)})):
        assert not is_open("d", made)
        made.content += body[begin:end]
        made.size = len(made.content)
    assert is_open("d", made)


def test_an_endless_event_is_relayed_and_searched_once() -> None:
    made = answer(b"data: ")
    for _ in range(300):
        assert not is_open("d", made)
        made.content += b"x" * 4096
        made.size = len(made.content)
        assert made.inspected >= len(made.content) - 4096 - 2, "only the last piece is searched"
        if made.size > 1 << 20:
            break
    assert is_open("d", made)


MIB = 1 << 20
LONG = b'event: response.created\ndata: {"response":{"tools":"%s"}}\n\n' % (b"x" * 3 * MIB)
LONG_END = b'event: response.completed\ndata: {"response":{"tools":"%s","usage":{%%s}}}\n\n' % (b"x" * 3 * MIB)


def _open_after(body: bytes, sent: int, lines: bytes = b"\n") -> int:
    """After how many bytes of an answer that comes in pieces it is open. Checks that its bytes are searched once."""
    body = body.replace(b"\n", lines)
    made = answer(b"")
    for begin in range(0, len(body), MIB // 4):
        made.content += body[begin : begin + MIB // 4]
        made.size = len(made.content)
        if is_open("d", made, "/v1/responses", sent):
            return made.size
        assert made.inspected >= made.size - 2
    raise AssertionError("never")


@pytest.mark.parametrize("lines", [b"\n", b"\r\n"])
def test_what_repeats_the_request_proves_nothing_however_long_it_is(lines: bytes) -> None:
    announced = LONG + LONG.replace(b"created", b"in_progress")
    whole = len((announced + ITEM).replace(b"\n", lines))
    assert _open_after(announced + ITEM, 3 * MIB, lines) == whole
    assert _open_after(announced + LONG_END % ONE_TOKEN, 3 * MIB, lines) > whole
    with pytest.raises(BadAnswer, match="error event"):
        _open_after(announced + NAMED["failed"][0], 3 * MIB, lines)
    with pytest.raises(BadAnswer, match="aborted"):
        _open_after(announced + LONG_END % NO_TOKENS, 3 * MIB, lines)


def test_what_repeats_the_request_is_bounded_by_its_size() -> None:
    assert _open_after(LONG * 9, 3 * MIB) == 10 * MIB + MIB // 4
    assert _open_after(LONG, 0) == MIB + MIB // 4
    other = LONG.replace(b"response.created", b"response.output_text.delta")
    assert _open_after(CREATED + other, 3 * MIB) == MIB + MIB // 4
    assert _open_after(LONG.replace(b"event: response.created\n", b""), 3 * MIB) == MIB + MIB // 4


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


MESSAGE_END = b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":%s}}\n\n'
RESPONSE_END = b'event: response.completed\ndata: {"type":"response.completed","response":{"usage":{%s}}}\n\n'
NO_TOKENS, ONE_TOKEN = b'"output_tokens":0,"total_tokens":9', b'"output_tokens":1,"total_tokens":10'


@pytest.mark.parametrize("lines", [b"\n", b"\r\n"])
@pytest.mark.parametrize(
    ("aborted", "ended"),
    [
        (MESSAGE_START + MESSAGE_END % b"null", MESSAGE_START + MESSAGE_END % b'"end_turn"'),
        (CREATED + IN_PROGRESS + RESPONSE_END % NO_TOKENS, CREATED + IN_PROGRESS + RESPONSE_END % ONE_TOKEN),
    ],
    ids=["messages", "responses"],
)
def test_streams_of_agents_that_end_before_a_token(aborted: bytes, ended: bytes, lines: bytes) -> None:
    """An engine that shuts down sends no error. One token that is a stop token is an answer."""
    with pytest.raises(BadAnswer, match="aborted"):
        is_open("d", answer(aborted.replace(b"\n", lines)))
    assert is_open("d", answer(ended.replace(b"\n", lines)))
    assert is_open("d", answer(MESSAGE_START + BLOCK + MESSAGE_END % b"null")), "it has begun"


@pytest.mark.parametrize(
    ("path", "aborted", "ended"),
    [
        ("/v1/messages", b'{"type":"message","content":[]}', b'{"type":"message","stop_reason":"end_turn"}'),
        ("/v1/responses", b'{"usage":{%s}}' % NO_TOKENS, b'{"usage":{%s}}' % ONE_TOKEN),
    ],
)
def test_whole_answers_to_agents(path: str, aborted: bytes, ended: bytes) -> None:
    json = b"application/json"
    with pytest.raises(BadAnswer, match="aborted"):
        is_open("d", answer(aborted, kind=json, complete=True), path)
    assert is_open("d", answer(ended, kind=json, complete=True), path)
    assert is_open("d", answer(aborted, kind=json, complete=True), "/v1/embeddings")


TOOLS = b'"tools":[{"parameters":{"default":{%s}}}]' % NO_TOKENS


def test_a_response_repeats_tools_that_resemble_an_abort() -> None:
    json = b"application/json"
    whole = b'{%s,"usage":{%s}}'
    assert is_open("d", answer(whole % (TOOLS, ONE_TOKEN), kind=json, complete=True), "/v1/responses")
    assert is_open("d", answer(b"{%s}" % TOOLS, kind=json, complete=True), "/v1/responses")
    with pytest.raises(BadAnswer, match="aborted"):
        is_open("d", answer(whole % (TOOLS, NO_TOKENS), kind=json, complete=True), "/v1/responses")
    ended = RESPONSE_END.replace(b'"usage"', TOOLS.replace(b"%", b"%%") + b',"usage"')
    assert is_open("d", answer(CREATED + ended % ONE_TOKEN))
    with pytest.raises(BadAnswer, match="aborted"):
        is_open("d", answer(CREATED + ended % NO_TOKENS))


@pytest.mark.parametrize("status", [500, 502, 503])
def test_server_errors_are_read_to_their_end(status: int) -> None:
    assert not is_open("d", answer(b"{", status=status))
    with pytest.raises(BadAnswer) as raised:
        is_open("d", answer(b'{"error":1}', status=status, kind=b"application/json", complete=True))
    assert (raised.value.status, raised.value.body) == (status, b'{"error":1}')
    with pytest.raises(BadAnswer) as raised:
        is_open("d", answer(b"Internal Server Error", status=status, kind=b"text/plain", complete=True))
    assert raised.value.body == b"", "only JSON goes to the client as JSON"


def test_a_server_error_without_end_is_bounded() -> None:
    with pytest.raises(BadAnswer) as raised:
        is_open("d", answer(b"{" * ((1 << 20) + 1), status=500, kind=b"application/json"))
    assert (raised.value.status, raised.value.body) == (500, b"")


@pytest.mark.parametrize("status", [300, 304, 307, 399])
@pytest.mark.parametrize("complete", [False, True])
def test_a_redirect_is_a_failure(status: int, complete: bool) -> None:
    with pytest.raises(BadAnswer) as raised:
        is_open("d", answer(b"elsewhere", status=status, complete=complete))
    assert (raised.value.status, raised.value.body) == (502, b"")


@pytest.mark.parametrize("content", [b"", b" ", b"\r\n\t "])
def test_an_answer_of_spaces_is_a_failure(content: bytes) -> None:
    with pytest.raises(BadAnswer, match="empty"):
        is_open("d", answer(content, complete=True, kind=b"application/json"))


def test_an_answer_that_begins_with_many_spaces_is_a_failure() -> None:
    """No other request of this engine gets more: it may go on for ever."""
    assert not is_open("d", answer(b" " * (1 << 20), kind=b"application/json"))
    assert is_open("d", answer(b" " * (1 << 20) + b"{", kind=b"application/json"))
    with pytest.raises(BadAnswer, match="empty"):
        is_open("d", answer(b" " * (1 << 20) + b" ", kind=b"application/json"))


@pytest.mark.parametrize("status", [204, 400, 404, 422, 429])
def test_other_answers_go_on_whole(status: int) -> None:
    """The end of a refusal shows whether it comes from D's engine or from its HTTP server."""
    assert not is_open("d", answer(b"", status=status))
    assert is_open("d", answer(b"", status=status, complete=True))
    assert is_open("d", answer(b"x" * (1 << 20) + b"x", status=status))


def test_no_head_no_answer() -> None:
    assert not is_open("d", answer(TOKEN, status=0))
