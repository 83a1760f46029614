"""`pdx probe` against simulated engines: what it prints, its exit codes, and that it leaves nothing behind."""

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import ssl
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from pdx_api.connectors import choose
from pdx_api.names import Order, Role
from pdx_cli import interrupts
from pdx_cli.commands.probe import _probe
from pdx_cli.main import main
from pdx_cli.probing import engines, legs, session
from pdx_cli.probing.causes import ADVICE, Reason
from pdx_cli.probing.question import Question
from pdx_cli.probing.trial import Leg as ProbeLeg
from pdx_cli.probing.trial import Trial
from pdx_cli.sources.client import AnswerError
from pdx_sim import FaultKind
from pdx_sim.core.counters import Violation
from pdx_sim.core.sequence import Leg, Sequence
from pdx_sim.faults import Faults
from pdx_sim.settings import OnLoadFailure
from tests.component.conftest import MakeWorld
from tests.component.harness import World
from tests.component.http.test_tls import Authority
from tests.component.servers import serving

Captured = pytest.CaptureFixture[str]
PUSHES: Final = (Order.DECODE_FIRST, Order.CONCURRENT)


@pytest.fixture(autouse=True)
def _without_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands run in threads, which receive no signals. What cannot be freed is not awaited for long."""
    monkeypatch.setattr(interrupts, "handled", contextlib.nullcontext)
    monkeypatch.setattr(session, "_FREE_SECONDS", 0.5)


def command(world: World, *argv: str) -> list[str]:
    """The command line for the pair of a world."""
    asked = ("--connector", world.connector, "--order", world.order)
    bootstrap = ("--identity-port", str(world.p.side_channel_port)) if world.connector == "Mooncake" else ()
    return ["probe", "--prefill", world.p.url, "--decode", world.d.url, *asked, *bootstrap, *argv]


async def probe(capsys: Captured, argv: list[str]) -> tuple[int, dict[str, str], str]:
    """The exit code, and what is printed by the name of the line."""
    code = await asyncio.to_thread(main, argv)
    out, err = capsys.readouterr()
    assert not err
    lines = out.splitlines()
    found = {line[:9].strip(): line[10:] for line in lines}
    assert len(lines) == 5
    assert list(found) == ["asked", "prefill", "decode", "KV", "text"], out
    return code, found, out


async def check_engines(world: World) -> None:
    """The engines hold nothing, and have received nothing that they should not."""
    for engine in world.engines:
        await world._check_engine(engine)


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
    assert line["decode"] == "got no leg"
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


async def test_a_key(make_world: MakeWorld, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    world = await make_world(Order.PREFILL_FIRST, sim={"api_key": "right"}, gateway=False)
    for argv in ((), ("--api-key", "wrong")):
        code, line, _ = await probe(capsys, command(world, *argv))
        assert code == 2
        assert line["prefill"] == "requires a key (status 401); set VLLM_API_KEY, or write --api-key KEY"
    assert (await probe(capsys, command(world, "--api-key", "right")))[0] == 0
    monkeypatch.setenv("VLLM_API_KEY", "right")
    assert (await probe(capsys, command(world)))[0] == 0


async def test_the_url_of_a_gateway(make_world: MakeWorld, capsys: Captured) -> None:
    world = await make_world(Order.PREFILL_FIRST)
    argv = ["probe", "--prefill", world.p.url, "--decode", world.url]
    world.sent += 1  # the gateway answers /version
    code, line, _ = await probe(capsys, argv)
    assert code == 2
    assert line["decode"] == (
        f"answers, but {world.url} is not an engine: it has no metrics of a vLLM engine, as a gateway or router has "
        "none; write the URL of `vllm serve` itself"
    )


async def passed_on(head: bytes, body: bytes, port: int, writer: asyncio.StreamWriter) -> None:
    """Pass a request on to an engine, and its answer back."""
    there, back = await asyncio.open_connection("127.0.0.1", port)
    back.write(head + body)
    writer.write(await there.read())
    back.close()
    await writer.drain()


async def received(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """The head and the body of a request."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    return head, await reader.readexactly(int(length[1])) if length else b""


