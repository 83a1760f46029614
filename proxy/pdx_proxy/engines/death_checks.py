"""Death checks: whether the engine of a failed leg has died, asked before the request goes to another engine.

vLLM often answers 500 before its process is gone. So an engine lives only if it answers /health, and the connection of
this answer is open a moment later.
"""

import asyncio
from collections.abc import Iterable
from typing import Final

from pdx_proxy.endpoints.endpoint import Endpoint, Start
from pdx_proxy.engines.upstreams import Engines
from pdx_proxy.http.messages import request_head
from pdx_proxy.http.upstream.failures import (
    BadAnswer,
    ConnectFailure,
    ConnectTimeout,
    EngineBusy,
    EngineFailure,
    LostConnection,
    unready,
)

_SECONDS: Final = 1.0
"""For the answer. An engine that does not answer in time is not dead."""
_STEADY_SECONDS: Final = 0.1
"""How long its connection must stay open."""
_QUERIES: Final = 2
"""An engine that closes the connection is queried again."""
_MEMORY_SECONDS: Final = 1.0
"""How long a death answers further checks of the same start. All requests of a dead engine fail at once."""
_DEAD: Final = 503
"""What vLLM answers when its EngineCore has died (entrypoints/serve/instrumentator/health.py)."""


def may_have_died(failure: EngineFailure) -> bool:
    """Whether the failure of a leg may mean that its engine died. Pure.

    It failed, or the connection was lost. A leg may also be sent, lost, and then find no engine (see `Leg`).
    """
    if isinstance(failure, EngineBusy | ConnectTimeout):
        return False
    return isinstance(failure, LostConnection | BadAnswer | ConnectFailure)


class DeathChecks:
    """Owner of the checks that run: one for each engine."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines
        self._checks: dict[Start, asyncio.Task[bool]] = {}
        self._died: dict[Start, float] = {}
        """When engines were found dead."""

    async def among(self, endpoints: Iterable[Endpoint]) -> frozenset[str]:
        """Return the names of the engines that have died."""
        checked = list(endpoints)
        found = await asyncio.gather(*map(self.died, checked))
        return frozenset(endpoint.name for endpoint, died in zip(checked, found, strict=True) if died)

    async def died(self, endpoint: Endpoint) -> bool:
        """Whether the engine has died, which is then reported to the control side."""
        start, now = endpoint.start, self._engines.clock()
        self._died = {each: at for each, at in self._died.items() if now - at < _MEMORY_SECONDS}
        if start in self._died:
            return True
        earlier = self._checks.get(start)
        if earlier is not None and await asyncio.shield(earlier):
            return True  # if it had found the engine alive, that might have been before this leg failed
        return await asyncio.shield(self._checks.get(start) or self._begin(endpoint))

    def _begin(self, endpoint: Endpoint) -> "asyncio.Task[bool]":
        start = endpoint.start
        task = self._checks[start] = asyncio.get_running_loop().create_task(self._check(endpoint))
        task.add_done_callback(lambda _: self._checks.pop(start, None))
        return task

    async def _check(self, endpoint: Endpoint) -> bool:
        for _ in range(_QUERIES):
            died = await self._query(endpoint)
            if died is None:
                continue
            if died:
                self._died[endpoint.start] = self._engines.clock()
                self._engines.observer.suspect(endpoint, LostConnection(endpoint.name, "has died"))
            return died
        return False

    async def _query(self, endpoint: Endpoint) -> bool | None:
        """Whether the engine has died; None if it has answered, and has then closed the connection.

        The leg's observer must not receive this answer: one of /health ends no series of errors.
        """
        pool = self._engines.pool
        try:
            async with asyncio.timeout(_SECONDS):
                connection = await pool.connect(endpoint.address, endpoint.name)
                try:
                    connection.send(request_head("GET", "/health", endpoint.host, (), 0, pool.authorization), b"")
                    answer = await connection.whole()
                    if answer.status == _DEAD:
                        return unready(endpoint.name, answer.document) is None
                    await asyncio.sleep(_STEADY_SECONDS)
                    return None if connection.lost is not None else False
                finally:
                    connection.close()
        except (TimeoutError, ConnectTimeout):
            return False
        except ConnectFailure as failure:
            return isinstance(failure.__cause__, ConnectionError)  # the gateway itself may have no port or file left
        except EngineFailure:
            return True
