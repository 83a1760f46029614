"""Warm-up: an engine is selected only after it has served once, and a P only after its KV has moved to a D.

The first forward pass of an engine has risks: a D whose first work is decoding over remote KV can die.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from pdx_api.names import ENGINE_KEY_FLAG, Role
from pdx_api.vllm.versions import minor, warning
from pdx_proxy.endpoints.endpoint import Endpoint, State
from pdx_proxy.endpoints.events import HealthCheckRequest, NotReady, Suspect
from pdx_proxy.endpoints.version import read_version
from pdx_proxy.engines.probe import hand_over, is_paused, page_of, serve, serve_any
from pdx_proxy.engines.upstreams import Engines
from pdx_proxy.health.registry import Actions, EndpointRegistry
from pdx_proxy.http.routes import MODELS
from pdx_proxy.http.upstream.failures import (
    BadAnswer,
    ConnectFailure,
    ConnectTimeout,
    DeadlineExceeded,
    EngineFailure,
    EngineUnready,
    Unready,
)

_BODY: Final[Mapping[str, Any]] = {"prompt": "A first short prompt warms an engine up.", "max_tokens": 2}
_FIRST_PAUSE: Final = 0.2
_LONGEST_PAUSE: Final = 2.0
_RETIRED_PAUSE: Final = 30.0
"""The longest pause before a retired rank is tried again: a removal that fails is undone."""
_LONGEST_EJECTION: Final = 30.0
_VERSION: Final = "/version"
_MODELS_SECONDS: Final = 2.0
"""For an engine to report its version or its models. An engine that does not is warm without them."""
_REFUSES_KEY: Final = frozenset((401, 403))
_log: Final = logging.getLogger(__name__)


def explain(failure: EngineFailure, *, has_key: bool) -> str:
    """Return why a warm-up failed. If the engine refuses the gateway's key, say what to set. Pure."""
    if not isinstance(failure, BadAnswer) or failure.status not in _REFUSES_KEY:
        return str(failure)
    have = "refuses the key that the gateway has" if has_key else "requires an API key, and the gateway has none"
    return f"{failure}. The engine {have}: set {ENGINE_KEY_FLAG} (in a PDDeployment, spec.engine.apiKeySecretRef)."


