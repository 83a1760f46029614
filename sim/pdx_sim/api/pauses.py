"""vLLM's routes that pause an engine, and what it then answers to new requests."""

import asyncio
from typing import Final, Protocol

from aiohttp import web

from pdx_api.vllm.versions import abilities, minor
from pdx_sim.api.delivery import json_answer
from pdx_sim.api.paths import MESSAGES
from pdx_sim.api.request import APIError
from pdx_sim.core.engine_core import Core
from pdx_sim.core.sequence import PauseMode
from pdx_sim.settings import SimSettings

_PAUSED: Final = "Generation is paused. Please retry after it resumes."
_POLL: Final = 0.005


class Host(Protocol):
    """The engine, as far as pauses concern it."""

    core: Core


class Pauses:
    """The routes `/pause`, `/resume` and `/is_paused` (entrypoints/rl/online/api_router.py)."""

    def __init__(self, host: Host, settings: SimSettings) -> None:
        self._host = host
        self._refuses = abilities(minor(settings.version)).pauses

    def routes(self) -> list[web.RouteDef]:
        """The routes. vLLM has them only with `VLLM_SERVER_DEV_MODE=1`."""
        return [
            web.post("/pause", self._pause),
            web.post("/resume", self._resume),
            web.get("/is_paused", self._is_paused),
        ]

    def refusal(self, path: str) -> APIError | None:
        """What a new request gets; None: it is served, or waits as in vLLM before 0.33 and in the mode `keep`."""
        paused = self._host.core.paused
        if not self._refuses or paused in (None, PauseMode.KEEP):
            return None
        kind = "overloaded_error" if path.startswith(MESSAGES) else "ServiceUnavailableError"
        return APIError(503, _PAUSED, kind)

    async def _pause(self, request: web.Request) -> web.Response:
        try:
            mode = PauseMode(request.query.get("mode", PauseMode.ABORT))
        except ValueError as error:
            return json_answer({"error": str(error)}, 400)
        core = self._host.core
        core.pause(mode)
        while mode is PauseMode.WAIT and core.paused is mode and core.computes:  # noqa: ASYNC110 (rare)
            await asyncio.sleep(_POLL)
        return json_answer({"status": "paused"})

    async def _resume(self, request: web.Request) -> web.Response:
        self._host.core.unpause()
        return json_answer({"status": "resumed"})

    async def _is_paused(self, request: web.Request) -> web.Response:
        return json_answer({"is_paused": self._host.core.paused is not None})
