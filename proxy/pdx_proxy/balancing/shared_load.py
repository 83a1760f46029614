"""Legs in flight of all workers, in memory that they share: a row of counts for each endpoint, one count per worker.

Invariant: only its own worker writes a count while it lives, so nothing is locked; one that has died counts
nothing.
"""

import mmap
import os
from collections import deque
from struct import Struct
from typing import Final

from pdx_proxy.balancing.load import Load
from pdx_proxy.endpoints.endpoint import NO_SLOT, Endpoint

_SLOTS: Final = 4096
"""Endpoints with a slot; of further ones each worker knows only its own legs."""
_COUNT: Final = Struct("q")


class LoadTable:
    """The control side's end: owns the memory and gives out the slots."""

    def __init__(self, workers: int, slots: int = _SLOTS) -> None:
        self._row = Struct(f"{workers}q")
        self._workers = workers
        self.fd: Final = os.memfd_create("pdx-load")
        """For worker processes, together with their number (see `SharedLoad.over`)."""
        os.ftruncate(self.fd, slots * self._row.size)
        self._memory = mmap.mmap(self.fd, slots * self._row.size)
        self._free = deque(range(slots))
        self._given: dict[str, int] = {}

    def give(self, name: str) -> int:
        """The slot of an endpoint, or NO_SLOT when none is left.

        Slots that were taken back come last, and only when no worker counts a leg there any more. A leg that a worker
        opens at the old endpoint in that very moment counts for the new one until it ends.
        """
        if name not in self._given:
            slot = next((slot for slot in self._free if not self.legs(slot)), NO_SLOT)
            if slot == NO_SLOT:
                return NO_SLOT
            self._free.remove(slot)
            self._given[name] = slot
        return self._given[name]

    def take_back(self, name: str) -> None:
        """The endpoint is gone."""
        slot = self._given.pop(name, NO_SLOT)
        if slot != NO_SLOT:
            self._free.append(slot)

    def legs(self, slot: int) -> int:
        """What all workers count in a slot."""
        return sum(self._row.unpack_from(self._memory, slot * self._row.size))

    def forget(self, worker: int) -> None:
        """A worker has died: its legs are no more."""
        for offset in range(worker * _COUNT.size, len(self._memory), self._row.size):
            _COUNT.pack_into(self._memory, offset, 0)

    def close(self) -> None:
        """Give the memory back."""
        self._memory.close()
        os.close(self.fd)


class SharedLoad(Load):
    """One worker's end: its own legs, and the sum over all workers where engines are compared."""

    __slots__ = ("_counts", "_own", "_workers")

    def __init__(self, memory: mmap.mmap, worker: int, workers: int) -> None:
        super().__init__()
        self._counts = memoryview(memory).cast("q")
        """Of every slot the counts of all workers, one after the other."""
        self._own = self._counts[worker::workers]
        """This worker's counts by slot."""
        self._workers = workers

    @classmethod
    def over(cls, fd: int, worker: int, workers: int) -> "SharedLoad":
        """The end of worker number `worker` of so many; takes the file over."""
        memory = mmap.mmap(fd, 0)
        os.close(fd)
        return cls(memory, worker, workers)

    def acquire(self, endpoint: Endpoint) -> None:
        Load.acquire(self, endpoint)  # super() costs as much again
        if endpoint.slot >= 0:
            self._own[endpoint.slot] += 1

    def release(self, endpoint: Endpoint) -> None:
        Load.release(self, endpoint)
        if endpoint.slot >= 0:
            self._own[endpoint.slot] -= 1

    def of(self, endpoint: Endpoint) -> float:
        slot = endpoint.slot
        if slot < 0:
            return super().of(endpoint)
        first = slot * self._workers
        legs = 0
        for place in range(first, first + self._workers):  # `sum` of a slice costs three times as much
            legs += self._counts[place]
        return self._weighed(endpoint, legs) if self.effective_loads else legs