class WarmUps:
    """Owner of the warm-up tasks. An endpoint has one at most."""

    def __init__(
        self,
        engines: Engines,
        registry: EndpointRegistry,
        perform: Callable[[Actions], None],
        rng: random.Random | None = None,
    ) -> None:
        """`perform` receives what follows from each result of a warm-up."""
        self._engines = engines
        self._registry = registry
        self._perform = perform
        self._random = rng or random.Random()  # noqa: S311 (spreads load)
        self._slots = asyncio.Semaphore(engines.settings.warm_ups)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._decode_warmed = asyncio.Event()
        self._seconds = engines.deadlines.warm_up
        self._warned: set[str] = set()
        """Versions that PDX has not checked. Each is logged once."""
        self._without_key: set[str] = set()
        """Engines that refuse the gateway's key, or that it has none. Each is logged once."""

    def start(self, names: Iterable[str], pause: float) -> None:
        """Start to warm up these endpoints after a pause, except those whose warm-up runs."""
        shuffled = list(names)
        self._random.shuffle(shuffled)  # several gateways must not warm up the engines in the same order
        for name in shuffled:
            if name not in self._tasks:
                warm_up = self._warm_until_warm(name, pause)
                self._tasks[name] = asyncio.get_running_loop().create_task(warm_up)

    def cancel(self, names: Iterable[str]) -> None:
        """End the warm-ups of these endpoints."""
        for name in names:
            task = self._tasks.pop(name, None)
            if task is not None:
                task.cancel()

    def wake_prefills(self) -> None:
        """A D may have become available for the prefill engines that wait for one."""
        self._decode_warmed.set()
        self._decode_warmed = asyncio.Event()

    async def stop(self) -> None:
        """End all warm-ups."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _warm_until_warm(self, name: str, first_pause: float) -> None:
        if first_pause:
            await asyncio.sleep(min(first_pause, _LONGEST_EJECTION) * self._random.uniform(0.5, 1.5))
        pause = _FIRST_PAUSE
        while (endpoint := self._registry.endpoint(name)).warm_up_state is not State.WARM:
            longest = _LONGEST_PAUSE
            try:
                await self._warm(endpoint)
                continue
            except EngineFailure as failure:
                why = await self._why_unready(endpoint, failure)
                if why is None:
                    self._fail(endpoint, failure)
                else:
                    retired = why is Unready.RETIRED
                    longest = _RETIRED_PAUSE if retired else _LONGEST_PAUSE
                    self._perform(self._registry.not_ready(endpoint, why.value, retired=retired))
            except Exception as error:  # an endpoint without its warm-up would never return
                _log.exception("The warm-up of %s failed.", name)
                self._perform(self._registry.warm_up_failed(endpoint, f"internal error: {error!r}", down=False))
            await asyncio.sleep(pause * self._random.uniform(0.5, 1.5))
            pause = min(pause * 2, longest)
        self._without_key.discard(name)
        del self._tasks[name]

    async def _why_unready(self, endpoint: Endpoint, failure: EngineFailure) -> Unready | None:
        """Return why an engine that lives accepts no request; None: it has failed, or another one has.

        A paused engine before vLLM 0.33 answers nothing, so it is asked.
        """
        if failure.endpoint != endpoint.name:
            return None
        if isinstance(failure, EngineUnready):
            return failure.why
        waits = isinstance(failure, DeadlineExceeded)
        return Unready.PAUSED if waits and await is_paused(self._engines, endpoint) else None

    def _fail(self, endpoint: Endpoint, failure: EngineFailure) -> None:
        name = endpoint.name
        down = type(failure) is ConnectFailure and failure.endpoint == name and not failure.local
        reason = explain(failure, has_key=bool(self._engines.pool.authorization))
        if reason != str(failure) and name not in self._without_key:
            self._without_key.add(name)
            _log.warning("The engine %s cannot be used: %s", name, reason)
        self._perform(self._registry.warm_up_failed(endpoint, reason, down=down))

    async def _warm(self, endpoint: Endpoint) -> None:
        if endpoint.role is Role.PREFILL:
            await self._warm_prefill(endpoint)
            return
        async with self._slots:
            await serve_any(self._engines, endpoint, _BODY, self._seconds)
            await self._read_version(endpoint)
            page = await page_of(self._engines, endpoint, MODELS, _MODELS_SECONDS)
        self._perform(self._registry.set_models(endpoint, page))
        self._perform(self._registry.warm_up_succeeded(endpoint))

    async def _read_version(self, endpoint: Endpoint) -> None:
        page = await page_of(self._engines, endpoint, _VERSION, _MODELS_SECONDS)
        self._perform(self._registry.set_version(endpoint, page))
        version = minor(read_version(page))
        if (text := warning(version)) and version not in self._warned:
            self._warned.add(version)
            _log.warning("The engine %s: %s", endpoint.name, text)

    async def _warm_prefill(self, prefill: Endpoint) -> None:
        """Run one hand-off to a warm D of the P's revision and version. Without one, P serves alone first."""
        alone = False
        await self._read_version(prefill)
        while True:
            decode_warmed = self._decode_warmed
            prefill = self._registry.endpoint(prefill.name)
            async with self._slots:
                decode = self._registry.next_decode(prefill)
                if decode is not None:
                    await self._warm_pair(prefill, decode)
                    return
                if not alone:
                    await serve(self._engines, prefill, _BODY, self._seconds)
                    alone = True
                    continue
            self._perform(self._registry.waiting_for_decode(prefill))
            await decode_warmed.wait()

    async def _warm_pair(self, prefill: Endpoint, decode: Endpoint) -> None:
        try:
            probe = await hand_over(self._engines, prefill, decode, {**_BODY, "max_tokens": 1}, self._seconds)
        except EngineFailure as failure:
            if failure.endpoint == decode.name and not (failure.local or isinstance(failure, BadAnswer)):
                waited = isinstance(failure, DeadlineExceeded | ConnectTimeout)
                start = decode.start
                event = HealthCheckRequest(*start) if waited else Suspect(*start, str(failure))
                self._perform(self._registry.on_event(event))
            elif isinstance(failure, EngineUnready) and failure.endpoint == decode.name:
                unready = NotReady(*decode.start, failure.detail, failure.why is Unready.RETIRED)
                self._perform(self._registry.on_event(unready))
            raise
        page = await page_of(self._engines, prefill, MODELS, _MODELS_SECONDS)
        self._perform(self._registry.set_models(prefill, page))
        self._perform(self._registry.warm_up_succeeded(prefill, probe.identity, decode))
