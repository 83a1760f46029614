"""The owner of the reconcilers."""

import asyncio
import gc
import weakref
from contextvars import ContextVar
from typing import cast

from pdx_operator.controller.manager import Manager
from pdx_operator.controller.reconciler import Reconciler
from pdx_operator.kube.resources import Key

KEY = Key("team-a", "chat")


class Event:
    """What kopf keeps in the context of a handler."""


class Waiting:
    """A reconciler that waits for a change of its object."""

    async def run(self) -> None:
        """Never return."""
        await asyncio.Event().wait()


async def test_a_reconciler_does_not_keep_the_event_that_started_it() -> None:
    manager = Manager(lambda _: cast("Reconciler", Waiting()))
    current: ContextVar[Event] = ContextVar("current")

    async def handle(event: Event) -> None:
        current.set(event)
        manager.enqueue(KEY, spec_changed=True, exists=True)

    event = Event()
    kept = weakref.ref(event)
    await asyncio.create_task(handle(event))
    del event
    await asyncio.sleep(0)
    gc.collect()

    assert kept() is None
    await manager.stop()
