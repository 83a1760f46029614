"""Several simulated engines behind one HTTP port, as data-parallel ranks of one vLLM are.

A request goes to the rank in its header, and without a header to the next one (vLLM: to the least loaded). Each rank
has its own identity and its own KV. So in push orders D waits for ever if P's leg reaches another rank than D expects.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final

import aiohttp
from aiohttp import web

from pdx_proxy.config.settings import Address
from pdx_sim import SimEngine

_HEADER: Final = "X-data-parallel-rank"


class DataParallel:
    """The port. `pinned` counts requests by the rank in their header; None for requests without the header."""

    def __init__(self, ranks: Sequence[SimEngine]) -> None:
        self._ranks = ranks
        self._cursor = 0
        self.pinned: Counter[int | None] = Counter()

    async def start(self) -> Address:
        """Serve; return the address."""
        self._session = aiohttp.ClientSession(auto_decompress=False)
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{path:.*}", self._forward)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.5)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        return Address("127.0.0.1", int(self._runner.addresses[0][1]))

    async def stop(self) -> None:
        """Stop the port, not the ranks."""
        await self._runner.cleanup()
        await self._session.close()

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        named = request.headers.get(_HEADER)
        rank = None if named is None else int(named)
        self.pinned[rank] += 1
        self._cursor += 1
        engine = self._ranks[self._cursor % len(self._ranks) if rank is None else rank]
        headers = {name: value for name, value in request.headers.items() if name != "Content-Length"}
        url = f"{engine.url}{request.path_qs}"
        async with self._session.request(request.method, url, data=await request.read(), headers=headers) as answer:
            kept = {name: answer.headers[name] for name in ("Content-Type",) if name in answer.headers}
            response = web.StreamResponse(status=answer.status, headers=kept)
            await response.prepare(request)
            async for piece in answer.content.iter_any():
                await response.write(piece)
            await response.write_eof()
            return response
