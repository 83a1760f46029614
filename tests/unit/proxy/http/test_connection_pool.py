"""The connections that the pool keeps."""

from types import SimpleNamespace
from typing import Any

import pytest

from pdx_proxy.config.settings import Address
from pdx_proxy.http.upstream.connection_pool import ConnectionPool


async def test_a_connection_that_is_over_at_once_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = ConnectionPool(idle_seconds=1, connect_seconds=1)

    async def create_connection(factory: Any, *_: Any) -> None:
        factory().connection_lost(None)

    monkeypatch.setattr(pool, "_loop", SimpleNamespace(create_connection=create_connection, time=lambda: 0.0))
    connection = await pool.connect(Address("h", 1), "d")
    assert connection.lost is not None
    assert not pool._all
