"""Sends an answer, complete or as a stream, and simulates the faults that change it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import orjson
from aiohttp import web

from pdx_sim.api.answers import Choice, Writer
from pdx_sim.api.request import APIError
from pdx_sim.core.sequence import Finish
from pdx_sim.faults import Fault, FaultKind

_STREAM_HEADERS: Final = {"Content-Type": "text/event-stream; charset=utf-8"}
_KEEP_ALIVE: Final = b": keep-alive\n\n"
"""vLLM: serve/utils/sse_keep_alive.py."""
_BAD_EVENT: Final = b"data: {not json\n\n"
_LOAD_ERROR: Final = APIError(500, "Internal server error", "InternalServerError")


def json_answer(content: dict[str, Any], status: int = 200) -> web.Response:
    """A JSON answer."""
    return web.Response(body=orjson.dumps(content), status=status, content_type="application/json")


class ConnectionCutError(Exception):
    """A fault has closed the connection."""


async def cut(request: web.Request, last: bytes = b"") -> None:
    """Write `last` and close the connection."""
    transport = request.transport
    if transport is not None:
        transport.write(last)
        await asyncio.sleep(0)  # uvloop writes at the end of its iteration
        transport.close()
    raise ConnectionCutError


async def deliver_whole(
    request: web.Request, choices: list[Choice], writer: Writer, fault: Fault | None
) -> web.StreamResponse:
    """Send the complete answer when every choice has ended."""
    changed = choices[0].seq.changed
    while any(choice.seq.finish is None for choice in choices):
        changed.clear()
        await changed.wait()
    kind = fault.kind if fault else None
    fails = kind is FaultKind.ERROR_EVENT and fault is not None and not fault.error
    if fails or any(choice.seq.finish is Finish.ERROR for choice in choices):
        return json_answer(_LOAD_ERROR.as_json(), 500)
    body = orjson.dumps(writer.whole(choices, kind is not FaultKind.NO_PARAMS))
    match kind:
        case FaultKind.LOSE_ANSWER:
            await cut(request)
        case FaultKind.GARBAGE_JSON:
            body = body[: len(body) // 2]
        case FaultKind.HANG_AFTER_HEAD | FaultKind.DIE_AFTER_HEAD | FaultKind.DIE_AFTER_EVENTS | FaultKind.DIE_IN_EVENT:
            assert fault is not None
            return await _half(request, body, fault)
    return web.Response(body=body, content_type="application/json")


async def _half(request: web.Request, body: bytes, fault: Fault) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    response.content_length = len(body)
    await response.prepare(request)
    if fault.kind is FaultKind.HANG_AFTER_HEAD:
        await asyncio.sleep(fault.seconds)
        await response.write(body)
    else:
        await response.write(body[: len(body) // 2])
        await cut(request)
    return response


async def deliver_stream(
    request: web.Request, choices: list[Choice], writer: Writer, fault: Fault | None, keep_alive: float
) -> web.StreamResponse:
    """Send the head, then one HTTP chunk for each event. The head is sent before any KV has arrived.

    A stream that is idle for `keep_alive` seconds sends a comment; 0: never.
    """
    response = web.StreamResponse(headers=_STREAM_HEADERS)
    response.enable_chunked_encoding()
    await response.prepare(request)
    if fault is not None and fault.kind is FaultKind.DIE_AFTER_HEAD:
        await cut(request)
    sent = 0
    async for content in _events(choices, writer, keep_alive):
        if content is None:
            await cut(request)
            break
        if content is _KEEP_ALIVE:
            await response.write(content)
            continue
        if fault is not None and sent == fault.events:
            content = await _spoil(request, fault, content, fault.error or writer.failed(_LOAD_ERROR))
        await response.write(content)
        sent += 1
    await response.write_eof()
    return response


async def deliver_refusal(request: web.Request, stream: bool, writer: Writer, error: APIError) -> web.StreamResponse:
    """Send the error of a request that the engine core has refused. A stream has begun by then."""
    if not stream:
        raise error
    response = web.StreamResponse(headers=_STREAM_HEADERS)
    response.enable_chunked_encoding()
    await response.prepare(request)
    for content in writer.announcements():
        await response.write(content)
    failed = writer.failed(error)
    if failed is None:
        await cut(request)
    else:
        await response.write(failed)
        await response.write_eof()
    return response


async def _spoil(request: web.Request, fault: Fault, content: bytes, failed: bytes | None) -> bytes:
    """The event as a fault changes it. `failed` is what ends a stream in which the engine fails."""
    match fault.kind:
        case FaultKind.HANG_AFTER_HEAD:
            await asyncio.sleep(fault.seconds)
        case FaultKind.DIE_AFTER_EVENTS | FaultKind.LOSE_ANSWER:
            await cut(request)
        case FaultKind.DIE_IN_EVENT:
            await cut(request, b"%x\r\n" % len(content) + content[: len(content) // 2])
        case FaultKind.GARBAGE_JSON:
            return _BAD_EVENT
        case FaultKind.ERROR_EVENT:
            await (cut(request) if failed is None else _last(request, failed))
    return content


async def _last(request: web.Request, content: bytes) -> None:
    await cut(request, b"%x\r\n" % len(content) + content + b"\r\n0\r\n\r\n")


async def _is_idle(changed: asyncio.Event, seconds: float) -> bool:
    """Whether nothing changes for so many seconds; 0: wait for ever."""
    try:
        async with asyncio.timeout(seconds or None):
            await changed.wait()
    except TimeoutError:
        return True
    return False


async def _events(choices: list[Choice], writer: Writer, keep_alive: float) -> AsyncIterator[bytes | None]:
    """The events of a stream; None: the connection is closed."""
    changed = choices[0].seq.changed
    begun: set[int] = set()
    for content in writer.announcements():
        yield content
    while not all(choice.ended for choice in choices):
        changed.clear()
        for choice in choices:
            if choice.seq.finish is Finish.ERROR:
                for event in writer.not_loaded(choices, _LOAD_ERROR):
                    yield event
                return
            if choice.index not in begun and (choice.seq.produced or choice.seq.finish):
                begun.add(choice.index)
                for content in writer.first(choice):
                    yield content
            choice.hide()
            while choice.sent < choice.seq.produced:
                for content in writer.token(choice):
                    yield content
            if choice.seq.finish is not None and not choice.ended:
                for content in writer.ending(choice):
                    yield content
        if not changed.is_set() and not all(choice.ended for choice in choices):
            while await _is_idle(changed, keep_alive):
                yield _KEEP_ALIVE
    for content in writer.closing(choices):
        yield content
