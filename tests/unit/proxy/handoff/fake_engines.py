"""One prefill engine and one or two decode engines without sockets, which behave as a script says.

Every leg that the gateway creates is a `FakeLeg`. It notes what an engine would notice, with the time: what is sent to
it, and how its connection ends.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final

import msgspec

from pdx_api.connectors.families import Identity
from pdx_api.names import Role
from pdx_proxy.balancing.load import Slot
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.engines.upstreams import Engines
from pdx_proxy.handoff.failures import HTTP_BAD_REQUEST, REFUSED_MAX_TOKENS
from pdx_proxy.http.upstream.answer import Answer
from pdx_proxy.http.upstream.failures import (
    BadAnswer,
    ConnectFailure,
    DeadlineExceeded,
    EngineBusy,
    LostConnection,
    Reason,
    RequestExpired,
)
from tests.unit.proxy.handoff.situations import Answers, Metrics, Script

IDENTITY: Final = Identity("engine-1", "p", 5600)
_PARAMS: Final = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_engine_id": "engine-1",
    "remote_request_id": "r",
    "remote_host": "p",
    "remote_port": 5600,
    "remote_block_ids": [[1]],
}
_STATUS: Final = {
    Answers.OK: 200,
    Answers.NO_PARAMS: 200,
    Answers.OTHER_START: 200,
    Answers.REFUSED: 400,
    Answers.REFUSED_BY_SERVER: 400,
    Answers.FULL: 503,
    Answers.BUSY: 503,
    Answers.BROKEN: 500,
}
_IDENTIFIED: Final = {Answers.OK: _PARAMS, Answers.OTHER_START: {**_PARAMS, "remote_engine_id": "engine-2"}}


@dataclass
class FakeConnection:
    """What a leg's owner sees of its connection."""

    used: bool = True
    on_lost: set[Callable[[], None]] = field(default_factory=set)


