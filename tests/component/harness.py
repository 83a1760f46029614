"""The gateway and simulated engines, all in this process, and the invariants at the end of every test."""

import asyncio
import io
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Self

import aiohttp

from pdx_api.names import Order, Policy, Role
from pdx_api.settings.gateway import Choosing, Verification
from pdx_proxy.config.settings import Address, Deadlines, EndpointSpec, Settings
from pdx_proxy.discovery.pod_watcher import Discovery
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.http.upstream.connection_pool import ConnectionPool
from pdx_proxy.process.control import Control
from pdx_proxy.process.worker import Worker
from pdx_proxy.process.workers import LocalWorkers
from pdx_sim import Fault, FaultKind, Leg, SimEngine, SimSettings, chat_tokens, expected_text, tokenize
from pdx_sim.settings import TransferMode

ORDERS = list(Order)
PATHS = {False: "/v1/completions", True: "/v1/chat/completions"}
AGENTS = ("messages", "responses")
"""The APIs of coding agents, as the last part of their paths."""
LAST_EVENTS = ("message_stop", "response.completed")
"""The events that end their streams."""
FAST = SimSettings(prefill_token_seconds=2e-6, decode_token_seconds=2e-4, lease_seconds=30.0)
PROMPT = "What a long prompt this is. " * 60
SHORT = Deadlines(
    connect_seconds=2.0,
    prefill_seconds=2.0,
    handoff_seconds=2.0,
    first_event_seconds=3.0,
    settle=2.0,
    nearly_done=0.1,
    warm_up=3.0,
)
"""Of engines that hang. A busy machine stalls for most of a second, and engines that serve must not exceed them."""


async def eventually(condition: Callable[[], object], within: float = 20.0, what: str = "") -> None:
    """Await a condition; AssertionError after `within` seconds, which a busy machine may need."""
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, f"never: {what or condition}"
        await asyncio.sleep(0.003)


@dataclass
class Reply:
    """An answer as a client receives it."""

    status: int
    headers: dict[str, str]
    raw: bytes
    cut: bool = False
    """Whether it was cut before its end."""

    @property
    def json(self) -> dict[str, Any]:
        return dict(json.loads(self.raw))

    @property
    def events(self) -> list[str]:
        """The data of the events."""
        parts = [part for part in self.raw.decode().split("\n\n") if part]
        return [part.partition("\ndata: ")[2] or part.removeprefix("data: ") for part in parts]

    @property
    def done(self) -> bool:
        """Whether the stream has its proper end."""
        last = "".join(self.events[-1:])
        ends = any(last.startswith(f'{{"type":"{kind}"') for kind in LAST_EVENTS)
        return last == "[DONE]" or (ends and self.raw.endswith(b"}\n\n"))

    @property
    def chunks(self) -> list[dict[str, Any]]:
        return [json.loads(each) for each in self.events if each != "[DONE]"]

    @property
    def text(self) -> str:
        streamed = self.headers.get("content-type", "").startswith("text/event-stream")
        return "".join(map(_text_of_document, self.chunks if streamed else [self.json]))

    @property
    def error(self) -> dict[str, Any]:
        return dict(self.json["error"])


def _text_of_document(document: dict[str, Any]) -> str:
    """The text of a complete answer or of one event, of any API."""
    match document.get("type", document.get("object")):
        case "message":
            return "".join(block["text"] for block in document["content"])
        case "response":
            return "".join(part["text"] for item in document["output"] for part in item["content"])
        case "content_block_delta":
            return str(document["delta"]["text"])
        case "response.output_text.delta":
            return str(document["delta"])
    return "".join(_text_of(choice) for choice in document.get("choices", []))


def _text_of(choice: dict[str, Any]) -> str:
    part = choice.get("delta") or choice.get("message")
    return str(part.get("content") or "") if part is not None else str(choice.get("text", ""))


