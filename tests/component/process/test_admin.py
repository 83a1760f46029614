"""The admin port reports the same counts as JSON and as metrics."""

from collections.abc import Iterable

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from pdx_api.names import Order
from pdx_cli.bench.load.records import read_timing
from pdx_sim import FaultKind
from tests.component.conftest import MakeWorld
from tests.component.harness import Shape, World


async def _samples(world: World) -> list[Sample]:
    page = (await world.call("GET", f"{world.admin}/metrics")).raw.decode()
    return [sample for family in text_string_to_metric_families(page) for sample in family.samples]


def _values(samples: Iterable[Sample], name: str) -> dict[str, float]:
    return {",".join(sorted(s.labels.values())): s.value for s in samples if s.name == name}


async def test_state_and_metrics_agree(order: Order, make_world: MakeWorld) -> None:
    world = await make_world(order, 1, 2)
    for _ in range(3):
        await world.complete(Shape(stream=True))
    await world.complete(tokens=0)
    await world.complete(n=2)
    await world.post("/v1/completions", b"{")
    world.fault(world.p, FaultKind.DIE_BEFORE_HEAD, count=4)
    world.allowed.stranded = not world.pull
    await world.complete()
    await world.warm()
    state, samples = await world.state(), await _samples(world)
    assert {k: v for k, v in state["outcomes"].items() if v} == {
        "split": 3,
        "whole": 2,
        "refused": 1,
        "refused_by_engine": 1,
    }
    assert _values(samples, "pdx_requests_total") == state["outcomes"]
    assert _values(samples, "pdx_settlements_total") == state["settlements"]
    retries = {reason: count for reason, count in _values(samples, "pdx_retries_total").items() if count}
    assert retries == state["retries"] == {"lost": 1}
    assert _values(samples, "pdx_requests_in_flight") == {"": state["inFlight"]["requests"]}
    phases = _values(samples, "pdx_phase_seconds_count")
    assert phases["total"] == world.sent
    assert phases["handoff"] == 3
    assert phases["prefill"] >= 3
    buckets = [s for s in samples if s.name == "pdx_phase_seconds_bucket" and s.labels["phase"] == "total"]
    assert [s.value for s in buckets] == sorted(s.value for s in buckets)
    assert buckets[-1].labels["le"] == "+Inf"
    endpoints = _values(samples, "pdx_endpoints")
    assert endpoints["Warm,prefill"] == 1
    assert endpoints["Warm,decode"] == 2


async def test_state_describes_endpoints(order: Order, make_world: MakeWorld) -> None:
    world = await make_world(order)
    state = await world.state()
    assert (state["ready"], state["mode"], state["workers"]) == (True, "Disaggregated", 1)
    prefill, decode = state["endpoints"]
    assert (prefill["role"], prefill["state"], prefill["url"]) == ("prefill", "Warm", world.p.url)
    assert (decode["role"], decode["state"], decode["reason"]) == ("decode", "Warm", None)
    assert prefill["engineId"] == (None if world.pull else world.p.engine_id)
    assert (prefill["order"], prefill["connector"], prefill["starts"]) == (order, "NIXL", 1)


async def test_debug_headers_name_engines(order: Order, make_world: MakeWorld) -> None:
    world = await make_world(order, debug_headers=True)
    reply = await world.complete(Shape(stream=True))
    assert reply.headers["x-pdx-prefill"] == world.endpoint(world.p).name
    assert reply.headers["x-pdx-decode"] == world.endpoint(world.d).name
    timing = read_timing(reply.headers["server-timing"])
    assert set(timing) == {"queue", "first", "prefill", "handoff"}
    assert 0 < timing["handoff"] <= timing["first"]
    whole = await world.complete(n=2)
    assert "x-pdx-prefill" not in whole.headers
    assert set(read_timing(whole.headers["server-timing"])) == {"queue", "first"}


async def test_in_flight_is_seen_while_it_lasts(order: Order, make_world: MakeWorld) -> None:
    world = await make_world(order, d={"decode_token_seconds": 0.01})
    reader, writer = await world.raw(Shape(stream=True).body(tokens=500))
    await reader.readuntil(b"data: ")
    state = await world.state()
    assert (state["inFlight"]["requests"], state["inFlight"]["decode"]) == (1, 1)
    assert state["endpoints"][1]["inFlight"] == 1
    writer.close()
