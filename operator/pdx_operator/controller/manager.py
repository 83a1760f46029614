"""Starts a reconciler for each new object, wakes it when the object changes, and drops it when the object is gone."""

import asyncio
from collections.abc import Callable
from contextvars import Context

from pdx_operator.controller.reconciler import Reconciler
from pdx_operator.kube.resources import Key


class Manager:
    """Owner of the reconcilers."""

    def __init__(self, make: Callable[[Key], Reconciler]) -> None:
        self._make = make
        self._reconcilers: dict[Key, tuple[Reconciler, asyncio.Task[None]]] = {}
        self._stopped = False

    def start(self) -> None:
        """Accept objects again after `stop`."""
        self._stopped = False

    def enqueue(self, key: Key, spec_changed: bool, *, exists: bool) -> None:
        """Reconcile an object that has changed."""
        entry = self._reconcilers.get(key)
        if entry is not None and not entry[1].done():
            entry[0].enqueue(spec_changed=spec_changed)
        elif exists and not self._stopped:
            reconciler = self._make(key)
            # The current context contains kopf's event, with the whole object, and the task would keep it.
            context = Context()
            loop = asyncio.get_running_loop()
            task = loop.create_task(reconciler.run(), name=f"reconciler of {key}", context=context)
            self._reconcilers[key] = reconciler, task
            task.add_done_callback(lambda task: self._on_done(key, task), context=context)

    async def stop(self) -> None:
        """Cancel every reconciler. Nothing is lost: the next operator plans from what exists."""
        self._stopped = True
        tasks = [task for _, task in self._reconcilers.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _on_done(self, key: Key, task: asyncio.Task[None]) -> None:
        if self._reconcilers.get(key, (None, None))[1] is task:
            del self._reconcilers[key]
