"""A queue that is fair between clients: start-time fair queueing over one queue per client. Pure.

Each request costs 1 / weight of its client's virtual time. The client whose next request starts first is served first
(Goyal, Vin, Cheng: Start-time Fair Queueing, 1996). While two clients have requests in the queue, the numbers served of
each, divided by their weights, differ by at most one request of each. A client that has just come is served next.

A client's own requests are served oldest first. When some give up in the queue, those that have waited longest will
give up soon, perhaps while an engine works on them. So the newest come first then (Maurer: Fail at Scale, ACM Queue,
2015), except every `_OLDEST_EVERY`th, because a patient request becomes the oldest.
"""

from collections import OrderedDict
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

Item = TypeVar("Item")

_OLDEST_EVERY: Final = 12
_NEWEST_AFTER: Final = 16
"""Requests of a client that are served newest first after one has given up."""
_MOST_NEWEST: Final = 64

_STALE_ENTRIES: Final = 64
"""Entries of the heap that may be out of date, beyond as many as there are clients."""


class _Client(Generic[Item]):
    """One client's requests, oldest first."""

    __slots__ = ("items", "name", "newest", "number", "served", "start", "weight")

    def __init__(self, name: str, start: float) -> None:
        self.name = name
        self.weight = 1.0
        self.start = start
        """Virtual time at which its next request starts."""
        self.number = 0
        """The number of its entry in the heap that is valid; 0: none."""
        self.newest = 0
        """How many of its next requests are served newest first, every `_OLDEST_EVERY`th excepted."""
        self.served = 0
        self.items: OrderedDict[Item, bool] = OrderedDict()
        """Each request, and whether it is narrow (see `FairQueue.push`)."""


class FairQueue(Generic[Item]):
    """Requests of several clients, in the order in which they are served."""

    __slots__ = ("_clients", "_heap", "_length", "_narrow", "_now", "_numbers", "_owners", "clients")

    def __init__(self) -> None:
        self.clients = 0
        """Number of clients with requests in the queue."""
        self._clients: dict[str, _Client[Item]] = {}
        """Clients with requests in the queue, and clients that have been served ahead of virtual time."""
        self._owners: dict[Item, _Client[Item]] = {}
        self._heap: list[tuple[float, int, _Client[Item]]] = []
        self._numbers = 0
        self._now = 0.0
        """Virtual time: the start of the request that was served last."""
        self._length = 0
        self._narrow = 0

    def __len__(self) -> int:
        return self._length

    def __contains__(self, item: Item) -> bool:
        return item in self._owners

    def push(self, item: Item, client: str, weight: float, *, narrow: bool = False) -> None:
        """Append a request of a client.

        `narrow`: the request needs less than others, so it may be served when they cannot (see `pop`).
        """
        found = self._clients.get(client)
        if found is None:
            found = self._clients[client] = _Client(client, self._now)
        found.weight = weight
        if not found.items:
            self.clients += 1
        found.items[item] = narrow
        self._owners[item] = found
        self._length += 1
        self._narrow += narrow
        if not found.number:
            found.start = max(found.start, self._now)
            self._enter(found)

    def pop(self, fits: Callable[[Item], bool]) -> Item | None:
        """Remove and return the next request that fits; None if none does. `fits` is true for at most one.

        A request that does not fit stops the others that are not narrow: they need at least as much. A narrow one that
        does not fit stops all.
        """
        passed: list[tuple[float, int, _Client[Item]]] = []
        found: Item | None = None
        wide = True
        while self._heap and found is None and (wide or self._narrow):
            entry = heappop(self._heap)
            client = entry[2]
            if entry[1] != client.number:
                continue
            item = self._candidate(client, wide=wide)
            if item is not None and not fits(item):
                passed.append(entry)
                if not self._narrow or client.items[item]:
                    break
                wide = False
                item = self._candidate(client, wide=False)
                if item is None:
                    continue
                if not fits(item):
                    break
                passed.pop()
            if item is None:
                passed.append(entry)
            else:
                found = item
                self._serve(client, item)
        for entry in passed:
            heappush(self._heap, entry)
        return found

    def remove(self, item: Item, *, given_up: bool = False) -> None:
        """Remove a request that is not served. `given_up`: its client has disconnected."""
        client = self._owners[item]
        if given_up:
            client.newest = min(client.newest + _NEWEST_AFTER, _MOST_NEWEST)
        self._drop(client, item)
        if not client.items:
            client.number = 0
            self._forget()

    def crowded_out(self, client: str, weight: float) -> Item | None:
        """The request to remove from a full queue for one of this client; None if the new one itself must go.

        It is the newest request of the client with the most requests for its weight.
        """
        own = self._clients.get(client)
        longest: _Client[Item] | None = None
        for each in self._clients.values():
            if longest is None or len(each.items) / each.weight > len(longest.items) / longest.weight:
                longest = each
        mine = (len(own.items) if own is not None else 0) + 1
        if longest is None or longest is own or len(longest.items) / longest.weight <= mine / weight:
            return None
        return next(reversed(longest.items))

    def _candidate(self, client: "_Client[Item]", *, wide: bool) -> Item | None:
        newest = client.newest and client.served % _OLDEST_EVERY != _OLDEST_EVERY - 1
        items = client.items.items()
        for item, narrow in reversed(items) if newest else items:
            if wide or narrow:
                return item
        return None

    def _serve(self, client: "_Client[Item]", item: Item) -> None:
        self._now = client.start
        client.start += 1 / client.weight
        client.number = 0
        client.newest = max(client.newest - 1, 0)
        client.served += 1
        self._drop(client, item)
        if client.items:
            self._enter(client)
        self._forget()

    def _drop(self, client: "_Client[Item]", item: Item) -> None:
        self._narrow -= client.items.pop(item)
        if not client.items:
            self.clients -= 1
        del self._owners[item]
        self._length -= 1

    def _enter(self, client: "_Client[Item]") -> None:
        self._numbers += 1
        client.number = self._numbers
        heappush(self._heap, (client.start, client.number, client))

    def _forget(self) -> None:
        """Forget clients without requests whose service is in the past, and entries that are out of date."""
        if not self._length:
            self._clients.clear()
            self._heap.clear()
            self._now = 0.0
            return
        if len(self._heap) > 2 * len(self._clients) + _STALE_ENTRIES:
            self._heap = [entry for entry in self._heap if entry[1] == entry[2].number]
            heapify(self._heap)
        if len(self._clients) > self._length + _STALE_ENTRIES:
            self._clients = {
                name: client for name, client in self._clients.items() if client.items or client.start > self._now
            }
