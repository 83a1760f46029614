"""Clients of every manner over bare sockets: patient, gone in any phase, slow, and writers of rubbish."""

import asyncio
import json
import random
import socket
import struct
import time
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from pdx_proxy.config.settings import Address
from pdx_sim import chat_tokens, expected_text, tokenize

_RESET: Final = struct.pack("ii", 1, 0)
_DAWDLES: Final = 5.0
"""Seconds of an answer in which a slow client pauses; on a busy machine each pause is longer than it is meant."""
_LOST: Final = "The engine was lost while it answered."
_MORE: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"temperature": 0.0},
    {"kv_transfer_params": {"do_remote_prefill": True}, "request_id": "mine"},
    {"vllm_xargs": {"kv_transfer_params": {"do_remote_decode": True}}, "ec_transfer_params": {"a": 1}},
)
"""Members that change no answer; engines must not receive some of them."""


class Saw(StrEnum):
    """What a client received, as far as it read."""

    TEXT = "text"
    """200 with the whole right text."""
    CUT_SHORT = "cut_short"
    """200 with the beginning of the right text, then the finish reason abort: the answer of an engine that ends."""
    BROKEN = "broken"
    """200 with the beginning of the right text, then an error event or the end of the connection."""
    GARBLED = "garbled"
    """200 with invalid JSON."""
    REFUSED = "refused"
    """A 4xx but 429."""
    SHED = "shed"
    """429, or 503 of the gateway."""
    FAILED = "failed"
    """Another 5xx."""
    NOTHING = "nothing"
    """The connection ended without a byte."""
    LEFT = "left"
    """It did not stay to see."""
    STUCK = "stuck"
    """No end within its patience."""
    WRONG = "wrong"
    """Text that is not its own."""


@dataclass
class Answer:
    """A response."""

    status: int = 0
    head: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    whole: bool = False
    """Whether it is complete by its framing."""
    first: float = 0.0
    """When the first piece of a chunked body arrived, by `time.monotonic`; 0 if none did."""


@dataclass(frozen=True)
class ClientRequest:
    """A request for a completion."""

    number: int
    """Part of the prompt, so that the legs of this request can be found at the engines."""
    chat: bool
    stream: bool
    prompt: str
    tokens: int
    more: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        kind = ("chat" if self.chat else "text") + (" stream" if self.stream else "")
        return f"request {self.number}: {kind}, {len(self.prompt)} characters, {self.tokens} tokens, {self.more}"

    @property
    def expected(self) -> str:
        """The only right text."""
        messages = [{"role": "user", "content": self.prompt}]
        return expected_text(chat_tokens(messages) if self.chat else tokenize(self.prompt), self.tokens)

    def wire(self, head: str = "") -> bytes:
        """The request."""
        question = {"messages": [{"role": "user", "content": self.prompt}]} if self.chat else {"prompt": self.prompt}
        body = {"model": "sim", **question, "max_tokens": self.tokens, "stream": self.stream, **self.more}
        data = json.dumps(body).encode()
        path = "/v1/chat/completions" if self.chat else "/v1/completions"
        lines = f"POST {path} HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\n{head}"
        return f"{lines}Content-Length: {len(data)}\r\n\r\n".encode() + data


def random_request(number: int, rng: random.Random, longest: int = 3000) -> ClientRequest:
    """A request of any shape."""
    prompt = f"request {number} " + "x" * rng.randrange(longest)
    tokens = rng.choice((1, 2, 5, 20, rng.randrange(1, 60)))
    stream = rng.random() < 0.6
    more = rng.choice((*_MORE, {"stream_options": {"include_usage": True}} if stream else {}))
    return ClientRequest(number, rng.random() < 0.5, stream, prompt, tokens, dict(more))


