"""D legs that wait until P has written into their blocks."""

import asyncio

from pdx_sim.core.tokens import Digest


class Arrivals:
    """Owner of what they wait for, by D's internal id."""

    def __init__(self) -> None:
        self._awaited: dict[str, asyncio.Future[Digest]] = {}

    def expect(self, internal_id: str) -> "asyncio.Future[Digest]":
        """What P writes for this leg, until `forget`."""
        self._awaited[internal_id] = asyncio.get_running_loop().create_future()
        return self._awaited[internal_id]

    def come(self, internal_id: str, written: Digest | Exception) -> bool:
        """P has written, or says why not; False where nobody waits.

        A leg that is cancelled in this very moment still waits: it finds out by `has_come`.
        """
        awaited = self._awaited.get(internal_id)
        if awaited is None or (awaited.done() and not awaited.cancelled()):
            return False
        if awaited.cancelled():
            awaited = self.expect(internal_id)
        if isinstance(written, Exception):
            awaited.set_exception(written)
        else:
            awaited.set_result(written)
        return True

    def has_come(self, internal_id: str) -> bool:
        """Whether P has written, or will not: the blocks are nobody's any more."""
        awaited = self._awaited.get(internal_id)
        return awaited is not None and awaited.done() and not awaited.cancelled()

    def forget(self, internal_id: str) -> None:
        """The leg waits no more."""
        awaited = self._awaited.pop(internal_id, None)
        if awaited is not None and awaited.done() and not awaited.cancelled():
            awaited.exception()
