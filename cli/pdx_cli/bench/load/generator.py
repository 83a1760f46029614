"""The open-loop generator: sends each request when it is due, whether or not earlier requests have ended."""

import asyncio
import gc
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from pdx_cli.bench.load.connection import Connections, Reply, Server
from pdx_cli.bench.load.lateness import Lateness, Probe
from pdx_cli.bench.load.prompts import text
from pdx_cli.bench.load.records import Failure, Record, read_timing
from pdx_cli.bench.load.workload import Planned

_MOST_DETAIL: Final = 300
_POLL: Final = 0.05
"""Seconds between two checks whether all answers are complete."""
_JUDGE_EVERY: Final = 10
"""Of these checks one judges whether the step may end early."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What all requests have in common."""

    model: str
    chat: bool = False
    headers: Mapping[str, str] | None = None
    terms_per_token: float = 1.0

    @property
    def path(self) -> str:
        """Path of the endpoint."""
        return "/v1/chat/completions" if self.chat else "/v1/completions"

    def body(self, planned: Planned, salt: str) -> bytes:
        """Return the body of a request."""
        prompt = text(salt, planned.blocks, planned.prompt, self.terms_per_token)
        question: dict[str, Any] = {"messages": [{"role": "user", "content": prompt}]} if self.chat else {}
        body = {
            "model": self.model,
            **(question or {"prompt": prompt}),
            "max_tokens": planned.output,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return json.dumps(body, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class Step:
    """The load of one step."""

    requests: Iterator[Planned]
    seconds: float
    """During which requests are sent."""
    warm_up: float
    """Seconds at its beginning whose requests do not count."""
    drain: float
    """Seconds after its end until open requests count as failed."""
    salt: str
    """Makes its prompts differ from those of other steps, so that no cache has them."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step has shown."""

    records: tuple[Record, ...]
    lateness: Lateness
    seconds: float
    """During which requests were sent."""
    stopped: bool = False
    """Whether it ended early, because its result was certain."""


Judge = Callable[[list[Record], list[float]], bool]
"""Whether the step may end, from the records so far and the seconds that open requests wait for their first token."""


class Generator:
    """Sends the load of one step after the other to one server. Close it once."""

    def __init__(self, server: Server, shape: Shape, clock: Callable[[], float] = time.perf_counter) -> None:
        """`clock`: in seconds."""
        self._server = server
        self._shape = shape
        self.clock = clock
        self._connections = Connections(server, clock)
        self.open = 0
        """Requests without an end."""
        self.records: list[Record] = []
        """Of the step so far."""

    def close(self) -> None:
        """Close every connection."""
        self._connections.close()

    async def run(self, step: Step, certain: Judge = lambda _records, _waiting: False) -> Outcome:
        """Send the load of a step and await its answers; ends early when `certain` holds."""
        self.records, self.open = [], 0
        with _without_collections():
            sender, probe = _Sender(self, step), Probe(self.clock)
            try:
                stopped = await self._until_end(sender, step, certain)
                seconds = min(step.seconds, self.clock() - sender.began)
                probe.stop()
                sender.end()
            finally:
                probe.stop()
                sender.cancel()
        late = [] if stopped else sender.overdue()
        lateness = Lateness.of([*probe.samples, *(each.lateness for each in self.records), *late])
        return Outcome(tuple(sorted(self.records, key=lambda each: each.index)), lateness, seconds, stopped)

    async def _until_end(self, sender: "_Sender", step: Step, certain: Judge) -> bool:
        """Whether the step ended early."""
        polls = 0
        while not (sender.is_done and not self.open):
            now = self.clock() - sender.began
            if now > step.seconds + step.drain:
                return False
            polls += 1
            if polls % _JUDGE_EVERY == 0 and certain(self.records, sender.waiting()):
                return True
            await asyncio.sleep(_POLL)
        return False


@contextmanager
def _without_collections() -> Iterator[None]:
    """No garbage collection: one of many records is later than a token."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class _Sender:
    """Sends the requests of one step. Its time begins with it."""

    def __init__(self, generator: Generator, step: Step) -> None:
        self._generator = generator
        self._step = step
        self._loop = asyncio.get_running_loop()
        self._clock = generator.clock
        self._open: dict[int, tuple[Planned, float, Reply]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self.is_done = False
        self._next = self._prepared()
        self.began = self._clock()
        self._schedule()

    def _prepared(self) -> tuple[Planned, bytes] | None:
        """The next request, with its bytes: they are made before it is due."""
        planned = next(self._step.requests, None)
        if planned is None:
            return None
        shape, server = self._generator._shape, self._generator._server
        body = shape.body(planned, self._step.salt)
        return planned, server.head(shape.path, len(body), shape.headers or {}) + body

    def _schedule(self) -> None:
        if self._next is None:
            self.is_done = True
            return
        due = self.began + self._next[0].at
        self._timer = self._loop.call_later(max(0.0, due - self._clock()), self._send_due)

    def _send_due(self) -> None:
        while self._next is not None and self.began + self._next[0].at <= self._clock() + 0.0005:
            planned, data = self._next
            self._send(planned, data)
            self._next = self._prepared()
        self._schedule()

    def _send(self, planned: Planned, data: bytes) -> None:
        generator = self._generator
        sent = self._clock() - self.began
        generator.open += 1
        reply = Reply(lambda reply: self._ended(planned, sent, reply))
        self._open[planned.index] = (planned, sent, reply)
        connection = generator._connections.take()
        if connection is not None:
            first = reply.done
            reply.done = lambda reply: self._again(planned, data, reply, first)
            connection.send(data, reply)
        else:
            self._start(self._connect(data, reply))

    def _again(self, planned: Planned, data: bytes, reply: Reply, done: Callable[[Reply], None]) -> None:
        """A server may close an idle connection when the request is on its way: send it over a new one, once."""
        if reply.lost and not reply.received and planned.index in self._open:
            reply.lost, reply.done = "", done
            self._start(self._connect(data, reply))
        else:
            done(reply)

    def _start(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, data: bytes, reply: Reply) -> None:
        try:
            connection = await self._generator._connections.open()
        except OSError as error:
            reply.lost = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)
            reply.done(reply)
            return
        connection.send(data, reply)

    def _ended(self, planned: Planned, sent: float, reply: Reply) -> None:
        if self._open.pop(planned.index, None) is None:
            return
        self._generator.open -= 1
        self._generator.records.append(self._record(planned, sent, reply))

    def _record(self, planned: Planned, sent: float, reply: Reply, failure: Failure | None = None) -> Record:
        reader, began = reply.reader, self.began
        found, detail = _failure(reply)
        return Record(
            index=planned.index,
            due=planned.at,
            sent=sent,
            first=reader.first - began if reader.first >= 0 else -1.0,
            last=reader.last - began if reader.first >= 0 else -1.0,
            ended=self._clock() - began,
            prompt_tokens=reader.prompt_tokens or planned.prompt,
            output_tokens=reader.tokens,
            gaps=tuple(reader.gaps),
            failure=failure or found,
            detail=detail[:_MOST_DETAIL],
            warm_up=planned.at < self._step.warm_up,
            timing=read_timing(reply.headers.get("server-timing", "")),
            prefill=reply.headers.get("x-pdx-prefill", ""),
            decode=reply.headers.get("x-pdx-decode", ""),
        )

    def waiting(self) -> list[float]:
        """Seconds that each open request that counts has waited for its first token."""
        now = self._clock() - self.began
        return [
            now - sent
            for planned, sent, reply in self._open.values()
            if reply.reader.first < 0 and planned.at >= self._step.warm_up
        ]

    def overdue(self) -> list[float]:
        """By how many seconds the requests are late that should have been sent and never were."""
        if self._next is None:
            return []
        now = self._clock() - self.began
        return [now - each.at for each in (self._next[0], *self._step.requests) if each.at < now]

    def end(self) -> None:
        """Record the requests that have no end."""
        for planned, sent, reply in list(self._open.values()):
            self._generator.records.append(self._record(planned, sent, reply, Failure.UNFINISHED))
        self._generator.open = 0
        unfinished = bool(self._open)
        self._open.clear()
        if unfinished:
            self._generator._connections.close()

    def cancel(self) -> None:
        """Send nothing more."""
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        if self._open:
            self._open.clear()
            self._generator._connections.close()


def _message(body: bytes) -> str:
    """The message of an error of the OpenAI API, or else the text on one line."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return " ".join(body.decode(errors="replace").split())


def _failure(reply: Reply) -> tuple[Failure | None, str]:
    """How the request failed, and the detail; None if it did not."""
    if reply.status not in (0, 200):
        return Failure.STATUS, f"{reply.status}: {_message(reply.body)}"
    if reply.reader.error:
        return Failure.ERROR_EVENT, reply.reader.error
    if reply.lost:
        return Failure.CONNECTION, reply.lost
    if reply.reader.first < 0:
        return Failure.NO_TOKEN, "the answer has no token"
    return None, ""
