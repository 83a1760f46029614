"""Broken HTTP of a hostile engine, in the answer to any request. One function is one behaviour."""

import asyncio
import gzip
from collections.abc import Callable
from typing import Final

from tests.component.hostile.engines import Ask, Behaviour

FRAMING: Final[list[Behaviour]] = []
FATAL: Final[set[str]] = set()
"""Names of the behaviours after which no engine may stay in service, when all of its answers are such."""
_OK: Final = b"HTTP/1.1 200 OK\r\n"
_CHUNKED: Final = _OK + b"Transfer-Encoding: chunked\r\n\r\n"
_BODY: Final = b'{"object":"list","data":[],"version":"9","choices":[]}'


def _behaves(*, fatal: bool) -> Callable[[Behaviour], Behaviour]:
    def of(behaviour: Behaviour) -> Behaviour:
        FRAMING.append(behaviour)
        if fatal:
            FATAL.add(behaviour.__name__)
        return behaviour

    return of


def _sends(data: bytes, *, fatal: bool, stays: bool = False) -> Callable[[Callable[[], None]], Behaviour]:
    """A behaviour that sends these bytes, and closes the connection unless it stays."""

    def of(named: Callable[[], None]) -> Behaviour:
        async def behave(ask: Ask) -> None:
            ask.stays = stays
            await ask.send(data)

        behave.__name__ = named.__name__
        return _behaves(fatal=fatal)(behave)

    return of


def _with_length(more: bytes) -> bytes:
    return _OK + more + b"Content-Length: %d\r\n\r\n" % len(_BODY) + _BODY


@_behaves(fatal=True)
async def head_endless(ask: Ask) -> None:
    await ask.send(_OK + b"X: ")
    await ask.flood(b"y")


@_behaves(fatal=True)
async def head_many_headers(ask: Ask) -> None:
    await ask.send(_OK)
    await ask.flood(b"X-A: b\r\n")


@_behaves(fatal=True)
async def head_drip(ask: Ask) -> None:
    await ask.drip(_OK + b"X-A: " + b"y" * 1000, 0.05)


@_behaves(fatal=True)
async def head_informational_flood(ask: Ask) -> None:
    await ask.flood(b"HTTP/1.1 100 Continue\r\n\r\n", 32 << 20)


@_behaves(fatal=True)
async def head_processing_drip(ask: Ask) -> None:
    """Interim answers keep coming, and never the answer."""
    for _ in range(200):
        await ask.send(b"HTTP/1.1 102 Processing\r\n\r\n")
        await asyncio.sleep(0.1)


@_behaves(fatal=True)
async def silence(ask: Ask) -> None:
    await asyncio.sleep(20.0)


@_behaves(fatal=True)
async def close_at_once(ask: Ask) -> None:
    return


@_behaves(fatal=True)
async def reset_at_once(ask: Ask) -> None:
    ask.reset()


@_behaves(fatal=True)
async def reset_in_head(ask: Ask) -> None:
    await ask.send(_OK + b"Content-")
    await asyncio.sleep(0.01)
    ask.reset()


@_behaves(fatal=True)
async def half_close(ask: Ask) -> None:
    ask.writer.write_eof()
    await asyncio.sleep(20.0)


@_behaves(fatal=True)
async def half_close_in_body(ask: Ask) -> None:
    await ask.send(_OK + b"Content-Length: 1000\r\n\r\n{")
    ask.writer.write_eof()
    await asyncio.sleep(20.0)


@_behaves(fatal=True)
async def garbage(ask: Ask) -> None:
    await ask.send(ask.rng.randbytes(ask.rng.choice((1, 100, 100_000))))


@_behaves(fatal=True)
async def body_drip(ask: Ask) -> None:
    await ask.send(_OK + b"Content-Length: 100000\r\n\r\n")
    await ask.drip(b'{"choices":[' + b" " * 900, 0.05)


@_behaves(fatal=True)
async def body_cut(ask: Ask) -> None:
    await ask.send(_OK + b"Content-Length: 1000\r\n\r\n" + _BODY)


@_behaves(fatal=True)
async def chunk_extension_endless(ask: Ask) -> None:
    await ask.send(_CHUNKED + b"5;")
    await ask.flood(b"a")


@_behaves(fatal=True)
async def chunk_extensions_long(ask: Ask) -> None:
    """A byte of data in each chunk, and kilobytes around it."""
    await ask.send(_CHUNKED)
    await ask.flood(b"1;" + b"e" * 8000 + b"\r\n \r\n")


@_behaves(fatal=True)
async def chunks_of_one_byte(ask: Ask) -> None:
    await ask.send(_CHUNKED)
    await ask.flood(b"1\r\n \r\n", 24 << 20)


@_behaves(fatal=True)
async def chunk_size_padded(ask: Ask) -> None:
    """A size of millions of zeros."""
    await ask.send(_CHUNKED)
    await ask.flood(b"0", 64 << 20)


@_behaves(fatal=True)
async def chunk_larger_than_data(ask: Ask) -> None:
    await ask.send(_CHUNKED + b"ffff\r\n" + _BODY)
    await asyncio.sleep(0.05)


@_behaves(fatal=True)
async def trailers_endless(ask: Ask) -> None:
    await ask.send(_CHUNKED + b"%x\r\n%b\r\n0\r\n" % (len(_BODY), _BODY))
    await ask.flood(b"x-a: " + b"b" * 500 + b"\r\n")


@_behaves(fatal=True)
async def trailer_of_one_line(ask: Ask) -> None:
    await ask.send(_CHUNKED + b"0\r\nx: ")
    await ask.flood(b"y")