class FakeLeg:
    """A leg to an engine that answers as the script says."""

    def __init__(self, world: "FakeEngines", slot: Slot, deadline: float = inf) -> None:
        self._world = world
        self._slot: Slot | None = slot
        self.endpoint = slot.endpoint
        self.deadline = deadline
        self.sent = self.connected = False
        self.prefill: Any = None
        self.connection = FakeConnection()
        self._answer = Answer()
        self._kind = ""
        self._script: tuple[float, Answers] = (inf, Answers.NEVER)
        self._began = 0.0
        self._changed = asyncio.Event()
        self._interruption: Exception | None = None
        self._abandoned = self._ended = False

    @property
    def answer(self) -> Answer:
        """The answer so far. It arrives although nobody waits for it."""
        what = self._script[1]
        if self.sent and not self._ended and what in _STATUS and self._world.clock() >= self._arrives():
            self._arrive(what)
        return self._answer

    def _arrives(self) -> float:
        return self._world.arrives(self._began, self._script[0], self._kind)

    async def connect(self) -> None:
        self._world.note(f"connect {self.endpoint.name}")
        await asyncio.sleep(0)
        if self._world.refuses_connection(self.endpoint):
            raise ConnectFailure(self.endpoint.name, "refused")
        self.connected = True

    def send(
        self, method: str, path: str, headers: Iterable[tuple[str, str]], body: Any, *, once: bool = False
    ) -> None:
        self.sent = True
        self._began = self._world.clock()
        identifier = dict(headers).get("X-Request-Id", "")
        self._kind, self._script = self._world.receive(self.endpoint, path, body, identifier)
        if self._kind == "d":
            self._world.decode_legs.append(self)

    async def head(self, seconds: float) -> Answer:
        await self._arrival(seconds, inf)
        return self.answer

    async def first_event(self, seconds: float) -> Answer:
        await self._arrival(seconds, self.deadline)
        status = self.answer.status
        if status >= 500:
            self._check_busy()
            raise BadAnswer(self.endpoint.name, f"status {status}", Reason.STATUS, status, self.answer.body)
        return self.answer

    async def whole(self, seconds: float, *, most: int = 0, counts: bool = True) -> Answer:
        await self._arrival(seconds, self.deadline)
        self._check_busy()
        return self.answer

    def _check_busy(self) -> None:
        if self._script[1] is Answers.BUSY:
            raise EngineBusy(self.endpoint.name, 2.0, 503, b"")

    async def _arrival(self, seconds: float, deadline: float) -> None:
        """Wait for what the script says; raise what ends the wait before."""
        assert self._slot is not None, "the leg has ended"
        what = self._script[1]
        limit = min(self._world.clock() + seconds, deadline)
        while not self._answer.status:
            if self._interruption is not None:
                raise self._interruption
            if self._abandoned and what is not Answers.OK:
                raise LostConnection(self.endpoint.name, "lost")
            at, now = self._arrives(), self._world.clock()
            if now >= at:
                self._arrive(what)
            elif now >= limit:
                if limit == deadline:
                    raise RequestExpired
                raise DeadlineExceeded(self.endpoint.name, "late")
            else:
                self._changed.clear()
                self._world.watch(self._changed)
                until = min(at, limit)
                try:
                    async with asyncio.timeout_at(None if until == inf else until):
                        await self._changed.wait()
                except TimeoutError:
                    continue

    def _arrive(self, what: Answers) -> None:
        self._ended = True
        if what is Answers.LOST:
            raise LostConnection(self.endpoint.name, "lost")
        if what is Answers.ABORTED:
            raise BadAnswer(self.endpoint.name, "aborted", Reason.ABORT, 503, b"")
        self._answer.status = _STATUS[what]
        self._answer.complete = True
        self._answer.content = self._world.body_of(self._kind, what)
        self._world.note(f"answered {self._kind} {self._answer.status}")
        self._world.after_answer(self)

    def half_close(self) -> None:
        if not self._abandoned and self.sent and not self.answer.complete:
            self._world.note(f"half-close {self._kind}")
            if not self._world.decode_has_ended:
                self._world.faults.append("P is stopped while D waits for its write")
        self._abandoned = True
        self._changed.set()

    def interrupt(self, failure: Exception) -> None:
        self._interruption = failure
        self._changed.set()

    def outlive_request(self) -> None:
        self.deadline, self._interruption = inf, None

    def give_back(self) -> None:
        """A complete answer's connection goes back to the pool."""

    def end(self) -> None:
        slot, self._slot = self._slot, None
        if slot is not None:
            if self.sent and not self._ended:
                self._world.note(f"close {self._kind}")
            if self.prefill is not None:
                self.prefill.dropped()
            slot.release()


