"""Data about each engine that answers clients at one moment, and the policy LeastITL, which uses them. Pure.

An engine's cost is the ITL that its batch has with one more request, more where its KV cache would be nearly full.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from pdx_proxy.balancing.decode.itl import Line
from pdx_proxy.balancing.policies import LoadOf, least
from pdx_proxy.endpoints.endpoint import Endpoint

FREE_KV: Final = 0.2
"""Share of the KV cache below which free blocks are scarce: an engine that runs out of them preempts requests."""
_LEAST_FREE: Final = 0.05
"""Of `FREE_KV`: the least share in a cost, so that a cost is at most twenty times the ITL."""
_MISSING: Final = 128.0
"""By what a cost grows if the engine has to receive a prompt of the usual length. `benchmarks/goodput` compared 8 to
512: from 128 on, the links of D's carry the agents' trace at nine times the capacity.
"""
_MISSING_REQUESTS: Final = 64.0
"""The same where engines are equal, in requests: as many as the bound of vllm-router's `cache_aware`."""
PROBES: Final = 2.0
"""Requests for an engine whose measurement is old, until it is measured again."""


class DecodeView:
    """One engine at one moment. Immutable by convention."""

    __slots__ = ("_common", "_counted", "_kv_each", "_kv_size", "_kv_used", "_stale", "line")

    def __init__(
        self,
        line: Line,
        common: Line,
        *,
        stale: bool = False,
        kv_size: float = 0.0,
        kv_used: float = 0.0,
        kv_each: float = 0.0,
        counted: float = 0.0,
    ) -> None:
        self.line = line
        """Its ITL by its batch."""
        self._common = common
        """That of all engines."""
        self._stale = stale
        """Whether it must be measured again."""
        self._kv_size = kv_size
        """Tokens that its KV cache has room for; 0: not reported."""
        self._kv_used = kv_used
        """Tokens in use when it reported."""
        self._kv_each = kv_each
        """Tokens of a request, on average; 0: none ran."""
        self._counted = counted
        """Requests of this gateway that the used tokens include."""

    def itl(self, load: float) -> float:
        """Return the ITL with so many requests."""
        line = self._common if self._stale and load <= PROBES else self.line
        return line.at(load)

    def kv_share(self, load: float, tokens: float) -> float:
        """Return the share of its KV cache in use with so many requests and one more with so many tokens."""
        size = self._kv_size
        if size <= 0.0:
            return 0.0
        coming = load - self._counted
        used = self._kv_used + (coming * (self._kv_each or tokens) if coming > 0.0 else 0.0)
        return (used + tokens) / size

    def cost(self, load: float, tokens: float, missing: float = 0.0) -> float:
        """Return the cost of one more request with so many tokens, at so many requests.

        `missing`: see `KeptPrompts.missing`.
        """
        free = (1.0 - self.kv_share(load, tokens)) / FREE_KV
        itl = self.itl(load + 1.0) * (1.0 + _MISSING * missing)
        if free >= 1.0:
            return itl
        return itl / (free if free > _LEAST_FREE else _LEAST_FREE)


def least_itl(
    endpoints: Sequence[Endpoint],
    load_of: LoadOf,
    cursor: int,
    views: Mapping[str, DecodeView],
    tokens: float,
    missing: Sequence[float] | None,
) -> Endpoint:
    """Select an endpoint for a request that needs KV for so many tokens.

    `views` has every endpoint, by name; it is empty while they are equal, or nothing is learned about them.
    `missing`: see `KeptPrompts.missing`.
    """
    if missing is None:
        if not views:
            return least(endpoints, load_of, cursor)
        return least(endpoints, lambda e: views[e.name].cost(load_of(e), tokens), cursor)
    by_name = {e.name: share for e, share in zip(endpoints, missing, strict=True)}
    if not views:
        return least(endpoints, lambda e: load_of(e) + _MISSING_REQUESTS * by_name[e.name], cursor)
    return least(endpoints, lambda e: views[e.name].cost(load_of(e), tokens, by_name[e.name]), cursor)
