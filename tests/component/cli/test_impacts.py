"""`pdx doctor` and `pdx top` say first what clients notice, and then why. Each test breaks a gateway in one way."""

import asyncio
import json
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from pdx_api.names import Order
from pdx_api.settings.gateway import Verification
from pdx_api.verification import Verdict
from pdx_cli.main import main
from pdx_proxy.config.settings import Limits
from pdx_proxy.health import engine_scraper
from pdx_proxy.health.history import History
from pdx_proxy.verification import prober, record
from pdx_sim import FaultKind
from tests.component.cli.programs import TEST_SECONDS
from tests.component.conftest import MakeWorld
from tests.component.harness import PROMPT, Shape, World, eventually

pytestmark = pytest.mark.timeout(TEST_SECONDS)

STREAM = Shape(stream=True)
Findings = list[dict[str, str]]


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_scraper, "SAMPLE_SECONDS", 0.2)
    monkeypatch.setattr(engine_scraper, "PAUSE_SECONDS", 0.1)
    monkeypatch.setattr(prober, "PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(record, "_RETRY_SECONDS", 0.2)


class Inspector:
    """Runs both commands on one gateway."""

    def __init__(self, world: World, capsys: pytest.CaptureFixture[str]) -> None:
        self.admin, self._capsys = world.admin, capsys

    async def doctor(self, *argv: str) -> tuple[int, Findings]:
        """Exit code and findings."""
        code, out = await self._run("doctor", "-o", "json", *argv)
        found: Findings = json.loads(out)["findings"]
        return code, found

    async def top(self, *argv: str) -> str:
        return (await self._run("top", "--once", "--interval", "0.5", *argv))[1]

    async def _run(self, command: str, *argv: str) -> tuple[int, str]:
        code = await asyncio.to_thread(main, [command, "--admin", self.admin, *argv])
        return code, self._capsys.readouterr().out

    async def until(self, found: Callable[[Findings], bool], *argv: str) -> Findings:
        """Inspect until the findings are as expected; the exit code is then 1, and the impact comes first."""
        findings: Findings = []
        try:
            async with asyncio.timeout(20.0):
                while True:
                    code, findings = await self.doctor(*argv)
                    if found(findings):
                        break
                    await asyncio.sleep(0.05)
        except TimeoutError:
            pytest.fail(f"never found: {findings}")
        assert code == 1
        assert findings[0]["severity"] == "impact"
        return findings


def causes(findings: Findings) -> list[str]:
    return [each["cause"] for each in findings]


def has(*names: str) -> Callable[[Findings], bool]:
    return lambda findings: set(names) <= set(causes(findings))


async def serve(world: World, requests: int, shape: Shape = STREAM, **body: Any) -> list[int]:
    """Send different prompts one after another and return the statuses."""
    return [(await world.complete(shape, prompt=f"{n} {PROMPT}", **body)).status for n in range(requests)]


async def test_nobody_suffers(make_world: MakeWorld, capsys: pytest.CaptureFixture[str]) -> None:
    world = await make_world(Order.PREFILL_FIRST)
    assert set(await serve(world, 12)) == {200}
    inspector = Inspector(world, capsys)
    assert await inspector.doctor() == (0, [])
    assert "\nOK  2 of 2 engines" in await inspector.top()


async def test_the_gateway_is_down(make_world: MakeWorld, capsys: pytest.CaptureFixture[str]) -> None:
    world = await make_world(Order.PREFILL_FIRST)
    inspector = Inspector(world, capsys)
    await world.gateway.stop()
    world.control = None
    code, findings = await inspector.doctor()
    assert (code, causes(findings)) == (1, ["Unavailable", "GatewaySilent"])
    assert findings[0]["sentence"] == "Clients get no answer: no gateway answers"
    assert "connection refused" in findings[1]["sentence"]


async def test_the_only_prefill_engine_is_down(make_world: MakeWorld, capsys: pytest.CaptureFixture[str]) -> None:
    world = await make_world(Order.PREFILL_FIRST)
    await serve(world, 2)
    await world.p.stop()
    assert set(await serve(world, 6)) == {200}
    inspector = Inspector(world, capsys)
    findings = await inspector.until(has("NotSplitting", "EngineUnhealthy"))
    assert causes(findings)[:2] == ["NotSplitting", "EngineUnhealthy"]
    assert "NothingSplit" not in causes(findings)
    assert "✗ no prefill engine serves: every request is served whole" in await inspector.top()


async def test_a_decode_engine_that_is_too_slow(make_world: MakeWorld, capsys: pytest.CaptureFixture[str]) -> None:
    world = await make_world(Order.PREFILL_FIRST)
    control = world.gateway
    control.history = History(control._engines.clock(), window=0.5)
    end = control._engines.clock() + 2.0
    while control._engines.clock() < end:
        await serve(world, 4, tokens=16)
    inspector = Inspector(world, capsys)
    normal = (await world.state())["history"]["normal"]["tpot"]
    assert normal < 0.02
    control.history._window = 60.0
    await asyncio.sleep(0.5)  # until a sample has all fast tokens
    control.history._recent = deque((control.history._recent[-1],))
    world.fault(world.d, FaultKind.SLOW, factor=200.0, count=1000)
    await serve(world, 3, tokens=16)
    findings = await inspector.until(has("TokensSlow"), "--slo", "ttft=1h")
    assert causes(findings) == ["TokensSlow"]
    assert "; normal is " in findings[0]["sentence"]
    sending = asyncio.create_task(serve(world, 6, tokens=16))
    out = await inspector.top("--slo", "ttft=1h")
    assert "\nSLOW  " in out
    assert " for each token; normal is " in out
    await sending


async def test_a_full_queue(make_world: MakeWorld, capsys: pytest.CaptureFixture[str]) -> None:
    slow = {"decode_token_seconds": 0.03}
    world = await make_world(Order.PREFILL_FIRST, d=slow, limits=Limits(max_in_flight_per_decode=1))
    clients = [asyncio.create_task(serve(world, 3)) for _ in range(8)]
    inspector = Inspector(world, capsys)
    findings = await inspector.until(has("FirstTokenLate", "QueueLong"), "--slo", "ttft=300ms,tpot=1s")
    assert causes(findings)[0] == "FirstTokenLate"
    assert "--slo allows 300 ms" in findings[0]["sentence"]
    (queue,) = [each for each in findings if each["cause"] == "QueueLong"]
    assert "is full: 1 of 1 requests" in queue["sentence"]
    out = await inspector.top("--slo", "ttft=300ms,tpot=1s")
    assert "\nSLOW  " in out
    assert "requests wait in the queue" in out
    await asyncio.gather(*clients)


async def test_blocked_kv(make_world: MakeWorld, capsys: pytest.CaptureFixture[str]) -> None:
    probes = Verification(period_seconds=0.5)
    world = await make_world(Order.PREFILL_FIRST, sim={"lease_seconds": 0.5}, verification=probes)
    world.allowed.expired = True
    await serve(world, 4)
    await eventually(lambda: world.gateway.prober.finding.verdict is Verdict.VERIFIED, 15.0, "verified")
    control = world.gateway
    control.history = History(control._engines.clock(), window=60.0)
    world.d.faults.add(FaultKind.BLOCK_TRANSFER, seconds=600.0)
    inspector = Inspector(world, capsys)

    ended = asyncio.Event()

    async def load() -> None:
        while not ended.is_set():
            await serve(world, 1)
            await asyncio.sleep(0.02)

    sending = asyncio.create_task(load())
    findings = await inspector.until(has("NotSplitting"), "--slo", "ttft=1h,tpot=1h")
    ended.set()
    await sending
    assert any("are served whole, by decode engines alone" in each["sentence"] for each in findings)
    assert not any("was not started for" in each["remedy"] for each in findings), "KV has moved before"
    assert "SplittingSuspended" in causes(findings)
    assert "NothingSplit" not in causes(findings)


async def test_most_requests_fail(make_world: MakeWorld, capsys: pytest.CaptureFixture[str]) -> None:
    world = await make_world(Order.PREFILL_FIRST, sim={"lease_seconds": 0.5})
    world.allowed.expired = True
    await serve(world, 8)
    world.d.faults.add(FaultKind.STATUS, status=500, count=10_000)
    statuses = await serve(world, 30)
    share = 100 * sum(status != 200 for status in statuses) / 38
    inspector = Inspector(world, capsys)
    findings = await inspector.until(has("RequestsFail", "EnginesFail"))
    assert findings[0]["sentence"].startswith(f"{share:.0f} % of requests fail: ")
    out = await inspector.top()
    assert "\nFAILING  " in out
    assert f"✗ {share:.0f} % of requests fail: " in out