@dataclass(frozen=True)
class Shape:
    """The form of a request: its path, and whether its answer is streamed."""

    chat: bool = False
    stream: bool = False
    agent: str = ""
    """One of `AGENTS`; empty: a completion or a chat."""

    @property
    def path(self) -> str:
        return f"/v1/{self.agent}" if self.agent else PATHS[self.chat]

    @property
    def label(self) -> str:
        return f"{self.agent or ('chat' if self.chat else 'text')}{'-stream' if self.stream else ''}"

    def body(self, prompt: str = PROMPT, tokens: int = 8, **more: Any) -> dict[str, Any]:
        if self.agent == "responses":
            return {"model": "sim", "input": prompt, "max_output_tokens": tokens, "stream": self.stream, **more}
        chat = self.chat or self.agent
        question = {"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}
        return {"model": "sim", **question, "max_tokens": tokens, "stream": self.stream, **more}

    def expected(self, prompt: str = PROMPT, tokens: int = 8) -> str:
        chat = self.chat or self.agent
        return expected_text(chat_tokens([{"role": "user", "content": prompt}]) if chat else tokenize(prompt), tokens)


SHAPES = [Shape(chat, stream) for chat in (False, True) for stream in (False, True)]
AGENT_SHAPES = [Shape(agent=agent, stream=stream) for agent in AGENTS for stream in (False, True)]


def prompt_of(body: dict[str, Any]) -> Any:
    """The prompt of a leg: its text, or the text of its first message."""
    if "messages" in body:
        return body["messages"][0]["content"]
    return body["input"] if "input" in body else body.get("prompt")


@dataclass
class Allowed:
    """Violations that a test provokes, so they do not fail it at its end."""

    violations: set[str] = field(default_factory=set)
    expired: bool = False
    """Leases may expire, because the test has made them short."""
    stranded: bool = False
    """D may keep the blocks of a hand-off whose P was lost."""
    orphan_tokens: int = 60
    loop_errors: bool = False


class World:
    """Engines, a gateway and a client."""

    def __init__(self, order: Order, connector: str = "NIXL") -> None:
        self.order = order
        self.connector = connector
        self.prefill: list[SimEngine] = []
        self.decode: list[SimEngine] = []
        self.allowed = Allowed()
        self.void = False
        """Whether a stall of the machine has changed its results, so that nothing is checked."""
        self.sent = 0
        """Requests that the gateway must have counted."""
        self.errors: list[dict[str, Any]] = []
        self.session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30), auto_decompress=False)
        self.control: Control | None = None

    @property
    def p(self) -> SimEngine:
        return self.prefill[0]

    @property
    def d(self) -> SimEngine:
        return self.decode[0]

    @property
    def engines(self) -> list[SimEngine]:
        return [*self.prefill, *self.decode]

    @property
    def pull(self) -> bool:
        return self.order is Order.PREFILL_FIRST

    @property
    def gateway(self) -> Control:
        assert self.control is not None
        return self.control

    @property
    def url(self) -> str:
        scheme = "http" if self.gateway._settings.tls.certificate is None else "https"
        return f"{scheme}://{self.gateway.listen}"

    @property
    def admin(self) -> str:
        return f"http://{self.gateway.admin}"

    async def start_engines(self, prefill: Iterable[SimSettings], decode: Iterable[SimSettings]) -> Self:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: self.errors.append(context))
        self.prefill = [SimEngine(settings) for settings in prefill]
        self.decode = [SimEngine(settings) for settings in decode]
        for engine in self.engines:
            await engine.start()
        return self

    def settings(self, **more: Any) -> Settings:
        specs = [spec_of(engine, self.order) for engine in self.engines]
        free = Address("127.0.0.1", 0)
        quiet = Verification(period_seconds=0)  # tests count the requests to engines
        base: dict[str, Any] = {
            "listen": free,
            "admin": free,
            "endpoints": tuple(specs),
            "verification": quiet,
            "handshake_seconds": 0.0,
        }
        if len(self.prefill) != 1:  # a prompt that is sent several times would stay at the engine that has it cached
            base["choosing"] = Choosing(prefill_policy=Policy.LEAST_REQUESTS, decode_policy=Policy.LEAST_REQUESTS)
        return Settings(**{**base, **more})

    async def start_gateway(self, *, warm: bool = True, discovery: Discovery | None = None, **more: Any) -> Self:
        self.control = await Control.start(self.settings(**more), discovery)
        if warm:
            await self.warm()
        return self

    async def warm(self, within: float = 30.0) -> None:
        """Wait until every engine is warm."""
        await eventually(lambda: self._warm_now == (len(self.prefill), len(self.decode)), within, "all warm")

    @property
    def _warm_now(self) -> tuple[int, int]:
        warm = [e.role is Role.PREFILL for e in self.gateway.registry.snapshot.everything if e.warm]
        return warm.count(True), warm.count(False)

    def endpoint(self, engine: SimEngine) -> Endpoint:
        address = Address(engine.settings.host, engine.port)
        return next(e for e in self.gateway.registry.snapshot.everything if e.address == address)

    async def post(self, path: str, body: Any, headers: dict[str, str] | None = None, counted: bool = True) -> Reply:
        """Send a POST through the gateway."""
        self.sent += counted
        return await self.call("POST", f"{self.url}{path}", body, headers)

    async def complete(self, shape: Shape = Shape(), headers: dict[str, str] | None = None, **body: Any) -> Reply:
        """Send a completion through the gateway."""
        return await self.post(shape.path, shape.body(**body), headers)

    async def direct(self, engine: SimEngine, shape: Shape, **body: Any) -> Reply:
        """Send the same to an engine."""
        return await self.call("POST", f"{engine.url}{shape.path}", shape.body(**body))

    async def call(self, method: str, url: str, body: Any = None, headers: dict[str, str] | None = None) -> Reply:
        data: Any = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"Content-Type": "application/json", **(headers or {})}
        received = bytearray()
        if data is not None and len(data) > 1 << 20:
            data = io.BytesIO(data)
        async with self.session.request(method, url, data=data, headers=sent) as response:
            cut = False
            try:
                async for piece in response.content.iter_any():
                    received += piece
            except aiohttp.ClientError:
                cut = True
        found = {name.lower(): value for name, value in response.headers.items()}
        return Reply(response.status, found, bytes(received), cut)

    async def raw(
        self, body: dict[str, Any], path: str = "/v1/completions", version: str = "1.1", head: str = ""
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Send a completion over a bare socket, so that the test reads from it or closes it as it likes."""
        self.sent += 1
        reader, writer = await asyncio.open_connection(self.gateway.listen.host, self.gateway.listen.port)
        writer.write(request_of(body, path, version, head))
        return reader, writer

    @property
    def worker(self) -> Worker:
        """The worker of a gateway in one process."""
        workers = self.gateway._workers
        assert isinstance(workers, LocalWorkers)
        return workers._worker

    @property
    def report(self) -> dict[str, Any]:
        """The worker's counters."""
        return self.worker.report()

    @property
    def settled(self) -> bool:
        """Whether no request, settlement or leg is in flight. A second leg to P may end after its request."""
        report = self.report
        return not any(report["inFlight"].values()) and not any(report["legs"].values())

    @property
    def pool(self) -> ConnectionPool:
        """The worker's connections to engines."""
        return self.worker._engines.pool

    async def state(self) -> dict[str, Any]:
        return (await self.call("GET", f"{self.admin}/pdx/state")).json

    async def outcomes(self) -> dict[str, int]:
        """Outcomes that are not zero."""
        return {name: count for name, count in (await self.state())["outcomes"].items() if count}

    async def settlements(self) -> dict[str, int]:
        return {name: count for name, count in (await self.state())["settlements"].items() if count}

    def fault(self, engine: SimEngine, kind: FaultKind, **fields: Any) -> Fault:
        """Inject a fault into legs of the engine's own role. Warm-ups of a D and settlements by refusal are spared."""
        return engine.faults.add(kind, **{"leg": self.leg_of(engine), **fields})

    def leg_of(self, engine: SimEngine) -> Leg:
        return Leg.PREFILL if engine.settings.role is Role.PREFILL else Leg.DECODE

    async def close(self) -> None:
        await self.session.close()
        if self.control is not None:
            await self.control.stop()
            self.control = None
        for engine in self.engines:
            engine.faults.clear()
            await engine.stop()

    async def check(self) -> None:
        """Check the invariants at the end of a test."""
        await self.gateway.prober.stop()
        await self._check_gateway()
        for engine in self.engines:
            await self._check_engine(engine)
        self._check_decode_legs()
        assert self.allowed.loop_errors or not self.errors, self.errors

    async def _check_gateway(self) -> None:
        state: dict[str, Any] = {}
        end = time.monotonic() + 20.0
        while time.monotonic() < end:
            state = await self.state()
            if not any(state["inFlight"].values()) and not any(e["inFlight"] for e in state["endpoints"]):
                break
            await asyncio.sleep(0.01)
        assert state["inFlight"] == {"requests": 0, "queued": 0, "settling": 0, "prefill": 0, "decode": 0}
        assert [e["inFlight"] for e in state["endpoints"]] == [0] * len(state["endpoints"])
        assert sum(state["outcomes"].values()) == self.sent, state["outcomes"]
        if isinstance(self.gateway._workers, LocalWorkers) and not state["settlements"]["lease"]:
            report = self.report
            assert not any(report["held"].values()) or report["settlements"]["decode_lost"], report["held"]

    def _check_decode_legs(self) -> None:
        """One set of parameters went to at most one D leg that reads KV for a client (vllm#52234)."""
        legs = [seen.body for d in self.decode for seen in d.seen if seen.leg is Leg.DECODE]
        given = [leg["kv_transfer_params"] for leg in legs if "kv_transfer_params" in leg and prompt_of(leg) != "."]
        sets = [json.dumps(each, sort_keys=True) for each in given]
        assert len(sets) == len(set(sets)), [each for each in sets if sets.count(each) > 1]

    async def _check_engine(self, engine: SimEngine) -> None:
        counts, allowed = engine.counts, self.allowed
        name = f"{engine.settings.role} {engine.port}: {counts}"
        assert not set(counts.violations) - allowed.violations, name

        def quiet() -> bool:
            if counts.running_now or counts.waiting_now:
                return False
            if allowed.stranded:
                return counts.blocks_held_now == counts.blocks_stranded_now
            return not (counts.blocks_held_now or counts.registered_now)

        await eventually(quiet, 15.0, f"quiet: {name}")
        assert allowed.expired or not counts.expired, name
        assert counts.orphan_tokens <= allowed.orphan_tokens, name


def spec_of(engine: SimEngine, order: Order) -> EndpointSpec:
    settings = engine.settings
    at_bootstrap = settings.mode is TransferMode.MOONCAKE
    return EndpointSpec(
        Address(settings.host, engine.port),
        settings.role,
        connector=settings.connector,
        order=order,
        protocol=settings.protocol,
        identity_port=engine.side_channel_port if at_bootstrap else 0,
    )


def request_of(body: dict[str, Any], path: str = "/v1/completions", version: str = "1.1", head: str = "") -> bytes:
    """Return a POST as bytes; `head` has further header lines."""
    data = json.dumps(body).encode()
    lines = f"POST {path} HTTP/{version}\r\nHost: gateway\r\nContent-Type: application/json\r\n{head}"
    return f"{lines}Content-Length: {len(data)}\r\n\r\n".encode() + data
