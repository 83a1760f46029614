"""Transfer probes show that KV moves, or that it does not and why. Clients notice nothing."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pdx_api.names import Mode, Order, Role
from pdx_api.settings.gateway import Verification
from pdx_api.verification import RESULT_PATH, Cause, Finding, Verdict
from pdx_proxy.health import engine_scraper
from pdx_proxy.verification import attempt, prober, record
from pdx_proxy.verification.verdict import UNANSWERED_PROBES
from pdx_sim import FaultKind, Leg, OnLoadFailure
from pdx_sim.core.counters import Violation
from pdx_sim.core.sequence import Sequence
from tests.component.conftest import MakeWorld
from tests.component.harness import Shape, World, eventually, spec_of

ON: dict[str, Any] = {"verification": Verification(period_seconds=0.5)}
SHORT = {"lease_seconds": 0.5}
RECOMPUTE = {"on_load_failure": OnLoadFailure.RECOMPUTE}


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prober, "PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(attempt, "LEG_SECONDS", 5.0)
    monkeypatch.setattr(record, "_RETRY_SECONDS", 0.2)
    monkeypatch.setattr(record, "_BUSY_SECONDS", 0.1)


async def found(world: World, verdict: Verdict, cause: Cause | None = None) -> None:
    """Wait for a finding."""
    transfer_prober = world.gateway.prober

    def holds() -> bool:
        finding = transfer_prober.finding
        return finding.verdict is verdict and (cause is None or {broken.cause for broken in finding.broken} == {cause})

    await eventually(holds, 15.0, f"{verdict} {cause}: {transfer_prober.describe()}")


async def test_every_pair_is_verified_without_client_requests(order: Order, make_world: MakeWorld) -> None:
    world = await make_world(order, 2, 2, **ON)
    every = Finding(Verdict.VERIFIED, pairs=4, possible=4, versions=("0.32.0",))
    await eventually(lambda: world.gateway.prober.finding == every, 15.0, "all four pairs")
    tried = (await world.call("GET", f"{world.admin}/pdx/verification")).json["pairs"]
    assert {(pair["verdict"], pair["result"]) for pair in tried} == {("verified", "moved")}
    assert all(pair["outside"] == pair["tokens"] > 200 for pair in tried)
    assert {frozenset(pair["seconds"]) for pair in tried} <= {
        frozenset({"prefill", "handoff", "alone"}),
        frozenset({"prefill", "handoff"}),
    }
    report = await world.gateway._report()
    assert not any(sum(phase["counts"]) for phase in report["phases"].values())
    assert not report["legs"]
    assert (await world.complete()).text == Shape().expected()
    assert await world.outcomes() == {"split": 1}


async def test_metrics(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST, **ON)
    await found(world, Verdict.VERIFIED)
    page = (await world.call("GET", f"{world.admin}/metrics")).raw.decode()
    samples = [s for family in text_string_to_metric_families(page) for s in family.samples]
    values = {(s.name, *s.labels.values()): s.value for s in samples if s.name.startswith("pdx_transfer_probe")}
    assert values["pdx_transfer_probes_total", "moved"] >= 1
    assert values["pdx_transfer_probe_pairs", "verified"] == 1
    assert values["pdx_transfer_probe_seconds_count", "handoff"] >= 1
    assert values["pdx_transfer_probe_last_success_timestamp_seconds",] > 1.7e9


async def test_the_comparison_bypasses_the_prefix_cache(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST, **ON)
    await found(world, Verdict.VERIFIED)
    bodies = [seen.body for seen in world.d.seen if "logprobs" in seen.body]
    salts = [body.get("cache_salt") for body in bodies if "kv_transfer_params" not in body]
    assert salts, "D answered alone"
    assert all(salts), "otherwise D would use the KV from P"
    assert len({body["prompt"] for body in bodies}) * 2 >= len(bodies), "no prompt twice, except alone"


@pytest.mark.parametrize("policy", OnLoadFailure)
async def test_engines_that_reject_each_other(policy: OnLoadFailure, order: Order, make_world: MakeWorld) -> None:
    """With Fail P never becomes warm. With Recompute only the transfer probes show it."""
    lease = {"lease_seconds": 0.5, "on_load_failure": policy}
    world = await make_world(order, sim=lease, d={"model": "another"}, warm=False, **ON)
    world.allowed.expired = True
    await found(world, Verdict.BROKEN, Cause.MODEL)
    (broken,) = world.gateway.prober.finding.broken
    assert (broken.prefill, broken.decode) == (world.endpoint(world.p).name, world.endpoint(world.d).name)
    recomputed = "prompt by itself" in broken.seen
    assert recomputed is (policy is OnLoadFailure.RECOMPUTE), broken.seen


async def test_engines_of_two_patch_releases_get_no_hand_off(order: Order, make_world: MakeWorld) -> None:
    """vLLM's handshake over NIXL compares the whole version."""
    world = await make_world(order, d={"version": "0.32.1"}, warm=False, **ON)
    await found(world, Verdict.BROKEN, Cause.VERSION)
    (broken,) = world.gateway.prober.finding.broken
    assert (broken.prefill, broken.decode) == (world.endpoint(world.p).name, world.endpoint(world.d).name)
    assert broken.seen == "the prefill engine runs vLLM 0.32.0, the decode engine 0.32.1"
    assert (await world.complete()).text == Shape().expected()
    assert await world.outcomes() == {"whole": 1}
    assert world.p.counts.legs["prefill"] == world.p.counts.handshakes_refused == 0