async def connect(
    where: Address, buffer: int = 0, segment: int = 0
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection; with `buffer` one that takes in no more bytes than that unread.

    `segment`: most bytes of a TCP segment. Without it, the sender's kernel buffers 2.5 MiB on the loopback interface.
    """
    sock = socket.socket()
    sock.setblocking(False)
    if buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    if segment:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, segment)
    try:
        await asyncio.get_running_loop().sock_connect(sock, (where.host, where.port))
        return await asyncio.open_connection(sock=sock, limit=buffer or 1 << 20)
    except BaseException:  # also a client that is cancelled
        sock.close()
        raise


def drop(writer: asyncio.StreamWriter, *, reset: bool = False) -> None:
    """Close a connection, or have it reset."""
    if reset:
        with suppress(OSError):
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        writer.transport.abort()
    else:
        writer.close()


async def read_answer(reader: asyncio.StreamReader, pause: float = 0.0, bite: int = 1 << 16) -> Answer:
    """One answer, read in bites with pauses between them."""
    answer = Answer()
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").rstrip().split("\r\n")
        answer.status = int(first.split()[1])
        answer.head = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        if "content-length" in answer.head:
            await _read_length(reader, answer, int(answer.head["content-length"]), pause, bite)
        elif answer.head.get("transfer-encoding") == "chunked":
            await _read_chunks(reader, answer, pause)
        else:
            answer.body = await reader.read(-1)
        answer.whole = True
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    return answer


async def _read_length(reader: asyncio.StreamReader, answer: Answer, length: int, pause: float, bite: int) -> None:
    while len(answer.body) < length:
        piece = await reader.read(min(bite, length - len(answer.body)))
        if not piece:
            raise ConnectionResetError
        answer.body += piece
        await asyncio.sleep(pause)


async def _read_chunks(reader: asyncio.StreamReader, answer: Answer, pause: float) -> None:
    clock = asyncio.get_running_loop().time
    dawdles_until = clock() + _DAWDLES
    while size := int(await reader.readuntil(b"\r\n"), 16):
        answer.body += await reader.readexactly(size)
        answer.first = answer.first or time.monotonic()
        await reader.readexactly(2)
        if pause and clock() < dawdles_until:
            await asyncio.sleep(pause)
    await reader.readuntil(b"\r\n")


def judge(request: ClientRequest, answer: Answer) -> Saw:
    """Judge an answer; a text that is not the beginning of the expected one is WRONG."""
    if not answer.status:
        return Saw.NOTHING
    if answer.status != 200:
        return _refusal(answer)
    texts, garbled, error, reasons = _contents(request, answer)
    text, expected = "".join(texts), request.expected
    if not expected.startswith(text):
        return Saw.WRONG
    if garbled:
        return Saw.GARBLED
    if error or not answer.whole:
        return Saw.BROKEN
    if "abort" in reasons:
        return Saw.CUT_SHORT
    if request.stream and not answer.body.endswith(b"data: [DONE]\n\n"):
        return Saw.WRONG  # a silent cut that looks like an end
    return Saw.TEXT if text == expected else Saw.WRONG


def _refusal(answer: Answer) -> Saw:
    if answer.status == 429 or (answer.status == 503 and "retry-after" in answer.head):
        return Saw.SHED
    return Saw.FAILED if answer.status >= 500 else Saw.REFUSED


def _contents(request: ClientRequest, answer: Answer) -> tuple[list[str], bool, bool, set[str]]:
    """Texts, whether something is no JSON, whether an error is among it, and the finish reasons."""
    pieces = [answer.body]
    if request.stream:
        *pieces, _unfinished = answer.body.split(b"\n\n")
        pieces = [piece.removeprefix(b"data: ") for piece in pieces if piece != b"data: [DONE]"]
    texts: list[str] = []
    garbled = error = False
    reasons: set[str] = set()
    for piece in pieces:
        try:
            document = json.loads(piece)
        except ValueError:
            garbled = request.stream or answer.whole
            break
        error = error or "error" in document
        for choice in document.get("choices", ()):
            part = choice.get("delta") or choice.get("message") or choice
            texts.append(part.get("content") or part.get("text") or "")
            reasons.add(str(choice.get("finish_reason")))
    return texts, garbled, error, reasons
