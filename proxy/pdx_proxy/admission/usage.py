"""The resources that a gateway's requests hold, counted for one worker and for all workers together.

With several workers the counts are in shared memory: one count per worker in each row, which only that worker writes.
"""

from hashlib import blake2b
from struct import Struct
from typing import Final

_IN_FLIGHT: Final = 0
WAITING_ROW: Final = 1
_BUFFERED: Final = 2
_CLIENTS: Final = 3
_FIRST_SKETCH: Final = 4
_SKETCHES: Final = 4
_BUCKETS: Final = 2048
_HASHES: Final = Struct(f"{_SKETCHES}H")
ROWS: Final = _FIRST_SKETCH + _SKETCHES * _BUCKETS
"""Rows of shared memory that `SharedUsage` needs."""


class Usage:
    """What the requests of the only worker hold."""

    __slots__ = ("_open", "buffered", "completed", "in_flight", "seconds", "shared", "waiting")

    def __init__(self) -> None:
        self.in_flight = 0
        """Requests that have left the queue, until their last leg is settled."""
        self.waiting = 0
        """Requests in the queue."""
        self.buffered = 0
        """Bytes of bodies: of requests that arrive, wait, or are being sent, until their last leg is settled."""
        self.completed = 0
        """Requests that have been in flight and have ended. Their settlements may go on."""
        self.seconds = 0.0
        """The sum of their durations, without their waits in the queue."""
        self.shared = False
        """Whether other workers hold something too."""
        self._open: dict[str, int] = {}
        """Open requests by client. Never zero."""

    def add_in_flight(self, number: int) -> None:
        """Count requests in flight."""
        self.in_flight += number

    def add_buffered(self, size: int) -> None:
        """Count bytes."""
        self.buffered += size

    def set_waiting(self, requests: int, clients: int) -> None:
        """Set the requests in this worker's queue, and the number of their clients."""
        self.waiting = requests

    def all_waiting(self) -> int:
        """Requests in the queues of all workers."""
        return self.waiting

    def all_buffered(self) -> int:
        """Bytes that all workers buffer."""
        return self.buffered

    def open_of(self, client: str) -> int:
        """Open requests of a client at all workers."""
        return self._open.get(client, 0)

    def add_open(self, client: str, number: int) -> None:
        """Count open requests of a client."""
        remaining = self._open.get(client, 0) + number
        if remaining:
            self._open[client] = remaining
        else:
            del self._open[client]

    def may_take(self) -> bool:
        """Whether a slot that is free belongs to this worker, if other workers have requests in their queues too."""
        return True


class SharedUsage(Usage):
    """What the requests of one worker hold, and with those of the other workers.

    Open requests of clients are counted in a count-min sketch: each client has one bucket in each of four sketches, and
    the smallest of them counts. It is too large only if other clients with open requests share all four.
    """

    __slots__ = ("_counts", "_worker", "_workers")

    def __init__(self, counts: memoryview, worker: int, workers: int) -> None:
        """`counts`: `ROWS` rows of one 64-bit number per worker."""
        super().__init__()
        self.shared = True
        self._counts = counts
        self._worker = worker
        self._workers = workers

    def add_in_flight(self, number: int) -> None:
        self.in_flight += number
        self._counts[_IN_FLIGHT * self._workers + self._worker] = self.in_flight

    def add_buffered(self, size: int) -> None:
        self.buffered += size
        self._counts[_BUFFERED * self._workers + self._worker] = self.buffered

    def set_waiting(self, requests: int, clients: int) -> None:
        self.waiting = requests
        self._counts[WAITING_ROW * self._workers + self._worker] = requests
        self._counts[_CLIENTS * self._workers + self._worker] = clients

    def all_waiting(self) -> int:
        return self._total(WAITING_ROW)

    def all_buffered(self) -> int:
        return self._total(_BUFFERED)

    def open_of(self, client: str) -> int:
        return min(self._total(row) for row in _buckets(client))

    def add_open(self, client: str, number: int) -> None:
        super().add_open(client, number)
        for row in _buckets(client):
            self._counts[row * self._workers + self._worker] += number

    def may_take(self) -> bool:
        """Workers share slots by the number of clients in their queues. One of them always has its share or less."""
        own_clients, clients, in_flight = self._own(_CLIENTS), 0, 0
        for worker in range(self._workers):
            if self._counts[WAITING_ROW * self._workers + worker]:
                clients += self._counts[_CLIENTS * self._workers + worker]
                in_flight += self._counts[_IN_FLIGHT * self._workers + worker]
        return self.in_flight * clients <= in_flight * own_clients

    def _own(self, row: int) -> int:
        return int(self._counts[row * self._workers + self._worker])

    def _total(self, row: int) -> int:
        first = row * self._workers
        total = 0
        for index in range(first, first + self._workers):
            total += self._counts[index]
        return total


def _buckets(client: str) -> list[int]:
    """The row of a client in each sketch. The same in every worker, so not Python's own hash."""
    hashes = _HASHES.unpack(blake2b(client.encode("utf-8", "replace"), digest_size=_HASHES.size).digest())
    return [_FIRST_SKETCH + sketch * _BUCKETS + found % _BUCKETS for sketch, found in enumerate(hashes)]
