"""Odd answers of a hostile engine to requests for completions: streams, errors, KV parameters, dates."""

import asyncio
from typing import Any, Final

from tests.component.hostile.engines import Ask, Behaviour, dumped

ANSWERS: Final[list[Behaviour]] = []
FATAL: Final[set[str]] = set()
"""Names of the behaviours after which no engine may stay in service, when all of its answers are such."""
_SSE: Final = "text/event-stream; charset=utf-8"
_DONE: Final = b"data: [DONE]\n\n"
_ODD: Final[tuple[Any, ...]] = (
    *(None, [], {}, "", 0, -1, True, 1.5, [[]], "x" * 5000, "\ud800", "\x00\r\n", [None], {"a": []}, 10**30),
)


def _behaves(behaviour: Behaviour) -> Behaviour:
    ANSWERS.append(behaviour)
    return behaviour


def _fatal(behaviour: Behaviour) -> Behaviour:
    FATAL.add(behaviour.__name__)
    return _behaves(behaviour)


def _event(ask: Ask, text: str, reason: str | None = None) -> bytes:
    """An event with text, in the format of the API."""
    match ask.api:
        case "messages":
            delta = {"type": "text_delta", "text": text}
            data: Any = {"type": "content_block_delta", "index": 0, "delta": delta}
            return b"event: content_block_delta\ndata: " + dumped(data) + b"\n\n"
        case "responses":
            data = {"type": "response.output_text.delta", "delta": text, "sequence_number": 4}
            return b"event: response.output_text.delta\ndata: " + dumped(data) + b"\n\n"
        case "chat":
            choice: Any = {"index": 0, "delta": {"content": text}, "finish_reason": reason}
        case _:
            choice = {"index": 0, "text": text, "finish_reason": reason}
    return b"data: " + dumped({"id": "a", "object": "x", "choices": [choice]}) + b"\n\n"


def _mark(ask: Ask) -> str:
    """Text that names the request, so that no other client may get it."""
    return f"HOSTILE-{ask.number} "


def _document(ask: Ask, **more: Any) -> dict[str, Any]:
    """A whole answer, in the format of the API."""
    text, usage = _mark(ask), {"prompt_tokens": 1, "completion_tokens": 1, "input_tokens": 1, "output_tokens": 1}
    match ask.api:
        case "messages":
            own: Any = {"type": "message", "content": [{"type": "text", "text": text}], "stop_reason": "end_turn"}
        case "responses":
            part = {"type": "output_text", "text": text}
            own = {"object": "response", "status": "completed", "output": [{"type": "message", "content": [part]}]}
        case "chat":
            own = {"choices": [{"index": 0, "message": {"content": text}, "finish_reason": "length"}]}
        case _:
            own = {"choices": [{"index": 0, "text": text, "finish_reason": "length"}]}
    return {"id": "a", "model": "sim", **own, "usage": usage, **more}


async def _stream(ask: Ask, *events: bytes, end: bool = True) -> None:
    """A stream of these events, and its end."""
    await ask.head(kind=_SSE)
    for event in events:
        await ask.chunk(event)
    if end:
        await ask.chunk(b"")
        ask.stays = True


@_fatal
async def comments_flood(ask: Ask) -> None:
    await _stream(ask, *[b":\n\n" * 20_000] * 50, end=False)


@_fatal
async def comments_endless(ask: Ask) -> None:
    await ask.head(kind=_SSE)
    await ask.flood(b"a\r\n: alive\n\n\r\n", 64 << 20)


@_fatal
async def comments_drip(ask: Ask) -> None:
    """Comments keep a stream alive that never begins."""
    await ask.head(kind=_SSE)
    for _ in range(150):
        await ask.chunk(b": alive\n\n")
        await asyncio.sleep(0.1)


@_fatal
async def announcements_flood(ask: Ask) -> None:
    event = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
    await _stream(ask, *[event * 600] * 30, end=False)


@_fatal
async def pings_flood(ask: Ask) -> None:
    await _stream(ask, *[b'event: ping\ndata: {"type":"ping"}\n\n' * 1500] * 30, end=False)


