"""Limits how many objects have their gateways replaced at a time after an upgrade of the operator.

An upgrade changes the pods of all gateways. If a new gateway does not become ready, only a few objects wait for theirs,
and all of them still serve with the old pods.
"""

from collections.abc import Callable
from typing import Final

from pdx_operator.kube.resources import Key

EXPIRES_SECONDS: Final = 600.0
"""How long one object may keep others waiting, for example because its namespace lacks a pull secret."""
RETRY_SECONDS: Final = 60.0
"""How long an object waits at most until it is reconciled again."""


class GatewayUpgrades:
    """Owner of the slots. `notify` is called with a waiting object when a slot is free."""

    def __init__(self, slots: int, clock: Callable[[], float], notify: Callable[[Key], None]) -> None:
        self._slots = slots
        self._clock = clock
        self._notify = notify
        self._running: dict[Key, float] = {}
        """Since when each object has its slot."""
        self._waiting: dict[Key, None] = {}
        """In the order in which they came."""

    def start(self, key: Key) -> bool:
        """Whether the object has a slot, or gets one. Otherwise it waits for one."""
        now = self._clock()
        self._running = {k: since for k, since in self._running.items() if k == key or now - since < EXPIRES_SECONDS}
        if key not in self._running and len(self._running) >= self._slots:
            self._waiting[key] = None
            return False
        self._waiting.pop(key, None)
        self._running.setdefault(key, now)
        return True

    def finish(self, key: Key) -> None:
        """The object's gateway is complete, or the object is gone."""
        self._waiting.pop(key, None)
        if self._running.pop(key, None) is not None:
            for waiting in list(self._waiting)[: self._slots - len(self._running)]:
                self._notify(waiting)
