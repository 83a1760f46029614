"""`pdx probe` against simulated engines: what it prints, its exit codes, and that it leaves nothing behind."""

import asyncio
import json
import os
import re
import socket
from pathlib import Path
from typing import Any, Final

import pytest

from pdx_api.names import Order, Role
from pdx_cli.main import main
from pdx_cli.probing import legs
from pdx_cli.probing.causes import ADVICE, Reason
from pdx_sim import FaultKind
from pdx_sim.core.counters import Violation
from pdx_sim.core.sequence import Leg, Sequence
from pdx_sim.faults import Faults
from pdx_sim.settings import OnLoadFailure
from tests.component.cli.probes import Captured, check_engines, command, probe, run_in_threads
from tests.component.conftest import MakeWorld

PUSHES: Final = (Order.DECODE_FIRST, Order.CONCURRENT)


@pytest.fixture(autouse=True)
def _in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    run_in_threads(monkeypatch)


@pytest.mark.parametrize(
    ("connector", "order"),
    [
        *(("NIXL", order) for order in Order),
        *(("Mooncake", order) for order in Order),
        ("LMCache", Order.PREFILL_FIRST),
        ("SharedStorage", Order.PREFILL_FIRST),
    ],
    ids=str,
)
async def test_kv_moves(connector: str, order: Order, make_world: MakeWorld, capsys: Captured, tmp_path: Path) -> None:
    storage = {"storage": str(tmp_path)} if connector in ("LMCache", "SharedStorage") else {}
    world = await make_world(order, connector=connector, sim=storage, gateway=False)
    code, line, out = await probe(capsys, command(world))
    assert code == 0, out
    assert line["asked"].endswith(f"(vLLM 0.32.0), model sim, {connector}, order {order}")
    tokens = re.match(r"moved: (\d+) of (\d+) prompt tokens came from the prefill engine", line["KV"])
    assert tokens is not None, out
    assert int(tokens[1]) * 2 >= int(tokens[2]) >= 300
    assert line["text"] == "equals the decode engine's own text without the prefill engine (8 tokens)"
    push = order in PUSHES
    assert world.d.counts.legs[Leg.DECODE if not storage else Leg.PLAIN] >= (2 if push else 1)
    assert sum(world.p.counts.legs.values()) == (2 if push else 1)
    await check_engines(world)


async def test_mooncakes_own_metrics_are_not_those_of_nixl(make_world: MakeWorld, capsys: Captured) -> None:
    """vLLM 0.33 has the former."""
    newer = {"version": "0.33.0"}
    world = await make_world(Order.CONCURRENT, connector="Mooncake", sim=newer, gateway=False)
    code, line, out = await probe(capsys, command(world))
    assert code == 0, out
    assert line["KV"].startswith("moved: ")


async def test_each_order_sends_its_legs_in_this_order(
    make_world: MakeWorld, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await make_world(Order.DECODE_FIRST, gateway=False)
    began: list[str] = []
    take = Faults.take

    def recorded(faults: Faults, leg: Leg) -> Any:
        began.append(leg)
        return take(faults, leg)

    monkeypatch.setattr(Faults, "take", recorded)
    assert (await probe(capsys, command(world)))[0] == 0
    assert [leg for leg in began if leg is not Leg.PLAIN] == [Leg.PREFILL, Leg.DECODE, Leg.DECODE, Leg.PREFILL]


async def test_the_result_as_json(make_world: MakeWorld, capsys: Captured) -> None:
    world = await make_world(Order.PREFILL_FIRST, gateway=False)
    assert await asyncio.to_thread(main, command(world, "-o", "json")) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["result"], found["reason"], found["advice"]) == ("moved", None, None)
    assert found["kv"]["loadedTokens"] == found["kv"]["answerTokens"] == found["kv"]["metricsTokens"] >= 300
    assert found["text"]["equal"] is True
    assert found["prefill"]["held"] is None
    assert found["decode"]["answered"] is True