@_fatal
async def empty_lines_flood(ask: Ask) -> None:
    await _stream(ask, *[b"\n" * 65_000] * 30, end=False)


@_fatal
async def event_without_end(ask: Ask) -> None:
    await ask.head(kind=_SSE)
    await ask.chunk(b"data: ")
    await ask.flood(b"10\r\n" + b"a" * 16 + b"\r\n", 64 << 20)


@_behaves
async def event_of_many_lines(ask: Ask) -> None:
    await _stream(ask, b"data: {\n" + b"data:\n" * 100_000 + b"data: }\n\n", _event(ask, _mark(ask)), _DONE)


@_behaves
async def fields_of_sse(ask: Ask) -> None:
    odd = b"retry: 999999999999999999999\nid: \x00\nevent: \xff\nfoo: bar\nbaz\n\n"
    await _stream(ask, odd, b"\xef\xbb\xbf" + _event(ask, _mark(ask)), odd, _DONE)


@_behaves
async def lines_end_oddly(ask: Ask) -> None:
    end = ask.rng.choice((b"\r", b"\r\n", b"\n\r", b"\x0b", b"\xe2\x80\xa8"))
    await _stream(ask, (_event(ask, _mark(ask)) + _DONE).replace(b"\n", end))


@_fatal
async def error_event_odd(ask: Ask) -> None:
    """An error whose members have odd types, before anything else."""
    error = {"message": ask.rng.choice(_ODD), "type": ask.rng.choice(_ODD), "code": ask.rng.choice(_ODD)}
    await _stream(ask, b"event: error\ndata: " + dumped({"type": "error", "error": error}) + b"\n\n", _DONE)


@_fatal
async def error_event_no_object(ask: Ask) -> None:
    await _stream(ask, b"event: error\ndata: " + dumped({"error": ask.rng.choice(_ODD)}) + b"\n\n", _DONE)


@_behaves
async def error_event_codes(ask: Ask) -> None:
    """Without a readable code and a type, vLLM sends no error: it is relayed like any other event."""
    code = ask.rng.choice((b"1e400", b"9" * 5000, b"-400", b'"500"', b"599.5", b"NaN", b"true", b"[500]"))
    await _stream(ask, b'data: {"error":{"message":"x","type":"y","code":' + code + b"}}\n\n", _DONE)


@_fatal
async def error_event_deep(ask: Ask) -> None:
    depth = ask.rng.choice((200, 5000, 200_000))
    await _stream(ask, b'data: {"error":{"code":500,"message":' + b"[" * depth + b"]" * depth + b"}}\n\n")


@_fatal
async def error_event_long(ask: Ask) -> None:
    await _stream(ask, b"data: " + dumped({"error": {"code": 500, "message": "\x1b[31m\n" * 100_000}}) + b"\n\n")


@_behaves
async def error_after_text(ask: Ask) -> None:
    error = {"error": {"message": ask.rng.choice(_ODD), "code": ask.rng.choice(_ODD)}}
    await _stream(ask, _event(ask, _mark(ask)), b"data: " + dumped(error) + b"\n\n", _DONE)


@_behaves
async def sequence_number_of_many_digits(ask: Ask) -> None:
    number = b"9" * ask.rng.choice((20, 400, 5000))
    name = b"response.output_text.delta"
    event = b'event: %b\ndata: {"type":"%b","delta":"%b","sequence_number":%b}\n\n'
    await _stream(ask, event % (name, name, _mark(ask).encode(), number), end=False)


@_behaves
async def response_failed_odd(ask: Ask) -> None:
    failed = {"type": "response.failed", "response": {"error": ask.rng.choice(_ODD), "status": ask.rng.choice(_ODD)}}
    await _stream(ask, b"event: response.failed\ndata: " + dumped(failed) + b"\n\n")


@_behaves
async def events_no_json(ask: Ask) -> None:
    await _stream(ask, b"data: {not json}\n\n", b"data: \xff\xfe\n\n", b"data: " + b"[" * 50_000 + b"\n\n", _DONE)


@_behaves
async def choices_odd(ask: Ask) -> None:
    choices = ask.rng.choice((*_ODD, [{"index": [], "text": {}}], [{"finish_reason": {}}], [{"delta": []}]))
    await _stream(ask, b"data: " + dumped({"choices": choices}) + b"\n\n", _DONE)