class FakeEngines(Engines):
    """The engines of one situation, and the notes of what happened to them."""

    def prepare(self, script: Script, names: tuple[Endpoint, Endpoint]) -> None:
        """Begin a situation with this pair."""
        self.script = script
        self.pair = names
        self.notes: list[str] = []
        self.began = self.clock()
        self._prefill_legs = 0
        self._prefilled_at = inf
        self._ids: dict[str, str] = {}
        self._watchers: list[asyncio.Event] = []
        self.decode_legs: list[FakeLeg] = []
        self.faults: list[str] = []
        self.closes_only = False
        """Whether the prefill engine closes its connection and lives, where the script says that it dies."""
        self.dead = False

    @property
    def decode_has_ended(self) -> bool:
        """Whether no D has a leg that it has not answered. A D whose leg was closed may still wait for KV."""
        return all(leg.answer.status for leg in self.decode_legs)

    def note(self, text: str) -> None:
        """Note what an engine has noticed."""
        self.notes.append(f"{self.clock() - self.began:.2f} {text}")

    def leg(self, endpoint: Endpoint, deadline: float = inf) -> Any:
        return FakeLeg(self, Slot(self.load, endpoint), deadline)

    def leg_in(self, slot: Slot, deadline: float = inf) -> Any:
        return FakeLeg(self, slot, deadline)

    def refuses_connection(self, endpoint: Endpoint) -> bool:
        """Whether the engine is gone."""
        role = self.script.prefill if endpoint.role is Role.PREFILL else self.script.decode
        if endpoint.name not in (self.pair[0].name, self.pair[1].name):
            return False
        if role[1] is Answers.GONE:
            return True
        return endpoint.role is Role.PREFILL and self._prefill_legs > 0 and self.script.again is Answers.GONE

    def watch(self, changed: asyncio.Event) -> None:
        """Wake this leg when P has finished."""
        self._watchers.append(changed)

    def receive(self, endpoint: Endpoint, path: str, body: Any, identifier: str) -> tuple[str, tuple[float, Answers]]:
        """Classify what an engine has received; return its kind and how the engine answers it."""
        if path == "/metrics":
            return "metrics", (0.0, Answers.OK if self.script.metrics is not Metrics.SILENT else Answers.LOST)
        document = msgspec.json.decode(bytes(body))
        short, limit = document.get("prompt") == ".", document.get("max_tokens")
        identity = self._ids.setdefault(identifier, f"id{len(self._ids) + 1}")
        kind = f"{endpoint.name}{' short' if short else ''}{' refused' if limit == REFUSED_MAX_TOKENS else ''}"
        if limit == 1:
            kind += " one"
        transfer = document.get("kv_transfer_params", {}).get("transfer_id", "")
        self.note(f"send {kind} {identity}{'' if transfer in ('', identifier) else ' another transfer'}")
        if short or (limit == 1 and endpoint.role is Role.DECODE):
            return kind, (0.1, self.script.settling)
        if endpoint.role is Role.PREFILL:
            self._prefill_legs += 1
            first = self._prefill_legs == 1
            return kind, self.script.prefill if first else (self.script.prefill[0], self.script.again)
        return kind, self.script.decode

    def arrives(self, began: float, after: float, kind: str) -> float:
        """When an answer arrives. D's first event comes after P's end: it has loaded the KV by then."""
        if kind == "d" and self.script.decode[1] is Answers.OK:
            return max(began, self._prefilled_at) + after
        return began + after

    def after_answer(self, leg: FakeLeg) -> None:
        """P has answered: D gets its KV, and P may die."""
        if leg.endpoint.role is Role.PREFILL and leg.answer.status == 200 and self._prefilled_at == inf:
            self._prefilled_at = self.clock()
            for changed in self._watchers:
                changed.set()
            if self.script.dies_after is not None:
                asyncio.get_running_loop().call_later(self.script.dies_after, self._die, leg.connection)

    def _die(self, connection: FakeConnection) -> None:
        self.dead = not self.closes_only
        self.note("p dies" if self.dead else "p closes")
        for lost in list(connection.on_lost):
            lost()

    def body_of(self, kind: str, what: Answers) -> bytes:
        """Return the body of an answer."""
        if kind == "metrics":
            return self.script.metrics.page(self.clock() - self.began)
        if what is Answers.REFUSED_BY_SERVER:
            return b'{"error":{"message":"no","type":' + HTTP_BAD_REQUEST + b"}}"
        if what is Answers.REFUSED:
            return b'{"error":{"message":"no","type":"BadRequestError"}}'
        ended = "stop" if what is Answers.NO_PARAMS else "length"
        answer: dict[str, Any] = {"choices": [{"finish_reason": ended, "text": "a"}], "kv_transfer_params": None}
        answer |= {"object": "response", "usage": {"output_tokens": 1}}
        answer["incomplete_details"] = {"reason": "max_output_tokens"} if ended == "length" else None
        if what in _IDENTIFIED and kind.startswith("p"):
            answer["kv_transfer_params"] = _IDENTIFIED[what]
        return msgspec.json.encode(answer)
