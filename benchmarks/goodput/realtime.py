"""The check of the simulation: the same requests through one simulated P and one D of `pdx sim`, in real time.

The engines run in this process, behind their HTTP API, and move KV by NIXL's pull. No gateway is between: a client
sends P's leg, then D's leg with P's parameters, at the times of the trace. Prompts are texts whose beginnings are equal
where the trace says so.
"""

import asyncio
import hashlib
import random
from dataclasses import dataclass, replace
from typing import Any, Final

import aiohttp

from benchmarks.goodput.engine import EngineModel
from benchmarks.goodput.measures import quantile
from benchmarks.goodput.peers.base import Groups, PeerRouter
from benchmarks.goodput.peers.vllm_router import RoundRobin
from benchmarks.goodput.simulation import Layout, Simulation
from benchmarks.goodput.traces import BLOCK_TOKENS, Chains, Request, Trace
from pdx_api.names import Role
from pdx_sim.engine import SimEngine
from pdx_sim.settings import SimSettings

SETTINGS: Final = SimSettings(
    role=Role.PREFILL,
    step_seconds=0.01,
    step_sequence_seconds=0.0005,
    step_token_seconds=0.0004,
    max_num_batched_tokens=1024,
    max_model_len=16_384,
    num_blocks=4_096,
    engine_gigabytes_per_second=1.0,
    enable_prefix_caching=True,
    shutdown_seconds=0.0,
)
"""A step of 1,024 prompt tokens takes 0.4 s, their KV 0.13 s: long beside what Python and loopback take."""
SHARES: Final = (0.5, 0.99)
"""The quantiles that are compared."""
_TOKEN_BYTES: Final = 4
_TIMER_SECONDS: Final = 0.02
_PREFILL_PARAMS: Final = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


@dataclass(frozen=True, slots=True)
class Agreement:
    """Times to the first token of both, in seconds, by request."""

    simulated: tuple[float, ...]
    measured: tuple[float, ...]
    late: float = 0.0
    """By how many seconds a timer of this process was late on average: other programs, and Python itself."""

    def quantiles(self, share: float) -> tuple[float, float]:
        """The same quantile of both."""
        return quantile(sorted(self.simulated), share), quantile(sorted(self.measured), share)

    def differs(self, share: float) -> float:
        """By which part the measured quantile is off the simulated one."""
        simulated, measured = self.quantiles(share)
        return abs(measured - simulated) / simulated

    def line(self) -> dict[str, Any]:
        """For the results: p50 and p99."""
        pairs = [self.quantiles(share) for share in SHARES]
        return {
            "requests": len(self.measured),
            "simulated": [round(simulated, 4) for simulated, _ in pairs],
            "measured": [round(measured, 4) for _, measured in pairs],
            "apart": [round(self.differs(share), 4) for share in SHARES],
            "late": round(self.late, 5),
        }


def short_trace(seed: int, seconds: float, rate: float) -> Trace:
    """Prompts of one to five blocks, of which half share their first two, at so many requests per second."""
    rng, chains, at = random.Random(seed), Chains(), 0.0
    requests: list[Request] = []
    while (at := at + rng.expovariate(rate)) < seconds:
        number = len(requests)
        own = [1000 + 10 * number + block for block in range(rng.randint(1, 3))]
        ids = [0, 1, *own] if rng.random() < 0.5 else own
        tokens = len(ids) * BLOCK_TOKENS
        requests.append(Request(number, at, tokens, rng.randint(5, 40), chains.prefix(ids, tokens)))
    return Trace("short", tuple(requests))


def simulate(trace: Trace) -> tuple[float, ...]:
    """Times to the first token in the simulation."""
    model = EngineModel.from_settings(SETTINGS)
    engines = Layout(1, 1).engines(model)
    router = PeerRouter(engines, RoundRobin, RoundRobin, Groups(engines), random.Random(0))
    return tuple(record.ttft for record in Simulation(engines, router, model).run(trace.at_rate(trace.rate)))


async def measure(trace: Trace) -> tuple[float, ...]:
    """Times to the first token of `pdx sim`."""
    prefill, decode = SimEngine(SETTINGS), SimEngine(replace(SETTINGS, role=Role.DECODE))
    await prefill.start()
    await decode.start()
    try:
        async with aiohttp.ClientSession() as session:
            await _serve(session, prefill, decode, Request(len(trace.requests), 0.0, 64, 2, ()))  # the handshake
            began = asyncio.get_running_loop().time()

            async def at_its_time(request: Request) -> float:
                await asyncio.sleep(max(0.0, began + request.at - asyncio.get_running_loop().time()))
                return await _serve(session, prefill, decode, request)

            return tuple(await asyncio.gather(*map(at_its_time, trace.requests)))
    finally:
        await prefill.stop()
        await decode.stop()


async def compare(trace: Trace) -> Agreement:
    """Both, with the same requests."""
    simulated, late = simulate(trace), _Lateness()
    timer = asyncio.create_task(late.run())
    try:
        measured = await measure(trace)
    finally:
        timer.cancel()
    return Agreement(simulated, measured, late.mean)


class _Lateness:
    """Measures how late timers are."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._count = 0

    @property
    def mean(self) -> float:
        """Seconds."""
        return self._sum / self._count if self._count else 0.0

    async def run(self) -> None:
        """Set timers until cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            due = clock() + _TIMER_SECONDS
            await asyncio.sleep(_TIMER_SECONDS)
            self._sum += clock() - due
            self._count += 1


async def _serve(session: aiohttp.ClientSession, prefill: SimEngine, decode: SimEngine, request: Request) -> float:
    """One request; return the seconds until D's first event."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    body: dict[str, Any] = {"model": "sim", "prompt": prompt_of(request)}
    headers = {"X-Request-Id": f"request-{request.index}"}
    first = {**body, "max_tokens": 1, "kv_transfer_params": _PREFILL_PARAMS}
    async with session.post(f"{prefill.url}/v1/completions", json=first, headers=headers) as answer:
        answer.raise_for_status()
        params = (await answer.json())["kv_transfer_params"]
    second = {**body, "max_tokens": request.output, "stream": True, "kv_transfer_params": params, "ignore_eos": True}
    async with session.post(f"{decode.url}/v1/completions", json=second, headers=headers) as answer:
        answer.raise_for_status()
        await answer.content.readuntil(b"\n\n")
        seconds = loop.time() - began
        await answer.read()
    return seconds


def prompt_of(request: Request) -> str:
    """A text with as many tokens of `pdx sim` as the request; equal blocks have equal texts."""
    texts = [_text(key, BLOCK_TOKENS * _TOKEN_BYTES) for key, _ in request.prefix]
    return ("".join(texts) or _text(-request.index, request.prompt * _TOKEN_BYTES))[: request.prompt * _TOKEN_BYTES]


def _text(key: int, size: int) -> str:
    return hashlib.shake_128(str(key).encode()).hexdigest(size // 2)