@_behaves
async def done_first(ask: Ask) -> None:
    await _stream(ask, _DONE, _event(ask, _mark(ask)))


@_behaves
async def done_twice(ask: Ask) -> None:
    await _stream(ask, _event(ask, _mark(ask)), _DONE, _DONE, _event(ask, _mark(ask)), _DONE)


@_behaves
async def stream_without_done(ask: Ask) -> None:
    await _stream(ask, _event(ask, _mark(ask)))


@_fatal
async def stream_empty(ask: Ask) -> None:
    await _stream(ask)


@_behaves
async def stream_cut_in_event(ask: Ask) -> None:
    await _stream(ask, _event(ask, _mark(ask)), _event(ask, _mark(ask))[:20], end=False)


@_behaves
async def stream_cut_between_events(ask: Ask) -> None:
    await _stream(ask, _event(ask, _mark(ask)), end=False)
    ask.reset()


@_behaves
async def stream_stalls(ask: Ask) -> None:
    await _stream(ask, _event(ask, _mark(ask)), end=False)
    await asyncio.sleep(20.0)


@_behaves
async def stream_drips_for_ever(ask: Ask) -> None:
    await ask.head(kind=_SSE)
    for _ in range(100):
        await ask.drip(b"1\r\n \r\n", 0.02)
        await ask.chunk(_event(ask, _mark(ask)))


@_behaves
async def stream_floods_text(ask: Ask) -> None:
    await ask.head(kind=_SSE)
    event = _event(ask, _mark(ask) * 500)
    await ask.flood(b"%x\r\n%b\r\n" % (len(event), event), 16 << 20)


@_behaves
async def other_content_type(ask: Ask) -> None:
    """A stream where none was asked for, or the reverse."""
    if ask.stream:
        await ask.whole(dumped(_document(ask)), kind=ask.rng.choice(("application/json", "text/html", "", "\x7f")))
    else:
        await _stream(ask, _event(ask, _mark(ask)), _DONE)


@_fatal
async def answer_deep(ask: Ask) -> None:
    depth = ask.rng.choice((500, 20_000, 1_000_000))
    await ask.whole(b'{"choices":' + b"[" * depth + b"]" * depth + b"}")


@_behaves
async def answer_integers(ask: Ask) -> None:
    zeros = b"0" * ask.rng.choice((23, 400, 5000))
    await ask.whole(dumped(_document(ask))[:-1] + b',"created":1' + zeros + b"}")


@_fatal
async def answer_of_blanks(ask: Ask) -> None:
    await ask.head()
    await ask.flood(b"400\r\n" + b" " * 1024 + b"\r\n")


@_fatal
async def answer_empty(ask: Ask) -> None:
    ask.stays = True
    await ask.whole(b"")


@_behaves
async def answer_usage_odd(ask: Ask) -> None:
    odd = {name: ask.rng.choice(_ODD) for name in ("prompt_tokens", "completion_tokens", "prompt_tokens_details")}
    await ask.whole(dumped(_document(ask, usage=ask.rng.choice((odd, *_ODD)))))


@_behaves
async def answer_aborted(ask: Ask) -> None:
    choice = {"index": 0, "text": "", "message": {"content": ""}, "finish_reason": "abort"}
    await ask.whole(dumped(_document(ask, choices=[choice], stop_reason=None)))


@_behaves
async def params_16_mib(ask: Ask) -> None:
    params = {"do_remote_prefill": True, "remote_block_ids": [[1]], "remote_engine_id": "e" * (15 << 20)}
    await ask.whole(dumped(_document(ask, kv_transfer_params=params)))


@_behaves
async def params_many_blocks(ask: Ask) -> None:
    params = {"do_remote_prefill": True, "remote_block_ids": [list(range(100_000))], "remote_engine_id": "e"}
    await ask.whole(dumped(_document(ask, kv_transfer_params=params)))


@_behaves
async def params_types(ask: Ask) -> None:
    await ask.whole(dumped(_document(ask, kv_transfer_params=ask.rng.choice(_ODD))))


