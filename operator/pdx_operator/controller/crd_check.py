"""Checks again and again whether the cluster's CRD is recent enough for this version of the operator."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from pdx_api.kube.client import ApiError

_CONFIRM_SECONDS: Final = 5.0
"""Before a CRD counts as too old: the API server publishes a new schema some seconds after it serves it."""
_TOO_OLD_SECONDS: Final = 10.0
_PERIOD_SECONDS: Final = 300.0

log = logging.getLogger(__name__)


class CRDCheck:
    """Owner of the result. `notify` is called when it changes."""

    def __init__(self, read: Callable[[], Awaitable[tuple[str, ...]]], notify: Callable[[], None]) -> None:
        self._read = read
        self._notify = notify
        self.done = asyncio.Event()
        """Set after the first result."""
        self.missing: tuple[str, ...] = ()
        """The fields that the CRD lacks; empty: it is recent enough, or its schema cannot be read."""

    async def run(self) -> None:
        """Never returns."""
        while True:
            await self.check()
            await asyncio.sleep(_TOO_OLD_SECONDS if self.missing else _PERIOD_SECONDS)

    async def check(self) -> None:
        """Check once."""
        missing = await self._fields()
        if missing and not self.missing:
            await asyncio.sleep(_CONFIRM_SECONDS)
            missing = await self._fields()
        changed, self.missing = missing != self.missing, missing
        self.done.set()
        if changed:
            if missing:
                log.warning("The CRD is too old for this operator: it lacks %s", ", ".join(missing))
            self._notify()

    async def _fields(self) -> tuple[str, ...]:
        try:
            return await self._read()
        except ApiError as error:
            log.debug("the schema of PDDeployments cannot be read: %s", error)
            return self.missing
