"""A leg that is lost on a kept connection: sent once more if the engine cannot have begun it, and never later."""

import asyncio

import pytest

from pdx_api.names import Role
from pdx_proxy.balancing.load import Load
from pdx_proxy.config.settings import Address, EndpointSpec
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.engines.leg import Leg
from pdx_proxy.engines.outlier_detection import OutlierDetector
from pdx_proxy.http.upstream.connection import Connection
from pdx_proxy.http.upstream.connection_pool import Pool
from pdx_proxy.http.upstream.failures import DeadlineExceeded, LostConnection
from tests.unit.proxy.http.test_connection import EMPTY, Wire

DECODE = Endpoint(EndpointSpec(Address("d", 1), Role.DECODE))


class Kept(Pool):
    """Has one kept connection, and makes new ones to engines that answer at once."""

    def __init__(self) -> None:
        super().__init__(idle_seconds=60.0, connect_seconds=1.0)
        self.kept = self._connected()
        self.kept.used = True
        self.made = 0

    def _connected(self) -> Connection:
        connection = Connection(DECODE.name, self._loop)
        connection.connection_made(Wire())
        return connection

    def take(self, endpoint: Endpoint) -> Connection | None:
        return self.kept

    async def connect(self, endpoint: Endpoint) -> Connection:
        self.made += 1
        connection = self._connected()
        self._loop.call_soon(connection.data_received, EMPTY)
        return connection


@pytest.fixture
async def pool() -> Kept:
    return Kept()


async def _sent(pool: Kept) -> Leg:
    leg = Leg(pool, Load(), DECODE, OutlierDetector(5, lambda _: None))
    await leg.connect()
    leg.send("POST", "/v1/completions", (), b"{}")
    return leg


async def test_what_is_lost_at_once_is_sent_again(pool: Kept) -> None:
    leg = await _sent(pool)
    pool.kept.connection_lost(None)
    assert (await leg.whole(5.0)).status == 200
    assert pool.made == 1
    leg.end()


async def test_what_nobody_wants_any_more_is_not_sent_again(pool: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    leg, connect = await _sent(pool), pool.connect

    async def while_the_client_leaves(endpoint: Endpoint) -> Connection:
        leg.half_close()
        return await connect(endpoint)

    monkeypatch.setattr(pool, "connect", while_the_client_leaves)
    pool.kept.connection_lost(None)
    with pytest.raises(LostConnection, match="nobody wants it"):
        await leg.whole(5.0)
    assert pool.made == 1
    assert not leg.connection.reusable, "it is closed with the leg"
    leg.end()


async def test_what_is_lost_behind_an_earlier_wait_is_not(pool: Kept) -> None:
    """At once is counted from the sending: the engine has had the request since, however short the present wait is."""
    leg = await _sent(pool)
    with pytest.raises(DeadlineExceeded):
        await leg.head(0.15)
    asyncio.get_running_loop().call_soon(pool.kept.connection_lost, None)
    with pytest.raises(LostConnection):
        await leg.opened(5.0)
    assert pool.made == 0
    leg.end()
