"""Honest clients: requests of every API and form, and whether their answers are right."""

import asyncio
import itertools
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from benchmarks.soak.clients import Answer, connect, drop
from pdx_proxy.config.settings import Address
from tests.component.harness import AGENT_SHAPES, SHAPES, Reply, Shape, request_of

_SHAPES: Final = (*SHAPES, *AGENT_SHAPES)
_BURST: Final = 4
_PATIENCE: Final = 30.0
"""Seconds that a client waits: longer than any deadline of the gateway allows."""
_MOST: Final = 2 << 20
"""Bytes of an answer that a client reads: far more than of any right one."""
_MARK: Final = re.compile(rb"HOSTILE-(\d+) ")
"""What hostile engines write: their text names the client's request that they answer."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request and what came of it. Times are those of `time.time`."""

    number: int
    shape: str
    began: float
    ended: float
    first: float
    """Seconds to the first byte of a body in chunks; 0 without one."""
    saw: str
    """`right`, or what was wrong."""
    detail: str = ""
    foreign: bool = False
    """Whether it has the text of another request."""


@dataclass
class Clients:
    """Clients that send requests of every shape, and keep what came of each."""

    where: Address
    rng: random.Random
    key: str = ""
    numbers: Iterator[int] = field(default_factory=itertools.count)
    outcomes: list[Outcome] = field(default_factory=list)
    longest: int = 3000

    async def send(self) -> Outcome:
        """Send one request."""
        number, shape = next(self.numbers), self.rng.choice(_SHAPES)
        prompt = f"request {number} " + "x" * self.rng.randrange(self.longest)
        tokens = self.rng.choice((1, 2, 5, 20))
        head = f"Connection: close\r\n{f'Authorization: Bearer {self.key}{chr(13)}{chr(10)}' if self.key else ''}"
        began, clock = time.time(), time.monotonic()
        answer = await _exchange(self.where, request_of(shape.body(prompt, tokens), shape.path, head=head))
        first = answer.first - clock if answer and answer.first else 0.0
        saw = "stuck" if answer is None else _judge(shape, shape.expected(prompt, tokens), answer)
        marks = set(_MARK.findall(answer.body)) if answer else set()
        detail = "" if saw == "right" else f"{shape.label}, {tokens} tokens: {str(answer)[:600]}"
        foreign = bool(marks - {b"%d" % number})
        outcome = Outcome(number, shape.label, began, time.time(), first, saw, detail, foreign)
        self.outcomes.append(outcome)
        return outcome

    async def keep_on(self, clients: int, until: Callable[[], bool], pause: float = 0.0) -> None:
        """So many clients at a time send one request after the other."""

        async def client() -> None:
            while not until():
                await self.send()
                await asyncio.sleep(self.rng.uniform(0.0, 2 * pause))

        await asyncio.gather(*(client() for _ in range(clients)))

    async def burst(self, number: int) -> list[Outcome]:
        """So many requests, a few at a time."""
        gate = asyncio.Semaphore(_BURST)

        async def client() -> Outcome:
            async with gate:
                return await self.send()

        return await asyncio.gather(*(client() for _ in range(number)))

    @property
    def saw(self) -> Counter[str]:
        """How often each outcome was seen."""
        return Counter(outcome.saw for outcome in self.outcomes)


async def _exchange(where: Address, data: bytes) -> Answer | None:
    """Send a request, and read to the end of the connection, but no more than `_MOST`; None if that takes too long."""
    received, first = bytearray(), 0.0
    try:
        async with asyncio.timeout(_PATIENCE):
            reader, writer = await connect(where)
            try:
                writer.write(data)
                while len(received) < _MOST and (piece := await reader.read(1 << 16)):
                    received += piece
                    if not first and not received.endswith(b"\r\n\r\n"):
                        first = time.monotonic()
            finally:
                drop(writer)
    except TimeoutError:
        return None
    except OSError:
        pass
    try:
        return _parsed(bytes(received), first)
    except (ValueError, LookupError):
        return Answer(body=bytes(received))


def _parsed(data: bytes, first: float) -> Answer:
    """The answer that these bytes are; raises ValueError or LookupError for what is none."""
    head, _, body = data.partition(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").split("\r\n")
    fields = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    answer = Answer(int(status.split()[1]), fields, body, whole=True, first=first)
    if "content-length" in fields:
        answer.whole, answer.first = len(body) == int(fields["content-length"]), 0.0
    elif fields.get("transfer-encoding") == "chunked":
        answer.body, answer.whole = _dechunked(body)
    return answer


def _dechunked(data: bytes) -> tuple[bytes, bool]:
    """The data of the chunks, and whether the last chunk is there."""
    parts: list[bytes] = []
    at = 0
    while (end := data.find(b"\r\n", at)) >= 0:
        size = int(data[at:end].partition(b";")[0], 16)
        if not size:
            return b"".join(parts), True
        parts.append(data[end + 2 : end + 2 + size])
        at = end + 4 + size
    return b"".join(parts), False


def _judge(shape: Shape, expected: str, answer: Answer) -> str:
    """`right`, or the status, and what is wrong with a 200."""
    if answer.status != 200:
        return f"status {answer.status}" if answer.status else "nothing"
    reply = Reply(200, answer.head, answer.body, not answer.whole)
    try:
        text, done = reply.text, not shape.stream or reply.done
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return "garbled"
    if reply.cut:
        return "cut"
    if not done:
        return "without end"
    return "right" if text == expected else "other text"
