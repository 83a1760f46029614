"""The behaviour of clients: each manner sends one request and returns what its client saw."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from benchmarks.soak.clients import Answer, ClientRequest, Saw, connect, drop, judge, random_request, read_answer
from pdx_proxy.config.settings import Address

PATIENCE: Final = 25.0
"""Seconds that a client waits for the end of its answer: longer than any deadline of the gateway allows."""
_SMALL: Final = 2048


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one client saw, and whether its request is among the gateway's outcomes; None if that is random."""

    saw: Saw
    counted: bool | None = True
    detail: str = ""
    """The text of a wrong answer."""


async def stay(where: Address, request: ClientRequest, rng: random.Random) -> Verdict:
    """Reads all at once."""
    return await _listen(where, request)


async def dawdle(where: Address, request: ClientRequest, rng: random.Random) -> Verdict:
    """Reads a long answer slowly, through a small buffer."""
    long = replace(request, tokens=rng.randrange(100, 300), stream=True)
    return await _listen(where, long, pause=rng.uniform(0.001, 0.01), buffer=_SMALL)


async def leave(where: Address, request: ClientRequest, rng: random.Random) -> Verdict:
    """Hangs up: before the request, amid its head or body, at once, after a while, or amid the answer."""
    reader, writer = await connect(where)
    data = request.wire()
    phase = rng.randrange(6)
    try:
        if phase == 1:
            writer.write(data[: rng.randrange(1, 60)])
        elif phase == 2:
            writer.write(data[: rng.randrange(len(data) - 20, len(data))])
            await asyncio.sleep(rng.uniform(0.0, 0.02))
        elif phase >= 3:
            writer.write(data)
        if phase >= 4:
            await asyncio.sleep(rng.expovariate(1 / 0.08))
        if phase == 5:
            async with asyncio.timeout(PATIENCE):
                await reader.read(rng.randrange(1, 4096))
    except (ConnectionError, TimeoutError):
        pass
    finally:
        drop(writer, reset=rng.random() < 0.5)
    return Verdict(Saw.LEFT, None if phase else False)


async def refuse_itself(where: Address, request: ClientRequest, rng: random.Random) -> Verdict:
    """Sends a request that vLLM refuses."""
    wrong = rng.choice(({"max_tokens": 0}, {"model": "another"}, {"max_tokens": 1 << 20}, {"min_tokens": 4000}))
    verdict = await _listen(where, replace(request, more=wrong, tokens=1))
    # A fault of an engine may come before its refusal.
    good = verdict.saw not in (Saw.TEXT, Saw.WRONG) or verdict.detail == ""
    return verdict if good else replace(verdict, saw=Saw.WRONG)


async def write_rubbish(where: Address, request: ClientRequest, rng: random.Random) -> Verdict:
    """Writes data that no gateway may relay. The answer is a 4xx, or a closed connection if the data is not HTTP."""
    name = rng.choice(list(_RUBBISH))
    data, counted = _RUBBISH[name]
    reader, writer = await connect(where)
    try:
        writer.write(data.replace(b"NUMBER", f"request {request.number} ".encode()))
        async with asyncio.timeout(PATIENCE):
            answer = await read_answer(reader)
    except TimeoutError:
        return Verdict(Saw.STUCK, counted, name)
    except ConnectionError:
        answer = Answer()
    finally:
        drop(writer)
    if 400 <= answer.status < 500 or (not answer.status and not counted):
        return Verdict(Saw.REFUSED, counted)
    return Verdict(Saw.WRONG, counted, f"{name}: {answer}")


async def _listen(where: Address, request: ClientRequest, pause: float = 0.0, buffer: int = 0) -> Verdict:
    reader, writer = await connect(where, buffer)
    answer = Answer()
    try:
        writer.write(request.wire("Connection: close\r\n"))
        async with asyncio.timeout(PATIENCE):
            answer = await read_answer(reader, pause, _SMALL)
    except TimeoutError:
        return Verdict(Saw.STUCK, detail=str(request))
    except ConnectionError:
        pass
    finally:
        drop(writer)
    saw = judge(request, answer)
    return Verdict(saw, detail=f"{request}; got {answer}" if saw is Saw.WRONG else "")


def _post(body: bytes, head: str = "", path: str = "/v1/completions", kind: str = "application/json") -> bytes:
    length = "" if "Length" in head or "chunked" in head else f"Content-Length: {len(body)}\r\n"
    return f"POST {path} HTTP/1.1\r\nHost: g\r\nContent-Type: {kind}\r\n{head}{length}\r\n".encode() + body


_GOOD: Final = json.dumps({"model": "sim", "prompt": "NUMBER", "max_tokens": 2}).encode()
_RUBBISH: Final[Mapping[str, tuple[bytes, bool | None]]] = {
    "half an object": (_post(b'{"prompt": "a'), True),
    "a list": (_post(b"[1, 2]"), True),
    "no JSON": (_post(b"prompt=a"), True),
    "another type": (_post(b'{"prompt": "a"}', kind="text/plain"), True),
    "a path of nobody": (_post(b"{}", path="/v1/nothing"), False),
    "an administrative path": (_post(b"{}", path="/reset_prefix_cache"), False),
    "another method": (b"GET /v1/completions HTTP/1.1\r\nHost: g\r\n\r\n", False),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", False),
    "two lengths": (_post(_GOOD, "Content-Length: 5\r\nContent-Length: 6\r\n"), False),
    "length and chunks": (_post(b"0\r\n\r\n", "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"), False),
    "no chunk": (_post(b"zz\r\n{}\r\n0\r\n\r\n", "Transfer-Encoding: chunked\r\n"), None),
    "a blank in a name": (_post(_GOOD, "X Y: 1\r\n"), False),
}
"""Name -> the data, and whether the gateway counts it as a request."""

Manner = Callable[[Address, ClientRequest, random.Random], Awaitable[Verdict]]
MANNERS: Final[Mapping[Manner, int]] = {stay: 50, leave: 30, dawdle: 3, refuse_itself: 5, write_rubbish: 8}
"""Manner -> how often, relative to the others."""


def some_client(where: Address, number: int, rng: random.Random) -> tuple[Manner, Awaitable[Verdict]]:
    """A client of any manner, not yet begun."""
    manner = rng.choices(list(MANNERS), list(MANNERS.values()))[0]
    own = random.Random(rng.random())
    return manner, manner(where, random_request(number, own), own)
