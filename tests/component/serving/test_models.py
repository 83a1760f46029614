"""`/v1/models`, answered from what engines report."""

import json

import openai
import pytest

from pdx_api.names import Order
from pdx_proxy.health import engine_scraper
from tests.component.conftest import MakeWorld
from tests.component.harness import World


def _page(*names: str) -> bytes:
    cards = [{"id": name, "object": "model", "created": 1, "owned_by": "vllm", "parent": None} for name in names]
    return json.dumps({"object": "list", "data": cards}).encode()


def _report(world: World, *reports: tuple[str, ...]) -> None:
    """Let the D's report these models, as the gateway reads them every ten seconds."""
    for engine, names in zip(world.decode, reports, strict=True):
        world.gateway.endpoint_manager.set_models(world.endpoint(engine), _page(*names))


async def _names(world: World) -> list[str]:
    reply = await world.call("GET", f"{world.url}/v1/models")
    assert (reply.status, reply.json["object"]) == (200, "list")
    return [each["id"] for each in reply.json["data"]]


async def test_models_are_those_that_engines_report(order: Order, make_world: MakeWorld) -> None:
    world = await make_world(order)
    requests = [engine.counts.requests.total() for engine in world.engines]
    reply = await world.call("GET", f"{world.url}/v1/models", headers={"X-Request-Id": "mine"})
    direct = await world.call("GET", f"{world.d.url}/v1/models")
    found, expected = reply.json, direct.json
    for card in (*found["data"], *expected["data"]):
        assert card.pop("created") > 0
    assert (reply.status, found) == (200, expected), "every member is the engine's"
    assert reply.headers["x-request-id"] == "mine"
    assert [engine.counts.requests.total() for engine in world.engines] == requests, "no engine is involved"


async def test_the_list_is_a_union_and_follows_the_engines(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST, decode=2)
    _report(world, ("sim", "sql"), ("sim", "law"))
    assert await _names(world) == ["sim", "sql", "law"]
    _report(world, ("sim",), ("sim", "law"))
    assert await _names(world) == ["sim", "law"], "an adapter that was unloaded is gone"
    world.gateway.endpoint_manager.set_models(world.endpoint(world.d), b"not a page")
    assert await _names(world) == ["sim", "law"], "an engine that does not report keeps its models"


async def test_a_model_that_no_engine_can_serve_is_omitted(make_world: MakeWorld) -> None:
    """Its D is lost; then the other one, so that no engine is ready."""
    world = await make_world(Order.PREFILL_FIRST, decode=2)
    _report(world, ("sim", "sql"), ("sim", "law"))
    client = openai.AsyncOpenAI(base_url=f"{world.url}/v1", api_key="none", max_retries=0)
    assert (await client.models.retrieve("law")).id == "law"
    world.gateway.endpoint_manager.update([each.spec for each in world.gateway.registry.snapshot.everything[:-1]])
    assert await _names(world) == ["sim", "sql"]
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("law")
    world.gateway.endpoint_manager.update([])
    reply = await world.call("GET", f"{world.url}/v1/models")
    assert (reply.status, reply.headers["retry-after"], reply.error["code"]) == (503, "1", 503)
    await client.close()


@pytest.mark.parametrize("name", ["sim", "Qwen/Qwen3-8B", "sql-v2:a.b", "a b", "größe"])
async def test_one_model(name: str, make_world: MakeWorld) -> None:
    """Names with slashes too, as clients encode them and as they do not."""
    world = await make_world(Order.PREFILL_FIRST)
    _report(world, ("other", name))
    client = openai.AsyncOpenAI(base_url=f"{world.url}/v1", api_key="none", max_retries=0)
    assert (await client.models.retrieve(name)).id == name
    assert name in [model.id async for model in client.models.list()]
    await client.close()
    reply = await world.call("GET", f"{world.url}/v1/models/{name}?a=b")
    assert (reply.status, reply.json["id"]) == (200, name)


async def test_a_model_that_does_not_exist(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST)
    reply = await world.call("GET", f"{world.url}/v1/models/none")
    expected = {"message": "The model `none` does not exist.", "type": "NotFoundError", "param": "model", "code": 404}
    assert (reply.status, reply.error) == (404, expected), "vLLM's error for an unregistered model"
    reply = await world.call("POST", f"{world.url}/v1/models/sim", {})
    assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD")


async def test_engines_are_read_again(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adapters come and go while engines run."""
    world = await make_world(Order.PREFILL_FIRST)
    _report(world, ("sim", "sql"))
    assert await _names(world) == ["sim", "sql"]
    monkeypatch.setattr(engine_scraper, "SAMPLE_SECONDS", 0.0)
    await world.gateway.scraper.scrape_all()
    assert await _names(world) == ["sim"], "what the engine reports"


async def test_a_worker_process_gets_the_models(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST, workers=2)
    assert [await _names(world) for _ in range(4)] == [["sim"]] * 4


@pytest.mark.parametrize(
    "member",
    [
        *("9" * 23, "-" + "9" * 40, "9" * 5_000, r'"\ud800"', json.dumps("a" * 70_000)),
        *("[" * 600 + "]" * 600, '{"a":' * 600 + "0" + "}" * 600),
    ],
)
async def test_no_model_of_one_engine_spoils_the_list(member: str, make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST, decode=2)
    _report(world, ("sim",), ("sim", "law"))
    page = f'{{"data":[{{"id":"odd","x":{member}}}]}}'.encode()
    world.gateway.endpoint_manager.set_models(world.endpoint(world.d), page)
    assert "law" in await _names(world)