async def test_a_prefill_without_a_connector(order: Order, make_world: MakeWorld) -> None:
    world = await make_world(order, sim={"lease_seconds": 0.5}, gateway=False)
    world.allowed.expired = True
    world.fault(world.p, FaultKind.NO_PARAMS, count=None)
    await world.start_gateway(warm=False, **ON)
    await found(world, Verdict.BROKEN, Cause.NO_CONNECTOR)
    world.p.faults.clear()
    await found(world, Verdict.VERIFIED)


@pytest.mark.parametrize("missing", [Role.PREFILL, Role.DECODE])
@pytest.mark.parametrize(
    ("connector", "order"),
    [
        ("NIXL", Order.PREFILL_FIRST),
        ("NIXL", Order.DECODE_FIRST),
        ("Mooncake", Order.CONCURRENT),
        ("SharedStorage", None),
    ],
)
async def test_an_engine_without_a_connector(
    connector: str, order: Order | None, missing: Role, make_world: MakeWorld, tmp_path: Path
) -> None:
    """Like vLLM it ignores transfer parameters: D computes every prompt, and P hands nothing over."""
    order = order or Order.PREFILL_FIRST
    storage = tmp_path if connector == "SharedStorage" else None
    world = await make_world(
        *(order, 1, 1),
        **{missing[0]: {"role": Role.AGGREGATED}},
        sim={"lease_seconds": 0.5},
        connector=connector,
        storage=storage,
        gateway=False,
    )
    world.allowed.violations = {Violation.PARAMS_AT_AGGREGATED}
    world.allowed.expired = True
    pair = ((world.p, Role.PREFILL), (world.d, Role.DECODE))
    specs = tuple(replace(spec_of(engine, order), role=role) for engine, role in pair)
    await world.start_gateway(warm=False, endpoints=specs, **ON)
    await found(world, Verdict.BROKEN, Cause.NO_CONNECTOR)
    (broken,) = world.gateway.prober.finding.broken
    assert f"the {missing} engine runs without a KV connector" in broken.sentence


