"""An interrupted `pdx probe` leaves nothing behind."""

import asyncio
import signal
import sys
from typing import Any, Final

import pytest

from pdx_api.connectors import choose
from pdx_api.names import Order
from pdx_cli.main import main
from pdx_cli.probing import legs, session
from pdx_cli.probing.interruptible import _probe
from pdx_cli.probing.question import Question
from pdx_cli.probing.trial import Leg as ProbeLeg
from pdx_cli.probing.trial import Trial
from pdx_cli.sources.client import AnswerError
from tests.component.cli.probes import check_engines, command, passed_on, received, run_in_threads
from tests.component.conftest import MakeWorld
from tests.component.servers import serving

PUSHES: Final = (Order.DECODE_FIRST, Order.CONCURRENT)


@pytest.fixture(autouse=True)
def _in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    run_in_threads(monkeypatch)


@pytest.mark.timeout(120)
async def test_an_interrupt_leaves_nothing(make_world: MakeWorld) -> None:
    """D's server has not given the leg to D's engine, so its end frees nothing: the probe does."""
    world = await make_world(Order.PREFILL_FIRST, gateway=False)
    assert await asyncio.to_thread(main, command(world)) == 0, "D has exchanged KV with P"
    stuck = asyncio.Event()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, body = await received(reader)
        if b"kv_transfer_params" in body and not stuck.is_set():
            stuck.set()
            await reader.read()
        else:
            await passed_on(head, body, world.d.port, writer)

    async with serving(relay) as port:
        argv = ["probe", "--prefill", world.p.url, "--decode", f"http://127.0.0.1:{port}"]
        process = await asyncio.create_subprocess_exec(sys.executable, "-m", "pdx_cli", *argv)
        await asyncio.wait_for(stuck.wait(), 60.0)
        process.send_signal(signal.SIGINT)
        assert await process.wait() == -signal.SIGINT
    await check_engines(world)


@pytest.mark.parametrize("where", ["_count", "alone", "_settling", "_decode"])
async def test_an_interrupt_after_a_leg_leaves_nothing(
    where: str, make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D's leg fails before it reaches D, or its answer shows that D computed the prompt. The probe frees P's blocks."""
    in_order = where == "_decode"
    order = Order.CONCURRENT if in_order else Order.PREFILL_FIRST
    world = await make_world(order, gateway=False)
    assert await asyncio.to_thread(main, command(world)) == 0, "D has exchanged KV with P"
    decode, step = legs.Legs._decode, getattr(session.Session if where == "_count" else legs.Legs, where)
    handed, reached = asyncio.Event(), asyncio.Event()

    async def lost(self: legs.Legs, body: Any, attempt: Trial) -> ProbeLeg:
        if in_order and attempt.prefill is not None:
            return await decode(self, body, attempt)
        handed.set()
        if in_order:
            reached.set()
            await asyncio.sleep(0.3)
        if where == "_count":
            usage = {"prompt_tokens": 350, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0}}
            return ProbeLeg(0.1, {"choices": [{"text": "a", "finish_reason": "length"}], "usage": usage})
        return ProbeLeg(0.1, failure=AnswerError("no answer", 500, "{}"))

    async def slow(self: Any, *arguments: Any) -> Any:
        if handed.is_set():
            reached.set()
            await asyncio.sleep(0.3)
        return await step(self, *arguments)

    monkeypatch.setattr(legs.Legs, "_decode", lost)
    if not in_order:
        monkeypatch.setattr(session.Session if where == "_count" else legs.Legs, where, slow)
    task = asyncio.create_task(_probe(Question(world.p.url, world.d.url, *choose("NIXL", order)), None))
    await asyncio.wait_for(reached.wait(), 60.0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await check_engines(world)
