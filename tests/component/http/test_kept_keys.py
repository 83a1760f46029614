"""What a gateway keeps of requests that are answered: no client's key."""

import asyncio
import gc
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from types import CoroutineType, FrameType

import pytest

from pdx_api.names import Order
from pdx_api.settings.gateway import Keys
from pdx_proxy.config.settings import Address
from pdx_proxy.http.downstream.exchange import Exchange, answer
from pdx_proxy.http.downstream.listener import Listener
from pdx_proxy.process.workers import address_of, bind
from tests.component.conftest import MakeWorld
from tests.component.harness import Shape, request_of

PATHS = pytest.mark.parametrize("path", ["/v1/completions", "/tokenize"], ids=["fast", "fallback"])


@pytest.fixture(autouse=True)
def short_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pdx_proxy.http.downstream.listener._SWEEP_SECONDS", 0.02)


@PATHS
@pytest.mark.parametrize("line", ["Authorization: Bearer %s", "x-api-key: %s", "Cookie: session=%s", "X-Own: %s"])
async def test_an_open_connection_keeps_no_key(path: str, line: str) -> None:
    """A moment after the answer, no object contains the key, although the client stays connected."""
    key = f"kept-{line[0]}-{path[-1]}"

    async def handle(exchange: Exchange) -> None:
        await exchange.body()
        answer(exchange, 200, b"{}", {})

    sock = bind(Address("127.0.0.1", 0), shared=False)
    listener = Listener(handle, max_body_bytes=1000, send_seconds=60.0)
    await listener.start(sock)
    reader, writer = await asyncio.open_connection(*address_of(sock))
    for _ in range(2):
        writer.write(request_of({}, path, head=f"{line % key}\r\n"))
        answered = await reader.readuntil(b"{}")
        holders = await _last_holders(key)
        assert b"200 OK" in answered
        assert not holders
    writer.close()
    await listener.close(0.0)
    await listener.finish(1.0)


@PATHS
async def test_a_gateway_keeps_no_key(path: str, order: Order, tmp_path: Path, make_world: MakeWorld) -> None:
    """Neither what has served a request nor what counts it keeps the client's key."""
    key = f"alice-{path[-1]}"
    (tmp_path / "clients").write_text(f"sha256:{sha256(key.encode()).hexdigest()} alice\n")
    world = await make_world(order, keys=Keys(clients=str(tmp_path / "clients")))
    world.sent += 1
    reader, writer = await asyncio.open_connection(*world.gateway.listen)
    writer.write(request_of(Shape().body(), path, head=f"Authorization: Bearer {key}\r\n"))
    status = await reader.readline()
    holders = await _last_holders(key)
    writer.close()
    assert b"200 OK" in status
    assert not holders


async def _last_holders(key: str) -> list[object]:
    """What still refers to the key after some sweeps, for which a busy machine may need longer."""
    found: list[object] = []
    for _ in range(40):
        await asyncio.sleep(0.1)
        found = _holders(key)
        if not found:
            break
    return found


def _holders(key: str) -> list[object]:
    """Objects that refer to a text or bytes with this key, without the code that runs the test."""
    gc.collect()
    found: list[object] = []
    for holder in gc.get_objects():
        if isinstance(holder, FrameType):
            continue
        if isinstance(holder, CoroutineType) and holder.cr_code.co_filename == __file__:
            continue
        for part in _parts(holder):
            if (isinstance(part, str) and key in part) or (isinstance(part, bytes) and key.encode() in part):
                found.append(holder)  # noqa: PERF401
    return found


def _parts(holder: object) -> Iterator[object]:
    """What an object refers to, and what is in dictionaries and tuples that the collector does not track."""
    for part in gc.get_referents(holder):
        yield part
        if isinstance(part, dict | tuple) and not gc.is_tracked(part):
            yield from _parts(part)
