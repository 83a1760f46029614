"""API keys: the gateway checks the clients' and sends the engines' key with every leg."""

import asyncio
from hashlib import sha256
from pathlib import Path

import pytest

from pdx_api.names import Order
from pdx_api.settings.gateway import Keys
from pdx_proxy.admission import api_keys as keys_module
from pdx_proxy.config.settings import Address, Limits, Settings
from pdx_proxy.health.warm_up import explain
from pdx_proxy.http.upstream.failures import BadAnswer, ConnectFailure, Reason
from pdx_proxy.process.main import run
from tests.component.conftest import MakeWorld
from tests.component.harness import Shape, World, eventually, request_of

ALICE = {"Authorization": "Bearer alice-key"}
BOB = {"x-api-key": "bob-key"}


def _line(name: str) -> str:
    return f"sha256:{sha256(f'{name}-key'.encode()).hexdigest()} {name}\n"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Keys:
    monkeypatch.setattr(keys_module, "_CHECK_SECONDS", 0.02)
    (tmp_path / "clients").write_text(_line("alice") + _line("bob"))
    (tmp_path / "engines").write_text("engine-key\n")
    return Keys(clients=str(tmp_path / "clients"), engines=str(tmp_path / "engines"))


def _seen(world: World) -> list[dict[str, str]]:
    return [each.headers for engine in world.engines for each in engine.seen]


async def test_who_may_use_it(order: Order, shape: Shape, files: Keys, make_world: MakeWorld) -> None:
    world = await make_world(order, keys=Keys(clients=files.clients))
    before = [engine.counts.requests.total() for engine in world.engines]
    for wrong in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "alice-key"}, {"x-api-key": "alice"}):
        reply = await world.complete(shape, wrong)
        assert (reply.status, reply.json) == (401, {"error": "Unauthorized"})
        assert reply.headers["www-authenticate"] == "Bearer"
        for path in ("/v1/models", "/v1/models/sim"):
            assert (await world.call("GET", f"{world.url}{path}", headers=wrong)).status == 401
    assert [engine.counts.requests.total() for engine in world.engines] == before
    for path in ("/health", "/ready"):
        assert (await world.call("GET", f"{world.url}{path}")).status == 200
    for right in (ALICE, BOB):
        assert (await world.complete(shape, right)).text == shape.expected()
    assert (await world.call("GET", f"{world.url}/v1/models", headers=BOB)).status == 200
    assert await world.outcomes() == {"refused": 4, "split": 2}
    assert not [headers for headers in _seen(world) if {"authorization", "x-api-key"} & headers.keys()]


async def test_without_keys_the_clients_goes_on(make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST, sim={"api_key": "alice-key"}, warm=False)
    await eventually(lambda: all(engine.counts.unauthorized for engine in world.engines), 5.0, "warm-ups are refused")
    assert not world.gateway.registry.snapshot.decode
    world = await make_world(Order.PREFILL_FIRST)
    assert (await world.complete(headers=ALICE)).status == 200
    shown = [headers["authorization"] for headers in _seen(world) if "authorization" in headers]
    assert shown == ["Bearer alice-key"] * 2


