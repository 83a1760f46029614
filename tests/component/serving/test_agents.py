"""The APIs of coding agents, /v1/messages and /v1/responses, in every wiring: split, or whole with a reason."""

import asyncio
from pathlib import Path
from typing import Any

import anthropic
import pytest

from pdx_api.names import Order
from pdx_proxy.config.settings import Limits
from pdx_proxy.payload.structure import MAX_DEPTH
from pdx_sim import FaultKind, Leg, tokenize
from tests.component.conftest import MakeWorld
from tests.component.harness import AGENT_SHAPES, PROMPT, Reply, Shape, World, eventually
from tests.failure_matrix.row import Wiring

FUNCTION = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False}
STREAM = {shape.agent: shape for shape in AGENT_SHAPES if shape.stream}
PLAIN = {shape.agent: shape for shape in AGENT_SHAPES if not shape.stream}


@pytest.fixture(params=Wiring, ids=str)
def wiring(request: pytest.FixtureRequest) -> Wiring:
    return Wiring(request.param)


@pytest.fixture
async def world(wiring: Wiring, make_world: MakeWorld, tmp_path: Path) -> World:
    return await _wired(make_world, wiring, tmp_path)


async def _wired(make_world: MakeWorld, wiring: Wiring, storage: Path, **more: Any) -> World:
    shared = storage if wiring is Wiring.POOL else None
    return await make_world(wiring.order, storage=shared, connector=wiring.connector, **more)


def _seen(world: World) -> tuple[dict[str, Any], dict[str, Any]]:
    """The bodies of the legs of the last split request, at P and at D."""
    return world.p.seen[-1].body, world.d.seen[-1].body


def _usage(reply: Reply) -> dict[str, Any]:
    """The usage at the end of an answer."""
    if reply.headers["content-type"].startswith("application/json"):
        return dict(reply.json["usage"])
    last = next(each for each in reversed(reply.chunks) if "usage" in each or each.get("response"))
    return dict(last.get("usage") or last["response"]["usage"])


def _tokens(reply: Reply) -> tuple[int, int]:
    """The tokens of the prompt and of the answer. The engines differ in what they have cached."""
    usage = _usage(reply)
    return usage["input_tokens"] + usage.get("cache_read_input_tokens", 0), usage["output_tokens"]


async def test_the_text_equals_one_engines(world: World, agent: Shape) -> None:
    before = world.d.counts.prompt_tokens_external
    reply = await world.complete(agent, tokens=40)
    assert (reply.status, reply.text) == (200, agent.expected(tokens=40))
    own = await world.direct(world.p, agent, tokens=40)
    assert reply.text == own.text
    assert _tokens(reply) == _tokens(own)
    assert world.d.counts.prompt_tokens_external - before >= len(tokenize(PROMPT)) - 16  # a pool has whole blocks
    assert await world.outcomes() == {"split": 1}
    assert reply.done is agent.stream


async def test_both_legs_have_one_id(world: World, agent: Shape) -> None:
    """In a push by it; in all wirings, a client finds the ID of D's leg in its answer."""
    reply = await world.complete(agent, {"X-Request-Id": "client's"}, request_id="resp_" + "0" * 20)
    assert reply.status == 200
    bodies, heads = _seen(world), (world.p.seen[-1].headers, world.d.seen[-1].headers)
    ids = [head["x-request-id"] for head in heads]
    if agent.agent == "responses":
        assert [body["request_id"] for body in bodies] == [f"resp_{one}" for one in ids]
        assert bodies[1]["request_id"].encode() in reply.raw
    else:
        assert "request_id" not in bodies[0] | bodies[1]
        assert ids[1].encode() in reply.raw
    assert len(set(ids)) == (1 if world.gateway.registry.snapshot.prefill[0].identity else 2)


async def test_a_large_body_is_split(make_world: MakeWorld, agent: Shape) -> None:
    """It is read in slices, and its legs are sent in parts."""
    world = await make_world(Order.CONCURRENT, sim={"max_model_len": 1_000_000, "num_blocks": 100_000})
    prompt = PROMPT * 250
    assert (await world.complete(agent, prompt=prompt)).text == agent.expected(prompt)
    assert await world.outcomes() == {"split": 1}


