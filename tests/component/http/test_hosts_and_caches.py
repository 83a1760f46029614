"""The header Host, on both servers, and what caches may do with the gateway's own answers."""

import asyncio

import pytest

from pdx_api.names import Order
from tests.component.conftest import MakeWorld
from tests.component.harness import Shape

GOOD = ["gateway", "gateway:8000", "192.0.2.1:80", "[2001:db8::1]:8000", "a_b.example", "a%41b", ""]
BAD = [
    "user@example.com",
    "example.com/path",
    "a.example, b.example",
    "a b",
    "a:b",
    "http://a",
    "a?b",
    "a#b",
    "a%zz",
    "a%4",
]


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


@pytest.mark.parametrize("host", BAD)
async def test_a_target_names_such_a_host_too(host: str, make_world: MakeWorld) -> None:
    """Clients send whole URLs to a proxy, and then the header Host does not count (RFC 9112, 3.2.2)."""
    world = await make_world(Order.PREFILL_FIRST)
    for name, status in (("gateway:8000", b"200"), (host, b"40")):
        reader, writer = await asyncio.open_connection(world.gateway.listen.host, world.gateway.listen.port)
        writer.write(f"GET http://{name}/health HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert (await reader.readline()).split()[1].startswith(status)
        writer.close()


async def test_no_cache_answers_for_the_gateway(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST)
    world.sent += 1
    for path in ("/health", "/ready", "/v1/models", "/version"):
        reply = await world.call("GET", f"{world.url}{path}")
        assert reply.headers["cache-control"] == "no-store"
        assert ("content-type" in reply.headers) == bool(reply.raw)
