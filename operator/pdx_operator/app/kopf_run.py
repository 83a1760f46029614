"""Runs kopf once: it watches PDDeployments until it is told to end, or fails.

kopf logs in, starts up, lists and watches PDDeployments, and cleans up at the end. PDX's own informers, which
`app.operator` starts, watch all children. The reason: kopf reports no child that is deleted while no watch is open,
keeps no cache, and ends at any watch's error.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import kopf

from pdx_api.names import GROUP, PLURAL, VERSION
from pdx_operator.app import kopf_session


async def run_kopf(
    namespaces: Sequence[str | None],
    on_event: Callable[..., Awaitable[None]],
    on_cleanup: Callable[..., Awaitable[None]],
    ending: asyncio.Event,
    listen: Callable[[], None],
    bodies: kopf_session.Bodies,
) -> None:
    """Watch until `ending` is set; raises whatever ends kopf before.

    kopf takes over the signals of the process, and does not give them back. `listen` takes them back.
    """
    registry = kopf.OperatorRegistry()

    async def login(**kwargs: Any) -> kopf.AiohttpSession | None:
        return await kopf_session.login(bodies, **kwargs)

    async def deliver(event: Any, **_: Any) -> None:
        body = event["object"] if event["type"] == "DELETED" else bodies.take(event["object"])
        if body is not None:
            await on_event({"type": event["type"], "object": body})

    kopf.on.login(registry=registry)(login)
    kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)(deliver)
    kopf.on.cleanup(registry=registry)(on_cleanup)
    earlier = asyncio.all_tasks()
    tasks = await kopf.spawn_tasks(
        registry=registry,
        settings=_settings(),
        standalone=True,
        clusterwide=tuple(namespaces) == (None,),
        namespaces=[namespace for namespace in namespaces if namespace is not None],
        stop_flag=ending,
    )
    listen()
    await kopf.run_tasks(tasks, ignored=earlier)


class _Delays:
    """Endless seconds between attempts to reach the API server: kopf ends when its delays run out."""

    def __iter__(self) -> Iterator[float]:
        return itertools.chain((0.2, 0.5, 1.0, 2.0), itertools.repeat(5.0))


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    # Otherwise kopf watches CRDs and namespaces, for which the operator has no permission.
    settings.scanning.disabled = True
    settings.networking.error_backoffs = _Delays()
    # Tenants choose the size of objects.
    settings.watching.chunk_size = 25
    # Until then, a worker keeps its last event.
    settings.queueing.idle_timeout = 0.1
    return settings
