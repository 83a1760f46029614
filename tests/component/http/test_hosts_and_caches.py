"""The header Host, on both servers, and what caches may do with the gateway's own answers."""

import pytest

from pdx_api.names import Order
from tests.component.conftest import MakeWorld
from tests.component.harness import Shape

GOOD = ["gateway", "gateway:8000", "192.0.2.1:80", "[2001:db8::1]:8000", "a_b.example", ""]
BAD = ["user@example.com", "example.com/path", "a.example, b.example", "a b", "a:b", "http://a", "a?b", "a#b"]


@pytest.mark.parametrize("fast", [True, False], ids=["fast", "fallback"])
async def test_a_host_is_a_name_or_an_address(fast: bool, make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST)
    more = {} if fast else {"Expect": "100-continue"}
    for host in GOOD:
        assert (await world.complete(headers={"Host": host, **more})).text == Shape().expected(), host
    for host in BAD:
        url = f"{world.url}{Shape().path}"
        reply = await world.call("POST", url, Shape().body(), {"Host": host, **more})
        assert (reply.status, "Host" in reply.error["message"]) == (400, True), host


async def test_no_cache_answers_for_the_gateway(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST)
    for path in ("/health", "/ready", "/v1/models"):
        reply = await world.call("GET", f"{world.url}{path}")
        assert reply.headers["cache-control"] == "no-store"
        assert ("content-type" in reply.headers) == bool(reply.raw)
