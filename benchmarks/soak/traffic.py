"""Requests of one shape, sent at a rate or one after the other, and what came of each."""

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from benchmarks.soak.clients import Answer, ClientRequest, Saw, connect, drop, judge, read_answer
from pdx_proxy.config.settings import Address

_PATIENCE: Final = 120.0
"""Seconds after which a client gives up: more than the gateway's queue and an answer may take."""
_TICK: Final = 0.005
_GOLDEN: Final = 0.6180339887498949
"""Multiples of it, without their whole parts, are spread evenly between 0 and 1."""
_DETAIL: Final = 300


@dataclass(frozen=True, slots=True)
class Attempt:
    """One request and what came of it. Times are those of `time.monotonic`."""

    began: float
    ended: float
    first: float
    """When the first byte of the body arrived; 0 if none did."""
    saw: Saw
    tokens: int
    """Tokens of an answer that arrived whole."""
    retry_after: int
    """Seconds, of a request that was shed."""
    returned: bool
    """Whether its client had been shed or given up before."""
    detail: str = ""
    """The answer, if it is neither whole nor a refusal with `Retry-After`."""


@dataclass
class Traffic:
    """Clients that send requests of one shape to addresses in turn."""

    where: Sequence[Address]
    tokens: int
    prompt: str = ""
    numbers: Iterator[int] = field(default_factory=itertools.count)
    patience: float = _PATIENCE
    client: str = ""
    """The client that a proxy of the gateway reports; empty: the address is the client."""
    varies: float = 0.0
    """By which share answers are shorter or longer than `tokens`. Equal ones that begin together end together."""
    streams: int = 2
    """Each request with a number that this divides is a stream."""
    attempts: list[Attempt] = field(default_factory=list)
    _open: list[asyncio.Task[None]] = field(default_factory=list)

    async def send(self, *, returned: bool = False) -> Attempt:
        """Send one request, and keep what came of it."""
        number = next(self.numbers)
        text = f"request {number} {self.prompt}"
        tokens = round(self.tokens * (1 + self.varies * (2 * (number * _GOLDEN % 1.0) - 1)))
        request = ClientRequest(number, chat=False, stream=number % self.streams == 0, prompt=text, tokens=tokens)
        began = time.monotonic()
        answer = await self._exchange(self.where[number % len(self.where)], request)
        ended = time.monotonic()
        saw = Saw.STUCK if answer is None else judge(request, answer)
        fine = saw in (Saw.TEXT, Saw.SHED)
        attempt = Attempt(
            began,
            ended,
            answer.first if answer and request.stream else 0.0,
            saw,
            tokens if saw is Saw.TEXT else 0,
            int(answer.head.get("retry-after", 0)) if answer else 0,
            returned,
            "" if fine else f"{saw} after {ended - began:.1f} s: {request} {answer}"[:_DETAIL],
        )
        self.attempts.append(attempt)
        return attempt

    async def closed_loop(self, clients: int, seconds: float, least: int = 1) -> None:
        """Clients that each send one request after the other for `seconds`, and at least `least` requests."""
        end = time.monotonic() + seconds

        async def client() -> None:
            sent = 0
            while time.monotonic() < end or sent < least:
                await self.send()
                sent += 1

        await asyncio.gather(*(client() for _ in range(clients)))

    async def open_loop(
        self, rate: float, until: Callable[[], bool], back_at: "asyncio.PriorityQueue[float] | None" = None
    ) -> None:
        """Send requests at a rate until `until`, whatever becomes of them. `finish` awaits their answers.

        `back_at`: when clients that were shed or gave up come back. One that is due takes the place of a new one.
        """
        began, sent = time.monotonic(), 0
        while not until():
            due = int((time.monotonic() - began) * rate)
            for _ in range(due - sent):
                self._open.append(asyncio.create_task(self._send_again(back_at)))
            sent = due
            await asyncio.sleep(_TICK)

    async def finish(self) -> None:
        """Await every answer."""
        await asyncio.gather(*self._open)

    async def _send_again(self, back_at: "asyncio.PriorityQueue[float] | None") -> None:
        attempt = await self.send(returned=_is_due(back_at))
        if back_at is not None and attempt.saw in (Saw.SHED, Saw.STUCK):
            back_at.put_nowait(attempt.ended + attempt.retry_after)

    async def _exchange(self, where: Address, request: ClientRequest) -> Answer | None:
        answer: Answer | None = Answer()
        try:
            async with asyncio.timeout(self.patience):
                reader, writer = await connect(where)
                try:
                    forwarded = f"X-Forwarded-For: {self.client}\r\n" if self.client else ""
                    writer.write(request.wire(f"Connection: close\r\n{forwarded}"))
                    answer = await read_answer(reader)
                finally:
                    drop(writer)
        except TimeoutError:
            return None
        except ConnectionError:
            pass
        return answer


def within(seconds: float) -> Callable[[], bool]:
    """Whether a time from now is over."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() >= end


def _is_due(back_at: "asyncio.PriorityQueue[float] | None") -> bool:
    """Whether a client comes back now; it is then taken out."""
    if back_at is None or back_at.empty():
        return False
    first = back_at.get_nowait()
    if first > time.monotonic():
        back_at.put_nowait(first)
        return False
    return True


def goodput(attempts: Iterable[Attempt], begin: float, end: float) -> float:
    """Tokens per second of the answers that arrived whole, within a window."""
    return sum(each.tokens for each in attempts if begin <= each.ended < end) / (end - begin)


def last_begin(attempts: Iterable[Attempt]) -> float:
    """When the last request was sent."""
    return max(each.began for each in attempts)


def first_event(attempts: Iterable[Attempt]) -> float:
    """The median time of streams to their first event, in seconds."""
    return median(each.first - each.began for each in attempts if each.first and each.saw is Saw.TEXT)
