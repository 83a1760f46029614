"""The issue's formula as a thin stand-in for ExpectedWait."""

from collections import OrderedDict
from collections.abc import Sequence

from benchmarks.goodput.gateway import Stateless
from benchmarks.goodput.traces import Request
from pdx_proxy.balancing.policies import LoadOf, Policy, least
from pdx_proxy.endpoints.endpoint import Endpoint


class Reference(Stateless):
    def __init__(self, tokens: int, rate: float) -> None:
        self._tokens = tokens
        self._rate = rate
        self._index: dict[str, OrderedDict[int, int]] = {}
        self._held: dict[str, int] = {}
        self._backlog: dict[str, float] = {}
        self._charged: dict[int, float] = {}

    def matched(self, name: str, request: Request) -> int:
        index = self._index.setdefault(name, OrderedDict())
        found = 0
        for key, end in request.prefix:
            if key not in index:
                break
            found = end
        return found

    def policy(self, request: Request, now: float) -> Policy:
        def choose(endpoints: Sequence[Endpoint], load_of: LoadOf, cursor: int) -> Endpoint:
            waits = [
                (self._backlog.get(e.name, 0.0) + request.prompt - self.matched(e.name, request)) / self._rate
                for e in endpoints
            ]
            best = min(waits)
            return least([e for e, w in zip(endpoints, waits, strict=True) if w <= best + 1e-9], load_of, cursor)

        return choose

    def sent(self, request: Request, endpoint: Endpoint, now: float) -> None:
        name = endpoint.name
        uncached = request.prompt - self.matched(name, request)
        self._charged[request.index] = uncached
        self._backlog[name] = self._backlog.get(name, 0.0) + uncached
        index = self._index.setdefault(name, OrderedDict())
        begin = 0
        sizes = []
        for key, end in request.prefix:
            sizes.append((key, end - begin))
            begin = end
        for key, size in reversed(sizes):
            if key not in index:
                self._held[name] = self._held.get(name, 0) + size
            index[key] = size
            index.move_to_end(key)
        while self._held.get(name, 0) > self._tokens:
            self._held[name] -= index.popitem(last=False)[1]

    def answered(self, request: Request, endpoint: Endpoint, now: float) -> None:
        self._backlog[endpoint.name] -= self._charged.pop(request.index)