@pytest.mark.parametrize("order", [Order.PREFILL_FIRST, Order.CONCURRENT])
@pytest.mark.parametrize("policy", OnLoadFailure)
async def test_blocked_ports(order: Order, policy: OnLoadFailure, make_world: MakeWorld, capsys: Captured) -> None:
    sim = {"on_load_failure": policy, "lease_seconds": 60.0}
    world = await make_world(order, sim=sim, gateway=False)
    world.d.faults.add(FaultKind.BLOCK_TRANSFER)
    code, line, out = await probe(capsys, command(world, "--timeout", "1"))
    assert code == 1, out
    assert "did not move" in line["KV"]
    assert line["KV"].endswith("(PortsBlocked)"), out
    assert re.search(
        r"may hold the blocks of this prompt until about \d\d:\d\d:\d\d \(a lease of 30 s", line["prefill"]
    )
    assert line["text"] == "not compared"
    assert world.p.counts.blocks_held_now, "P holds them, as the command says"


async def test_kv_of_another_prompt(make_world: MakeWorld, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    world = await make_world(Order.PREFILL_FIRST, gateway=False)
    load, wrong = world.d.connector.load, 2

    async def foreign(seq: Sequence) -> None:
        nonlocal wrong
        await load(seq)
        if wrong:
            wrong -= 1
            seq.digest = "0" * 32

    monkeypatch.setattr(world.d.connector, "load", foreign)
    code, line, out = await probe(capsys, command(world))
    assert code == 3, out
    assert line["KV"].startswith("moved, but it is wrong:")
    assert re.fullmatch(r"WRONG: '.+' instead of '.+'", line["text"])
    wrong = 1
    assert (await probe(capsys, command(world)))[0] == 0, "one text that differs may be chance"


@pytest.mark.parametrize(("asked", "real"), [(a, r) for a in Order for r in Order if (a in PUSHES) != (r in PUSHES)])
async def test_another_order(asked: Order, real: Order, make_world: MakeWorld, capsys: Captured) -> None:
    world = await make_world(real, gateway=False)
    world.order = asked
    code, line, out = await probe(capsys, command(world))
    assert code == 1
    assert "the prefill engine was started for order " in line["KV"]
    assert line["KV"].endswith("(OtherOrder)"), out
    await check_engines(world)


@pytest.mark.parametrize(
    ("asked", "real", "seen"),
    [
        ("SharedStorage", "NIXL", "the prefill engine reports metrics of NIXL"),
        ("LMCache", "NIXL", "the prefill engine reports metrics of NIXL"),
        ("Mooncake", "NIXL", "the prefill engine's bootstrap does not answer as one of Mooncake"),
        ("NIXL", "SharedStorage", "the prefill engine answers without kv_transfer_params, although it has a connector"),
        ("NIXL", "Mooncake", "the prefill engine answers without kv_transfer_params, although it has a connector"),
    ],
)
async def test_another_connector(
    asked: str, real: str, seen: str, make_world: MakeWorld, capsys: Captured, tmp_path: Path
) -> None:
    storage = {"storage": str(tmp_path)} if real == "SharedStorage" else {}
    world = await make_world(Order.PREFILL_FIRST, connector=real, sim=storage, gateway=False)
    world.connector = asked
    world.allowed.violations = {Violation.PARAMS_UNEXPECTED}
    code, line, out = await probe(capsys, command(world))
    assert code == 1, out
    assert seen in line["KV"], out
    assert line["KV"].endswith("(OtherConnector)"), out
    if real != "Mooncake":  # this one pins blocks without a transfer ID; vLLM's does not (tests/engines)
        await check_engines(world)


@pytest.mark.parametrize("missing", [Role.PREFILL, Role.DECODE])
async def test_no_connector(missing: Role, make_world: MakeWorld, capsys: Captured) -> None:
    bare: dict[str, Any] = {missing[0]: {"role": Role.AGGREGATED}}
    world = await make_world(Order.PREFILL_FIRST, **bare, gateway=False)
    world.allowed.violations = {Violation.PARAMS_AT_AGGREGATED}
    code, line, out = await probe(capsys, command(world))
    assert code == 1
    assert f"the {missing} engine runs without a KV connector; start it with --kv-transfer-config" in line["KV"], out


@pytest.mark.parametrize(
    ("d", "reason"),
    [
        ({"model": "/models/sim"}, Reason.MODEL),
        ({"version": "0.31.0"}, Reason.VERSION),
    ],
    ids=str,
)
async def test_engines_that_differ(d: dict[str, Any], reason: Reason, make_world: MakeWorld, capsys: Captured) -> None:
    world = await make_world(Order.PREFILL_FIRST, d=d, gateway=False)
    code, line, out = await probe(capsys, command(world))
    assert code == (2 if reason is Reason.MODEL else 1)
    if reason is Reason.MODEL:
        names = "serves /models/sim, and the prefill engine sim; start both with one --served-model-name"
        assert line["decode"] == names
    else:
        assert line["KV"].endswith(f"; {ADVICE[reason]} ({reason})"), out


async def test_separate_stores(make_world: MakeWorld, capsys: Captured, tmp_path: Path) -> None:
    sim = {"storage": str(tmp_path / "p")}
    d = {"storage": str(tmp_path / "d")}
    world = await make_world(Order.PREFILL_FIRST, connector="SharedStorage", sim=sim, d=d, gateway=False)
    code, line, out = await probe(capsys, command(world))
    assert code == 1
    assert line["KV"].endswith(f"{ADVICE[Reason.POOL]} (PoolUnreachable)"), out


@pytest.mark.parametrize("down", [Role.PREFILL, Role.DECODE])
async def test_an_engine_is_down(down: Role, make_world: MakeWorld, capsys: Captured) -> None:
    world = await make_world(Order.PREFILL_FIRST, gateway=False)
    await (world.p if down is Role.PREFILL else world.d).stop()
    code, line, out = await probe(capsys, command(world))
    assert code == 2
    assert line[down] == f"did not answer: connection refused; start it, or correct --{down}", out
    assert (line["KV"], line["text"]) == ("not tried", "not compared")
    await asyncio.to_thread(main, command(world, "--json"))
    found = json.loads(capsys.readouterr().out)
    assert (found["result"], found["reason"]) == ("unusable", "Unusable")
    assert found[down]["problem"] == line[down]


async def test_a_bootstrap_that_does_not_answer(make_world: MakeWorld, capsys: Captured) -> None:
    """Its port may not be forwarded. No hand-off is tried, so nothing is shown about the connector."""
    world = await make_world(Order.PREFILL_FIRST, connector="Mooncake", gateway=False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    code, line, out = await probe(capsys, command(world, "--identity-port", str(port)))
    assert code == 2, out
    assert line["prefill"] == (
        f"its bootstrap http://127.0.0.1:{port}/query did not answer: connection refused; correct --identity-port, or "
        "--connector if it has no bootstrap"
    )
    assert line["KV"] == "not tried"
    await check_engines(world)


async def test_a_prefill_leg_fails(make_world: MakeWorld, capsys: Captured) -> None:
    world = await make_world(Order.PREFILL_FIRST, gateway=False)
    world.p.faults.add(FaultKind.STATUS, leg=Leg.PREFILL)
    code, line, out = await probe(capsys, command(world))
    assert code == 1
    assert line["KV"].endswith("see the prefill engine's log (PrefillFails)"), out
    assert line["prefill"].startswith("answered 500")
    assert line["decode"] == "got no request"
    await check_engines(world)


async def test_a_decode_engine_that_fails_without_kv_too(make_world: MakeWorld, capsys: Captured) -> None:
    world = await make_world(Order.PREFILL_FIRST, gateway=False)
    world.d.faults.add(FaultKind.STATUS, count=None)
    code, line, _ = await probe(capsys, command(world))
    assert code == 2
    assert re.fullmatch(r"answered 500: .+ to a request of its own; see its log", line["decode"])
    assert not world.p.counts.legs


@pytest.mark.parametrize("kind", [FaultKind.DIE_BEFORE_HEAD, FaultKind.ABORT])
async def test_a_decode_leg_that_shows_nothing(kind: FaultKind, make_world: MakeWorld, capsys: Captured) -> None:
    world = await make_world(Order.PREFILL_FIRST, gateway=False)
    assert (await probe(capsys, command(world)))[0] == 0
    world.d.faults.add(kind, leg=Leg.DECODE)
    code, line, out = await probe(capsys, command(world))
    assert code == 1
    assert line["KV"].endswith("see the decode engine's log, and probe again (DecodeFails)"), out
    await check_engines(world)


async def test_a_model_that_generates_no_text(
    make_world: MakeWorld, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(legs, "PATH", "/v1/missing")
    world = await make_world(Order.PREFILL_FIRST, gateway=False)
    code, line, _ = await probe(capsys, command(world))
    assert code == 2
    assert line["decode"] == "has no /v1/completions; probe engines whose model generates text"


async def test_an_engine_that_ends_meanwhile(
    make_world: MakeWorld, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await make_world(Order.PREFILL_FIRST, gateway=False)
    send, loop = legs.Legs.send, asyncio.get_running_loop()

    async def end(self: legs.Legs, role: Role, body: Any, *more: Any) -> Any:
        if role is Role.DECODE and "kv_transfer_params" in body:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(world.d.stop(), loop))
        return await send(self, role, body, *more)

    monkeypatch.setattr(legs.Legs, "send", end)
    code, line, out = await probe(capsys, command(world))
    assert code == 2
    assert (
        line["decode"] == "did not answer: connection refused to a request of its own after the hand-off; see its log"
    )
    assert "may hold the blocks of this prompt until about" in line["prefill"], out
    assert line["KV"] == "not shown to move"


async def test_a_refused_decode_leg_leaves_nothing(make_world: MakeWorld, capsys: Captured) -> None:
    """The second probe's D has exchanged KV with P, so its refusal of a leg frees P's blocks."""
    world = await make_world(Order.PREFILL_FIRST, gateway=False)
    assert (await probe(capsys, command(world)))[0] == 0
    world.d.faults.add(FaultKind.HANG_BEFORE_HEAD, leg=Leg.DECODE)
    code, line, out = await probe(capsys, command(world, "--timeout", "1"))
    assert code == 1
    assert line["decode"] == "did not answer within 1 s", out
    assert "hold" not in line["prefill"]
    await check_engines(world)


async def test_models(make_world: MakeWorld, capsys: Captured) -> None:
    world = await make_world(Order.PREFILL_FIRST, gateway=False)
    assert (await probe(capsys, command(world, "--model", "sim")))[0] == 0
    code, line, _ = await probe(capsys, command(world, "--model", "other"))
    assert (code, line["prefill"]) == (2, "has no model other; write --model with one of: sim")


async def test_a_model_that_is_too_short(make_world: MakeWorld, capsys: Captured) -> None:
    world = await make_world(Order.PREFILL_FIRST, sim={"max_model_len": 300}, gateway=False)
    code, line, _ = await probe(capsys, command(world))
    assert code == 2
    clause = "takes 300 tokens, and a probe needs 350; raise --max-model-len, or lower --block-size"
    assert line["decode"] == clause


async def test_prefix_caching_makes_no_difference(make_world: MakeWorld, capsys: Captured) -> None:
    sim = {"enable_prefix_caching": True, "step_seconds": 0.001}
    world = await make_world(Order.PREFILL_FIRST, sim=sim, gateway=False)
    for _ in range(2):
        assert (await probe(capsys, command(world)))[0] == 0
    await check_engines(world)


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
async def test_answers_without_details(busy: bool, make_world: MakeWorld, capsys: Captured) -> None:
    """Then D's metrics show what it took from P, unless it serves other requests, too."""
    world = await make_world(Order.PREFILL_FIRST, sim={"prompt_tokens_details": False}, gateway=False)
    stop = asyncio.Event()

    async def others() -> None:
        while busy and not stop.is_set():
            body = {"model": "sim", "prompt": os.urandom(8).hex(), "max_tokens": 1}
            await world.call("POST", f"{world.d.url}/v1/completions", body)

    task = asyncio.create_task(others())
    code, line, out = await probe(capsys, command(world))
    stop.set()
    await task
    assert code == (1 if busy else 0), out
    assert line["KV"].endswith("(NotReported)") is busy