@pytest.mark.parametrize(
    ("page", "code"),
    [(b"python_info 1\n", 0), (b'# router\nvllm:num_requests_running{server="http://a"} 1\n', 2)],
    ids=["without-statistics", "router"],
)
async def test_metrics_that_are_not_those_of_an_engine(
    page: bytes, code: int, make_world: MakeWorld, capsys: Captured
) -> None:
    """An engine may have disabled its statistics (--disable-log-stats). Then only its answers show what moved."""
    world = await make_world(Order.PREFILL_FIRST, gateway=False)

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, body = await received(reader)
        if head.startswith(b"GET /metrics "):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(page), page))
            await writer.drain()
        else:
            await passed_on(head, body, world.d.port, writer)

    async with serving(relay) as port:
        argv = ["probe", "--prefill", world.p.url, "--decode", f"http://127.0.0.1:{port}"]
        done, line, out = await probe(capsys, argv)
    assert done == code, out
    assert ("it has no metrics of a vLLM engine" in line["decode"]) is (code == 2)
    await check_engines(world)


@pytest.mark.parametrize(
    ("answer", "clause"),
    [
        (
            b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
            "answers, but URL is not an engine: /v1/models answers 404; write the URL of `vllm serve` itself",
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
            "answers, but URL is not an engine: it lists no models; write the URL of `vllm serve` itself",
        ),
        (
            b"HTTP/1.1 301 Moved\r\nLocation: https://there/v1/models\r\nContent-Length: 0\r\n\r\n",
            "redirects to https://there/v1/models; write the base URL of that",
        ),
        (b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n", "answers 503; wait until it is ready, or see its log"),
        (
            b"SSH-2.0-OpenSSH\r\n",
            "did not answer: it does not speak HTTP; write https:// if it serves TLS, or another port",
        ),
    ],
    ids=["404", "no-models", "redirect", "503", "not-http"],
)
async def test_servers_that_are_no_engine(answer: bytes, clause: str, make_world: MakeWorld, capsys: Captured) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()

    world = await make_world(Order.PREFILL_FIRST, gateway=False)
    async with serving(handle) as port:
        url = f"http://127.0.0.1:{port}"
        code, line, out = await probe(capsys, ["probe", "--prefill", url, "--decode", world.d.url])
    assert code == 2
    assert line["prefill"] == clause.replace("URL", url, 1) if "URL is" in clause else line["prefill"] == clause, out


async def test_tls_that_is_not_served(make_world: MakeWorld, capsys: Captured) -> None:
    world = await make_world(Order.PREFILL_FIRST, gateway=False)
    url = world.p.url.replace("http", "https")
    code, line, _ = await probe(capsys, ["probe", "--prefill", url, "--decode", world.d.url])
    assert code == 2
    assert line["prefill"].endswith("it does not speak TLS, or not with this client; write http:// instead of https://")


async def test_tls(make_world: MakeWorld, capsys: Captured, tmp_path: Path) -> None:
    """A certificate that nothing vouches for is refused; SSL_CERT_FILE names its authority."""
    world = await make_world(Order.PREFILL_FIRST, gateway=False)
    authority = Authority(tmp_path)
    authority.issue("127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", world.p.port)
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await asyncio.gather(pump(reader, back), pump(there, writer))
        for each in (back, writer):
            each.close()

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
        if sink.can_write_eof():
            sink.write_eof()

    server = await asyncio.start_server(relay, "127.0.0.1", 0, ssl=context)
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    argv = ["probe", "--prefill", url, "--decode", world.d.url]
    code, line, _ = await probe(capsys, argv)
    remedy = "set SSL_CERT_FILE to the file with its certificate authority"
    assert (code, line["prefill"]) == (2, f"did not answer: its certificate is not trusted; {remedy}")
    trusting = {**os.environ, "SSL_CERT_FILE": str(authority.file)}
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "pdx_cli", *argv, env=trusting)
    assert await process.wait() == 0
    server.close()


@pytest.mark.parametrize("ranks", [1, 2])
async def test_every_prefill_leg_goes_to_one_rank(
    ranks: int, make_world: MakeWorld, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await make_world(Order.CONCURRENT, gateway=False)
    monkeypatch.setattr(engines, "ranks_of", lambda _page: ranks)
    assert (await probe(capsys, command(world)))[0] == 0
    given = [seen.headers.get("x-data-parallel-rank") for seen in world.p.seen]
    assert given == [None if ranks == 1 else "0"] * 2


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
