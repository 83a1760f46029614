"""The D legs that wait until P has written into their blocks."""

import asyncio

from pdx_sim.core.tokens import Digest


class PendingWrites:
    """The writes that D legs wait for, by D's internal id."""

    def __init__(self) -> None:
        self._writes: dict[str, asyncio.Future[Digest]] = {}

    def expect(self, internal_id: str) -> "asyncio.Future[Digest]":
        """The digest of the KV that P writes for this leg. Call `discard` afterwards."""
        self._writes[internal_id] = asyncio.get_running_loop().create_future()
        return self._writes[internal_id]

    def complete(self, internal_id: str, written: Digest | Exception) -> bool:
        """P has written, or reports an error. False if no leg waits.

        A leg that is cancelled at this moment still counts as waiting: it checks `has_ended`.
        """
        write = self._writes.get(internal_id)
        if write is None or (write.done() and not write.cancelled()):
            return False
        if write.cancelled():
            write = self.expect(internal_id)
        if isinstance(written, Exception):
            write.set_exception(written)
        else:
            write.set_result(written)
        return True

    def has_ended(self, internal_id: str) -> bool:
        """Whether P has written or has failed: either way it does not write into the blocks afterwards."""
        write = self._writes.get(internal_id)
        return write is not None and write.done() and not write.cancelled()

    def discard(self, internal_id: str) -> None:
        """Remove the leg, which has stopped waiting."""
        write = self._writes.pop(internal_id, None)
        if write is not None and write.done() and not write.cancelled():
            write.exception()