WHOLE: list[Any] = [
    pytest.param({"previous_response_id": "resp_1"}, 404, id="previous_response_id"),
    pytest.param({"background": True}, 400, id="background"),
    pytest.param({"prompt": {"id": "p"}}, 400, id="prompt"),
    pytest.param({"conversation": "conv_1"}, 200, id="conversation"),
    pytest.param({"truncation": "auto"}, 200, id="truncation"),
    pytest.param({"tools": [FUNCTION, {"type": "web_search_preview"}]}, 200, id="server-tool"),
    pytest.param({"tools": [{"type": "mcp", "server_label": "a", "server_url": "b"}]}, 200, id="mcp"),
]


@pytest.mark.parametrize(("members", "status"), WHOLE)
async def test_a_response_that_one_engine_must_serve(
    members: dict[str, Any], status: int, make_world: MakeWorld
) -> None:
    world = await make_world(Order.CONCURRENT)
    legs = world.p.counts.legs.copy()
    body = PLAIN["responses"].body() | members
    reply = await world.post("/v1/responses", body)
    own = await world.call("POST", f"{world.d.url}/v1/responses", body)
    assert (reply.status, own.status) == (status, status)
    assert (reply.text, reply.json.get("error")) == (own.text, own.json.get("error"))
    assert world.p.counts.legs == legs
    assert (await world.state())["notSplit"]["parameters"] == 1


WEATHER: dict[str, Any] = {"tools": [{"name": "weather", "input_schema": {"type": "object"}}]}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_message_that_forces_a_tool_is_whole(stream: bool, make_world: MakeWorld) -> None:
    """P would parse its one token as JSON, answer 400 after its prefill, and keep the KV until the lease ends."""
    world = await make_world(Order.PREFILL_FIRST)
    legs = world.p.counts.legs.copy()
    shape = (STREAM if stream else PLAIN)["messages"]
    reply = await world.complete(shape, tool_choice={"type": "tool", "name": "weather"}, **WEATHER)
    assert reply.status == 200
    if not stream:
        assert [block["type"] for block in reply.json["content"]] == ["tool_use"]
    assert world.p.counts.legs == legs
    assert await world.outcomes() == {"whole": 1}
    assert (await world.state())["notSplit"]["parameters"] == 1


async def test_tools_that_the_client_runs_are_split(world: World) -> None:
    tools = [FUNCTION, {"type": "custom", "name": "a"}, {"type": "local_shell"}]
    assert (await world.complete(PLAIN["responses"], tools=tools)).status == 200
    assert (await world.complete(PLAIN["messages"], tool_choice={"type": "any"}, **WEATHER)).status == 200
    assert await world.outcomes() == {"split": 2}


@pytest.mark.parametrize("kind", ["enabled", "disabled", "adaptive"])
async def test_thinking(kind: str, world: World) -> None:
    """A budget would have to be below P's one token. Other types may change the prompt."""
    thinking = {"type": kind, **({"budget_tokens": 1024} if kind == "enabled" else {})}
    reply = await world.complete(PLAIN["messages"], tokens=1025, thinking=thinking)
    assert (reply.status, await world.outcomes()) == (200, {"split": 1})
    prefill, decode = _seen(world)
    assert prefill.get("thinking") == (None if kind == "enabled" else thinking)
    assert decode["thinking"] == thinking


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_prefill_that_stops_at_its_first_token(
    wiring: Wiring, stream: bool, make_world: MakeWorld, tmp_path: Path
) -> None:
    """/v1/messages has no `ignore_eos`. Mooncake then hands nothing over, and D serves the request alone."""
    world = await _wired(make_world, wiring, tmp_path, sim={"answer_tokens": 1})
    shape = (STREAM if stream else PLAIN)["messages"]
    reply = await world.complete(shape, tokens=8)
    assert (reply.status, reply.text) == (200, shape.expected(tokens=1))
    alone = world.connector == "Mooncake"
    assert await world.outcomes() == ({"whole": 1} if alone else {"split": 1})
    assert (world.report["localPrefills"]["no_kv"], world.report["retries"]) == (int(alone), {})


@pytest.mark.parametrize("agent", ["messages", "responses"])
async def test_mooncakes_prefill_goes_first_for_messages(agent: str, make_world: MakeWorld) -> None:
    """A D that waited for a P that stops at its first token would wait for minutes."""
    world = await make_world(Order.DECODE_FIRST, connector="Mooncake", p={"prefill_base_seconds": 0.5})
    legs = world.d.counts.legs[Leg.DECODE]
    task = asyncio.create_task(world.complete(PLAIN[agent]))
    await eventually(lambda: world.p.counts.running_now, what="P computes")
    assert world.d.counts.legs[Leg.DECODE] - legs == (agent == "responses")
    assert (await task).text == PLAIN[agent].expected()