@pytest.mark.parametrize("order", [Order.PREFILL_FIRST, Order.CONCURRENT])
@pytest.mark.parametrize("key", [None, "another-key"])
async def test_a_missing_key_of_the_engines_is_named(
    key: str | None, order: Order, tmp_path: Path, make_world: MakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """At warm-up: in the log, once for each engine, and in the state of the endpoint."""
    keys = Keys()
    if key is not None:
        (tmp_path / "engine").write_text(key)
        keys = Keys(engines=str(tmp_path / "engine"))
    world = await make_world(order, decode=2, sim={"api_key": "engine-key"}, keys=keys, warm=False)
    reasons: set[str] = set()

    def found() -> bool:
        reasons.clear()
        reasons.update(str(e.reason) for e in world.gateway.registry.snapshot.everything)
        return all("--engine-key" in reason for reason in reasons)

    await eventually(found)
    have = "requires an API key, and the gateway has none" if key is None else "refuses the key that the gateway has"
    assert all("status 401" in reason and have in reason and "apiKeySecretRef" in reason for reason in reasons)
    shown = [endpoint["reason"] for endpoint in (await world.state())["endpoints"]]
    assert all("--engine-key" in reason for reason in shown)
    await eventually(lambda: all(engine.counts.unauthorized >= 2 for engine in world.engines))
    assert sum("--engine-key" in record.getMessage() for record in caplog.records) == 3, "once for each engine"
    world.allowed.loop_errors = True


@pytest.mark.parametrize(("status", "named"), [(401, True), (403, True), (400, False), (404, False), (500, False)])
def test_which_failures_of_a_warm_up_name_the_key(status: int, named: bool) -> None:
    failure = BadAnswer("d", f"status {status}", Reason.STATUS, status, b"")
    for has_key in (False, True):
        assert ("--engine-key" in explain(failure, has_key=has_key)) is named
    assert explain(ConnectFailure("d", "refused"), has_key=False) == "d: refused"


async def test_the_engines_key_is_on_every_leg(order: Order, files: Keys, make_world: MakeWorld) -> None:
    """Warm-ups, both legs, and the settlement of a hand-off whose client has left."""
    sim = {"api_key": "engine-key"}
    slow = {"prefill_base_seconds": 0.05, **sim}
    world = await make_world(order, sim=sim, p=slow, keys=Keys(engines=files.engines))
    assert (await world.complete(headers=ALICE)).text == Shape().expected()
    assert [each["id"] for each in (await world.call("GET", f"{world.url}/v1/models")).json["data"]] == ["sim"]
    _, writer = await world.raw(Shape().body(tokens=500), head="Authorization: Bearer alice-key\r\n")
    await eventually(lambda: world.d.counts.running_now)
    writer.close()
    _, writer = await world.raw(Shape().body("another"))
    await eventually(lambda: world.p.counts.running_now)
    writer.close()
    await eventually(lambda: world.settled)
    assert all(engine.counts.unauthorized == 0 for engine in world.engines)
    assert {headers["authorization"] for headers in _seen(world)} == {"Bearer engine-key"}


async def test_keys_change_while_it_serves(files: Keys, make_world: MakeWorld, tmp_path: Path) -> None:
    world = await make_world(Order.PREFILL_FIRST, keys=files)
    assert (await world.complete(headers=ALICE)).status == 200
    (tmp_path / "clients").write_text(_line("carol"))
    (tmp_path / "engines").write_text("another-key")

    async def status(headers: dict[str, str]) -> int:
        return (await world.complete(headers=headers)).status

    async with asyncio.timeout(5):
        while await status(ALICE) != 401:
            pass
        while _seen(world)[-1]["authorization"] != "Bearer another-key":
            assert await status({"x-api-key": "carol-key"}) == 200
    for path in ("clients", "engines"):
        (tmp_path / path).unlink()
    await asyncio.sleep(0.1)
    assert await status({"x-api-key": "carol-key"}) == 200


async def test_a_key_has_a_limit_of_its_own(files: Keys, make_world: MakeWorld) -> None:
    world = await make_world(
        Order.PREFILL_FIRST, d={"decode_token_seconds": 0.02}, keys=files, limits=Limits(max_requests_per_client=1)
    )
    first = asyncio.create_task(world.complete(headers=ALICE, tokens=20))
    await eventually(lambda: world.d.counts.running_now)
    assert (await world.complete(headers=ALICE)).status == 429
    assert (await world.complete(headers=BOB)).status == 200
    assert (await first).status == 200


async def test_every_worker_has_the_keys(files: Keys, make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST, sim={"api_key": "engine-key"}, keys=files, workers=2)
    close = {"Connection": "close"}
    for _ in range(6):
        assert (await world.complete(headers={**BOB, **close})).status == 200
        assert (await world.complete(headers=close)).status == 401


async def test_the_body_of_an_unauthorized_client_is_not_read(files: Keys, make_world: MakeWorld) -> None:
    world = await make_world(Order.PREFILL_FIRST, keys=files)
    reader, writer = await asyncio.open_connection(world.gateway.listen.host, world.gateway.listen.port)
    writer.write(request_of({}).partition(b"Content-Length")[0] + b"Content-Length: 60000000\r\n\r\n{")
    world.sent += 1
    answer = await reader.read(-1)
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"\r\nconnection: close\r\n" in answer
    assert answer.endswith(b'{"error":"Unauthorized"}')
    writer.close()


def test_a_missing_file_is_one_line_of_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    free = Address("127.0.0.1", 0)
    path = str(tmp_path / "nothing")
    assert run(Settings(listen=free, admin=free, keys=Keys(clients=path))) == 2
    assert capsys.readouterr().err == f"pdx gateway: cannot use the key file {path}: No such file or directory.\n"