async def test_a_broken_pair_and_its_repair_are_found(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """P announces an address that is not its own: D computes every prompt, and clients see only latency."""
    world = await make_world(Order.PREFILL_FIRST, 1, 2, sim={**RECOMPUTE, "lease_seconds": 0.5}, **ON)
    world.allowed.expired = True
    await found(world, Verdict.VERIFIED)
    station = world.p.station
    original = station.params_of
    monkeypatch.setattr(
        type(station),
        "params_of",
        lambda self, seq: {**original(seq), "remote_host": "127.0.0.9", "remote_engine_id": "x"},
    )
    await found(world, Verdict.BROKEN, Cause.SIDE_CHANNEL_HOST)
    monkeypatch.undo()
    await found(world, Verdict.VERIFIED)


async def test_a_prefill_that_is_unreachable(make_world: MakeWorld) -> None:
    """P's side channel is closed. The remaining cause are the ports."""
    world = await make_world(Order.PREFILL_FIRST, sim={**RECOMPUTE, "lease_seconds": 0.5}, **ON)
    world.allowed.expired = True
    await found(world, Verdict.VERIFIED)
    await world.p.station.channel.close()
    world.d.station.handshaken.clear()
    await found(world, Verdict.BROKEN, Cause.PORTS)


async def test_engines_of_different_orders(make_world: MakeWorld) -> None:
    """D answers an error, so its port is open: the finding quotes it, and names the wiring as the cause."""
    world = await make_world(Order.PREFILL_FIRST, p={"order": Order.CONCURRENT}, sim=SHORT, gateway=False)
    world.allowed.expired = True
    world.allowed.violations = set(Violation)
    await world.start_gateway(warm=False, **ON)
    await found(world, Verdict.BROKEN, Cause.HANDOFF)
    (broken,) = world.gateway.prober.finding.broken
    assert broken.seen == f"the hand-off failed at {world.endpoint(world.d).name}: status 500: Internal server error"
    assert broken.sentence.partition("; ")[2].startswith("either a port between the two is blocked")


async def test_a_probe_before_a_restart_is_outdated(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST, verification=Verification(period_seconds=900))
    await found(world, Verdict.VERIFIED)
    (pair,) = world.gateway.prober.describe()["pairs"]
    assert pair["outdated"] is False
    records = world.gateway.prober._records
    names, last = next(iter(records.items()))
    records[names] = replace(last, generations=(last.generations[0] - 1, last.generations[1]))
    (pair,) = world.gateway.prober.describe()["pairs"]
    assert pair["outdated"] is True


async def test_kv_of_something_else_shows_in_the_text(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world = await make_world(Order.PREFILL_FIRST, **ON)
    await found(world, Verdict.VERIFIED)
    world.allowed.violations = {Violation.FOREIGN_KV}
    load = world.d.connector.load

    async def foreign(seq: Sequence) -> None:
        await load(seq)
        seq.digest = "0" * 32

    monkeypatch.setattr(world.d.connector, "load", foreign)
    await found(world, Verdict.BROKEN, Cause.WRONG_KV)
    assert world.gateway.prober.results[record.Result.WRONG_TEXT] >= 2, "one may be chance"


@pytest.mark.parametrize("direct", [False, True], ids=["own-requests", "requests-of-others"])
async def test_a_decode_that_is_too_busy_proves_nothing(
    direct: bool, make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_scraper, "PAUSE_SECONDS", 0.05)
    one_by_one = {"max_running": 1, "decode_token_seconds": 0.02}
    world = await make_world(Order.PREFILL_FIRST, d=one_by_one, sim={"lease_seconds": 5.0}, **ON)
    world.allowed.expired = True
    await found(world, Verdict.VERIFIED)
    monkeypatch.setattr(attempt, "LEG_SECONDS", 0.3)
    shape, results = Shape(stream=True), world.gateway.prober.results
    sent = world.direct(world.d, shape, tokens=2000) if direct else world.complete(shape, tokens=2000)
    request = asyncio.create_task(sent)
    await eventually(lambda: world.d.counts.running_now, what="D computes")
    busy = results[record.Result.BUSY]
    await eventually(lambda: results[record.Result.BUSY] > busy + UNANSWERED_PROBES, what="more than an idle D may")
    assert not request.done()
    assert world.gateway.prober.finding.verdict is Verdict.VERIFIED
    assert not any((await world.state())["ejections"].values())
    request.cancel()


async def test_a_decode_that_answers_only_alone(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt, "LEG_SECONDS", 0.3)
    world = await make_world(Order.PREFILL_FIRST, sim={"lease_seconds": 1.0}, **ON)
    world.allowed.expired = True
    await found(world, Verdict.VERIFIED)
    world.d.faults.add(FaultKind.HANG_BEFORE_HEAD, count=None, leg=Leg.DECODE)
    await found(world, Verdict.BROKEN, Cause.PORTS)


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
async def test_an_idle_engine_that_answers_no_probe_is_not_verified(
    role: Role, make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No pair of it is, even one that was not probed meanwhile. The age of the last proof grows until it answers."""
    prefill = role is Role.PREFILL
    world = await make_world(Order.PREFILL_FIRST, *((1, 2) if prefill else (2, 1)), sim={"lease_seconds": 5.0}, **ON)
    world.allowed.expired = True
    transfer_prober = world.gateway.prober
    await eventually(lambda: transfer_prober.report()["pairs"]["verified"] == 2, what="both pairs")
    monkeypatch.setattr(attempt, "LEG_SECONDS", 1.0)
    engine = world.p if prefill else world.d
    engine.faults.add(FaultKind.HANG_BEFORE_HEAD, count=None)
    await found(world, Verdict.UNKNOWN)
    why = f"the {role} engine has left {UNANSWERED_PROBES} consecutive probes unanswered"
    assert transfer_prober.finding.why.endswith(f": {why}")
    await eventually(lambda: min(pair["ageSeconds"] for pair in transfer_prober.describe()["pairs"]) >= 2)
    assert {(pair["verdict"], pair["seen"]) for pair in transfer_prober.describe()["pairs"]} == {("unknown", why)}
    assert transfer_prober.report()["pairs"] == {"verified": 0, "broken": 0, "unknown": 2}
    assert world.endpoint(engine).warm, "it answers /health, and requests may find out more"
    engine.faults.clear()
    monkeypatch.setattr(attempt, "LEG_SECONDS", 5.0)
    await eventually(lambda: transfer_prober.report()["pairs"]["verified"] == 2, what="both pairs again")
    assert transfer_prober.finding.verdict is Verdict.VERIFIED


@pytest.mark.parametrize(
    ("kind", "second"), [(FaultKind.HANG_BEFORE_HEAD, False), (FaultKind.STATUS, True)], ids=["hangs", "answers-500"]
)
async def test_a_prefill_that_hangs_gets_no_second_request(
    kind: FaultKind, second: bool, make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take the probe's time twice. P's time alone is not counted as D's."""
    monkeypatch.setattr(attempt, "LEG_SECONDS", 0.3)
    world = await make_world(Order.PREFILL_FIRST, sim={"lease_seconds": 1.0}, **ON)
    world.allowed.expired = True
    await found(world, Verdict.VERIFIED)
    transfer_prober = world.gateway.prober
    counted = sum(transfer_prober.phases["alone"].counts)
    world.fault(world.p, kind, count=None)
    busy = transfer_prober.results[record.Result.BUSY]
    await eventually(lambda: transfer_prober.results[record.Result.BUSY] >= busy + 2)
    alone = [seen for seen in world.p.seen if "logprobs" in seen.body and "cache_salt" in seen.body]
    assert bool(alone) is second
    assert sum(transfer_prober.phases["alone"].counts) == counted


async def test_a_decode_that_does_not_report_cached_tokens(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST, d={"prompt_tokens_details": False}, **ON)
    await found(world, Verdict.UNKNOWN, Cause.NOT_REPORTED)


async def test_prompts_that_are_too_long_are_shortened(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST, sim={"max_model_len": 100}, **ON)
    await found(world, Verdict.VERIFIED)


async def test_one_pool_has_nothing_to_verify(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST, 0, 1, d={"role": Role.AGGREGATED}, **ON)
    assert (await world.state())["mode"] == Mode.AGGREGATED
    assert world.gateway.prober.finding.verdict is Verdict.UNKNOWN
    assert world.gateway.prober.describe()["pairs"] == []


async def test_a_waiting_reader_gets_a_change_at_once(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST, d={"prefill_base_seconds": 0.3}, warm=False, **ON)
    url = f"{world.admin}{RESULT_PATH}"
    first = (await world.call("GET", url)).json
    assert first["finding"]["verdict"] == "unknown"
    second = first
    while second["finding"]["verdict"] == "unknown":
        second, before = (await world.call("GET", f"{url}?after={second['stamp']}&wait=20")).json, second
        assert second["stamp"] != before["stamp"], "20 s are not over"
    assert (second["finding"]["verdict"], second["lastSuccess"] is None) == ("verified", False)
    again = (await world.call("GET", f"{url}?after={second['stamp']}&wait=0.05")).json
    assert again["stamp"] == second["stamp"], "no change"
    assert (await world.call("GET", f"{url}?wait=x")).status == 400
    waiting = asyncio.create_task(world.call("GET", f"{url}?after={second['stamp']}&wait=60"))
    await asyncio.sleep(0.05)
    await asyncio.wait_for(world.gateway.prober.stop(), 5.0)
    assert (await asyncio.wait_for(waiting, 5.0)).status == 200, "a gateway that ends lets no reader wait"