@_behaves
async def params_deep(ask: Ask) -> None:
    depth = ask.rng.choice((60, 900, 100_000))
    await ask.whole(dumped(_document(ask))[:-1] + b',"kv_transfer_params":{"a":' + b"[" * depth + b"]" * depth + b"}}")


@_behaves
async def params_odd_members(ask: Ask) -> None:
    """Parameters of the right shape with odd values: some of them end the EngineCore of a D that reads them."""
    names = ("remote_engine_id", "remote_block_ids", "remote_host", "remote_port", "remote_request_id", "tp_size")
    params = {name: ask.rng.choice(_ODD) for name in names}
    params |= {"do_remote_prefill": True, "do_remote_decode": ask.rng.choice((False, *_ODD))}
    await ask.whole(dumped(_document(ask, kv_transfer_params=params)))


@_behaves
async def params_no_blocks(ask: Ask) -> None:
    params = {"remote_engine_id": "e", "remote_block_ids": [], "remote_host": "127.0.0.1", "remote_port": 1}
    params |= {"do_remote_prefill": True, "do_remote_decode": False, "remote_request_id": "r", "tp_size": 1}
    await ask.whole(dumped(_document(ask, kv_transfer_params=params)))


@_behaves
async def params_elsewhere(ask: Ask) -> None:
    params = {"remote_engine_id": "e", "remote_block_ids": [[1]], "remote_host": "127.0.0.1", "remote_port": 1}
    params |= {"do_remote_prefill": True, "do_remote_decode": False, "remote_request_id": "r", "tp_size": 1}
    await ask.whole(dumped(_document(ask, kv_transfer_params=params)))


@_behaves
async def params_twice(ask: Ask) -> None:
    await ask.whole(dumped(_document(ask))[:-1] + b',"kv_transfer_params":null' * 50_000 + b',"kv_transfer_params":{}}')


@_behaves
async def retry_after_odd(ask: Ask) -> None:
    dates = ("Fri, 31 Dec 999999 23:59:59 GMT", "Sun, 06 Nov 0000 00:00:00 GMT", "Mon, 99 Xyz 2026 99:99:99 +99999999")
    odd = ask.rng.choice((*dates, "-1", "inf", "nan", "1e309", "9" * 400, "", "0x10", "1;2", "\xa0", "99999999999"))
    await ask.whole(
        dumped({"error": {"code": 429}}), ask.rng.choice(("429 X", "503 X")), more=f"Retry-After: {odd}\r\n"
    )


@_behaves
async def retry_after_one_second(ask: Ask) -> None:
    """Busy for ever, a second at a time."""
    ask.stays = True
    await ask.whole(dumped({"error": {"message": "busy", "code": 503}}), "503 X", more="Retry-After: 1\r\n")


@_fatal
async def status_500(ask: Ask) -> None:
    ask.stays = True
    await ask.whole(dumped({"error": {"message": "x\n\x1b[2J" * 50, "code": 500}}), "500 Internal Server Error")


@_fatal
async def status_500_endless(ask: Ask) -> None:
    await ask.head("500 Internal Server Error")
    await ask.flood(b"400\r\n" + b"e" * 1024 + b"\r\n")


@_behaves
async def status_400_endless(ask: Ask) -> None:
    await ask.head("400 Bad Request")
    await ask.flood(b"400\r\n" + b"e" * 1024 + b"\r\n", 64 << 20)


@_behaves
async def status_400_odd(ask: Ask) -> None:
    ask.stays = True
    await ask.whole(
        dumped({"error": ask.rng.choice(_ODD)}), ask.rng.choice(("400 X", "401 X", "404 X", "418 X", "451 X"))
    )


@_behaves
async def status_in_odd_range(ask: Ask) -> None:
    ask.stays = True
    await ask.whole(b"{}", ask.rng.choice(("201 X", "206 X", "300 X", "599 X", "700 X", "999 X")))


@_behaves
async def answers_before_the_body(ask: Ask) -> None:
    """200 to everything, with the text of nobody."""
    ask.stays = True
    if ask.stream:
        await _stream(ask, _event(ask, _mark(ask), "length"), _DONE)
    else:
        await ask.whole(dumped(_document(ask)))
