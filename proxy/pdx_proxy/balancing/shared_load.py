"""Legs in flight of all workers, in memory that they share: rows of counts for each endpoint, one count per worker.

The first rows are the caller's: what the requests of all workers hold. Then come the legs of all endpoints, then those
of them that wait for their P, then those whose clients do not read.

Invariant: while a worker lives, only that worker writes its counts, so no lock is needed. The counts of a dead worker
are set to zero.
"""

import mmap
import os
from collections import deque
from struct import Struct
from typing import Final

from pdx_proxy.balancing.engine_limits import Legs
from pdx_proxy.balancing.load import Load
from pdx_proxy.endpoints.endpoint import NO_SLOT, Endpoint

_SLOTS: Final = 4096
"""Endpoints with a slot. For further endpoints each worker counts only its own legs."""
_COUNT: Final = Struct("q")
_STATES: Final = 3
"""Rows of an endpoint: all of its legs, and two parts of them."""


class LoadTable:
    """The control side's end: owns the memory and assigns the slots."""

    def __init__(self, workers: int, slots: int = _SLOTS, rows: int = 0) -> None:
        """`rows`: further rows, before those of the endpoints."""
        self._row = Struct(f"{workers}q")
        self._workers = workers
        self._first = rows * self._row.size
        self.fd: Final = os.memfd_create("pdx-load")
        """The file of the memory, for worker processes (see `SharedLoad.over`)."""
        size = self._first + _STATES * slots * self._row.size
        os.ftruncate(self.fd, size)
        self._memory = mmap.mmap(self.fd, size)
        self._free = deque(range(slots))
        self._given: dict[str, int] = {}

    def give(self, name: str) -> int:
        """Return the slot of an endpoint, or NO_SLOT when none is left.

        Slots that were taken back come last, and only after all of their legs have ended. A leg that a worker opens to
        the old endpoint at that moment counts for the new endpoint until it ends.
        """
        if name not in self._given:
            slot = next((slot for slot in self._free if not self.legs(slot)), NO_SLOT)
            if slot == NO_SLOT:
                return NO_SLOT
            self._free.remove(slot)
            self._given[name] = slot
        return self._given[name]

    def take_back(self, name: str) -> None:
        """The endpoint is gone: its slot may be assigned again."""
        slot = self._given.pop(name, NO_SLOT)
        if slot != NO_SLOT:
            self._free.append(slot)

    def legs(self, slot: int) -> int:
        """Return the legs of all workers in a slot."""
        return sum(self._row.unpack_from(self._memory, self._first + slot * self._row.size))

    def total(self, row: int) -> int:
        """Return the sum of a further row."""
        return sum(self._row.unpack_from(self._memory, row * self._row.size))

    def forget(self, worker: int) -> None:
        """A worker has died: set its counts to zero."""
        for offset in range(worker * _COUNT.size, len(self._memory), self._row.size):
            _COUNT.pack_into(self._memory, offset, 0)

    def close(self) -> None:
        """Free the memory."""
        self._memory.close()
        os.close(self.fd)


class SharedLoad(Load):
    """One worker's end: counts its own legs, and compares engines by the sum over all workers."""

    __slots__ = ("_blocked", "_counts", "_own", "_own_blocked", "_own_prefilling", "_prefilling", "rows")

    def __init__(self, memory: mmap.mmap, worker: int, workers: int, rows: int = 0) -> None:
        super().__init__()
        counts = memoryview(memory).cast("q")
        self.rows = counts[: rows * workers]
        """The further rows."""
        first = rows * workers
        size = (len(counts) - first) // _STATES
        self._counts = counts[first : first + size]
        """For each slot, the counts of all workers."""
        self._own = self._counts[worker::workers]
        """This worker's counts by slot."""
        self._prefilling = counts[first + size : first + 2 * size]
        self._own_prefilling = self._prefilling[worker::workers]
        self._blocked = counts[first + 2 * size :]
        self._own_blocked = self._blocked[worker::workers]
        self.workers = workers

    @classmethod
    def over(cls, fd: int, worker: int, workers: int, rows: int = 0) -> "SharedLoad":
        """Map the file for worker number `worker`, and close the file."""
        memory = mmap.mmap(fd, 0)
        os.close(fd)
        return cls(memory, worker, workers, rows)

    def acquire(self, endpoint: Endpoint) -> None:
        Load.acquire(self, endpoint)  # super() costs as much again
        if endpoint.slot >= 0:
            self._own[endpoint.slot] += 1

    def _forget(self, endpoint: Endpoint) -> None:
        if endpoint.slot >= 0:
            self._own[endpoint.slot] -= 1
        Load._forget(self, endpoint)

    def begin_prefill(self, decode: Endpoint) -> None:
        Load.begin_prefill(self, decode)
        if decode.slot >= 0:
            self._own_prefilling[decode.slot] += 1

    def end_prefill(self, decode: Endpoint) -> None:
        if decode.slot >= 0:
            self._own_prefilling[decode.slot] -= 1
        Load.end_prefill(self, decode)

    def block(self, endpoint: Endpoint) -> None:
        Load.block(self, endpoint)
        if endpoint.slot >= 0:
            self._own_blocked[endpoint.slot] += 1

    def unblock(self, endpoint: Endpoint) -> None:
        if endpoint.slot >= 0:
            self._own_blocked[endpoint.slot] -= 1
        Load.unblock(self, endpoint)

    def legs_at(self, endpoint: Endpoint) -> Legs:
        slot = endpoint.slot
        if slot < 0:
            return Load.legs_at(self, endpoint)
        row = slice(slot * self.workers, (slot + 1) * self.workers)
        return Legs(sum(self._counts[row]), sum(self._prefilling[row]), sum(self._blocked[row]))

    def of(self, endpoint: Endpoint) -> float:
        legs = self.count(endpoint)
        return self._effective(endpoint, legs) if self.effective_loads or self.refusals else legs

    def count(self, endpoint: Endpoint) -> int:
        slot = endpoint.slot
        if slot < 0:
            return self.legs.get(endpoint.name, 0)
        first = slot * self.workers
        legs = 0
        for index in range(first, first + self.workers):  # `sum` of a slice costs three times as much
            legs += self._counts[index]
        return legs

    def count_all(self, endpoints: list[Endpoint]) -> int:
        """Return the legs of several endpoints, of all workers."""
        total = 0
        for endpoint in endpoints:
            total += self.count(endpoint)
        return total