async def _fails_once(make_world: MakeWorld, kind: FaultKind, **fields: Any) -> World:
    """Two P and two D, of which the first one that gets a leg fails."""
    world = await make_world(Order.PREFILL_FIRST, 2, 2)
    world.allowed.expired = True
    world.decode[1].faults = world.d.faults
    world.fault(world.d, kind, **fields)
    return world


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("agent", ["messages", "responses"])
async def test_an_aborted_answer_is_not_the_clients(agent: str, stream: bool, make_world: MakeWorld) -> None:
    world = await _fails_once(make_world, FaultKind.ABORT)
    shape = (STREAM if stream else PLAIN)[agent]
    reply = await world.complete(shape)
    assert (reply.status, reply.text) == (200, shape.expected())
    assert (await world.outcomes(), world.report["retries"]) == ({"split": 1}, {"abort": 1})
    for engine in world.engines:
        engine.end_leases()


async def test_a_failed_load_of_a_response_is_retried(make_world: MakeWorld) -> None:
    world = await _fails_once(make_world, FaultKind.ERROR_EVENT)
    reply = await world.complete(STREAM["responses"])
    assert (reply.status, reply.text) == (200, STREAM["responses"].expected())
    assert (await world.outcomes(), world.report["retries"]) == ({"split": 1}, {"lost": 1})
    assert reply.raw.count(b"event: response.created") == 1
    for engine in world.engines:
        engine.end_leases()


async def test_a_failed_load_of_a_long_response_is_retried(make_world: MakeWorld) -> None:
    """What vLLM announces repeats the client's instructions and tools, before the engine has the request."""
    world = await _fails_once(make_world, FaultKind.ERROR_EVENT, events=2)
    metadata = {"a": "b" * 1_500_000}
    reply = await world.complete(STREAM["responses"], metadata=metadata)
    assert (reply.status, reply.text) == (200, STREAM["responses"].expected())
    assert reply.raw.count(metadata["a"].encode()) >= 2
    assert (await world.outcomes(), world.report["retries"]) == ({"split": 1}, {"lost": 1})
    for engine in world.engines:
        engine.end_leases()


async def test_anthropics_client_reads_the_gateways_errors(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST, limits=Limits(max_requests_per_client=1))
    client = anthropic.AsyncAnthropic(base_url=world.url, api_key="none", max_retries=0)
    message: Any = {"model": "sim", "max_tokens": 8, "messages": [{"role": "user", "content": "a"}]}
    nested: Any = None
    for _ in range(MAX_DEPTH):
        nested = [nested]
    with pytest.raises(anthropic.BadRequestError) as deep:
        await client.messages.create(**message, extra_body={"deep": nested})
    held = asyncio.create_task(client.messages.create(**message | {"max_tokens": 2000}))
    await eventually(lambda: world.report["inFlight"]["requests"])
    with pytest.raises(anthropic.RateLimitError) as limited:
        await client.messages.create(**message)
    await held
    await eventually(lambda: world.settled)
    world.d.faults.add(FaultKind.STATUS, status=429, retry_after=30)
    with pytest.raises(anthropic.RateLimitError, match="simulated fault"):
        await client.messages.create(**message)
    await eventually(lambda: world.settled)
    with pytest.raises(anthropic.APIStatusError) as busy:
        await client.messages.create(**message)
    await client.close()
    world.sent += 5
    world.allowed.expired = True
    for engine in world.engines:
        engine.end_leases()
    kinds = ["invalid_request_error", "rate_limit_error", "rate_limit_error"]
    for raised, kind in zip((deep, limited, busy), kinds, strict=True):
        found = anthropic.types.ErrorResponse.model_validate(raised.value.body)
        assert found.error.type == kind
        assert found.error.message


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses"])
async def test_errors_are_the_engines(path: str, make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST)
    for body in ({}, {"model": "other", "messages": [], "max_tokens": 1, "input": "a"}, {"input": 7, "messages": 7}):
        reply = await world.post(path, body)
        assert (reply.status, reply.json) == (
            (own := await world.call("POST", f"{world.d.url}{path}", body)).status,
            own.json,
        )
        assert 400 <= reply.status < 500


async def test_tokens_are_counted_by_an_engine(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST)
    body = PLAIN["messages"].body()
    counted = (await world.post("/v1/messages/count_tokens", body)).json
    usage = (await world.post("/v1/messages", body)).json["usage"]
    assert counted["input_tokens"] == usage["input_tokens"] + usage.get("cache_read_input_tokens", 0)
    assert world.d.counts.legs[Leg.DECODE] >= 1