@_behaves(fatal=True)
async def until_close_endless(ask: Ask) -> None:
    """An HTTP/1.0 answer without a length."""
    await ask.send(b"HTTP/1.0 200 OK\r\n\r\n")
    await ask.flood(b" ")


@_behaves(fatal=False)
async def compressed(ask: Ask) -> None:
    bomb = await asyncio.to_thread(gzip.compress, b" " * (50 << 20))
    await ask.whole(bomb, more="Content-Encoding: gzip\r\n")


@_behaves(fatal=False)
async def answer_twice(ask: Ask) -> None:
    ask.stays = True
    await ask.send(_with_length(b"") * 2)


@_behaves(fatal=False)
async def unsolicited_answer_later(ask: Ask) -> None:
    """A second answer comes when the connection is idle, or has the next request."""
    ask.stays = True
    second = b'{"choices":[{"index":0,"text":"HOSTILE-SECOND","finish_reason":"length"}]}'
    await ask.send(_with_length(b""))
    await asyncio.sleep(ask.rng.uniform(0.0, 0.3))
    await ask.whole(second)


@_behaves(fatal=False)
async def bytes_after_the_end(ask: Ask) -> None:
    ask.stays = True
    await ask.send(_with_length(b"") + b"\r\n" * ask.rng.randrange(3) + b"HOSTILE-SECOND" * 1000)


@_sends(_OK + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nHOSTILE-SECOND", fatal=True)
def length_and_chunks() -> None: ...


@_sends(_OK + b"Transfer-Encoding: chunked\r\nContent-Length: 900\r\n\r\n0\r\n\r\n", fatal=True)
def chunks_and_length() -> None: ...


@_sends(_OK + b"X: a\r\n b\r\n\tc\r\nContent-Length:\r\n 5\r\n\r\nabcde", fatal=True)
def head_folded() -> None: ...


@_sends(_with_length(b"").replace(b"\r\n", b"\n"), fatal=False)
def head_bare_lf() -> None: ...


@_sends(_with_length(b"").replace(b"\r\n", b"\r"), fatal=True)
def head_bare_cr() -> None: ...


@_sends(
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n" + _with_length(b""), fatal=True
)
def head_switching() -> None: ...


@_sends(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", fatal=True)
def head_early_hints_only() -> None: ...


@_sends(_OK + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef", fatal=True)
def two_lengths() -> None: ...


@_sends(_OK + b"Content-Length: -5\r\n\r\nabcdef", fatal=True)
def negative_length() -> None: ...


@_sends(_OK + b"Content-Length: 999999999999999999999999999999\r\n\r\n{", fatal=True)
def length_without_bounds() -> None: ...


@_sends(_OK + b"Content-Length: 18446744073709551615\r\n\r\n{", fatal=True)
def length_of_64_bits() -> None: ...


@_sends(_OK + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n", fatal=True)
def coding_twice() -> None: ...


@_sends(_OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", fatal=False)
def coding_of_gzip() -> None: ...


@_sends(_OK + b"Transfer-Encoding:\r\nContent-Length: 2\r\n\r\n{}", fatal=False)
def coding_empty() -> None: ...


@_sends(_with_length(b"X-Nul: a\x00b\r\nX\x01Y: c\r\n"), fatal=True)
def head_control_characters() -> None: ...


@_sends(b"HTTP/9.9 200 OK\r\nContent-Length: 0\r\n\r\n", fatal=True)
def version_of_http() -> None: ...


@_sends(b"HTTP/1.1 99999 OK\r\nContent-Length: 0\r\n\r\n", fatal=True)
def status_of_five_digits() -> None: ...


@_sends(b"HTTP/1.1 000\r\nContent-Length: 0\r\n\r\n", fatal=True)
def status_zero() -> None: ...


@_sends(b"HTTP/1.1 600 Odd\r\nContent-Length: 0\r\n\r\n", fatal=False, stays=True)
def status_600() -> None: ...


@_sends(b"HTTP/1.1 204 No Content\r\nContent-Length: 50\r\n\r\n" + _BODY[:50], fatal=False, stays=True)
def no_content_with_body() -> None: ...


@_sends(b"HTTP/1.1 304 Not Modified\r\nContent-Length: 50\r\n\r\n", fatal=False, stays=True)
def not_modified() -> None: ...


@_sends(
    b"HTTP/1.1 307 Temporary Redirect\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
    fatal=False,
    stays=True,
)
def redirect() -> None: ...


@_sends(_CHUNKED + b"ffffffffffffffffff\r\n{}\r\n", fatal=True)
def chunk_size_without_bounds() -> None: ...


@_sends(_CHUNKED + b"zz\r\n{}\r\n0\r\n\r\n", fatal=True)
def chunk_size_no_number() -> None: ...


@_sends(_CHUNKED + b"-2\r\n{}\r\n0\r\n\r\n", fatal=True)
def chunk_size_negative() -> None: ...


@_sends(_CHUNKED + b"2\r\n{}XX0\r\n\r\n", fatal=True)
def chunk_without_end() -> None: ...


@_sends(b"\x16\x03\x03\x00\x7a\x02\x00\x00\x76\x03\x03" + b"\x00" * 100, fatal=True)
def tls() -> None: ...


@_sends(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00", fatal=True)
def http_2() -> None: ...


@_sends(b"200 OK\r\nContent-Length: 0\r\n\r\n", fatal=True)
def no_status_line() -> None: ...


@_sends(b"", fatal=False, stays=False)
def accept_and_close() -> None: ...
