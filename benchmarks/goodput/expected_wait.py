"""The policy ExpectedWait in the simulated gateway: `pdx_proxy.balancing.prefill`, one state for each gateway."""

from collections.abc import Sequence
from typing import Final

from benchmarks.goodput.gateway import Select, Stateless
from benchmarks.goodput.traces import BLOCK_TOKENS, Request
from pdx_proxy.balancing.policies import LoadOf
from pdx_proxy.balancing.prefill import expected_wait
from pdx_proxy.balancing.prefill.backlog import PrefillEngine, PrefillLeg
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.payload.prompt_blocks import MAX_BLOCKS, NO_BLOCKS, PromptBlocks

_GROWTH: Final = 32
"""Blocks of a long prompt grow by this part of what is before them (`payload.prompt_blocks`)."""


class ExpectedWait(Stateless):
    """Tracks only what its gateway sent."""

    def __init__(self, tokens: int) -> None:
        """`tokens`: the size of each engine's cache, which vllm:cache_config_info reports."""
        self.state = expected_wait.ExpectedWait()
        """Owner of what the gateway has sent."""
        self._tokens = tokens
        self._legs: dict[int, PrefillLeg] = {}
        self._blocks: tuple[int, PromptBlocks] = (-1, NO_BLOCKS)

    def select(self, request: Request, now: float) -> Select:
        """See `Choosing`."""
        blocks = self._read(request)

        def choose(endpoints: Sequence[Endpoint], load_of: LoadOf, cursor: int) -> Endpoint:
            return endpoints[self.state.choose([self.engine(e) for e in endpoints], blocks, now, cursor)]

        return choose

    def sent(self, request: Request, endpoint: Endpoint, now: float) -> None:
        """Open its leg."""
        self._legs[request.index] = self.state.sent(self.engine(endpoint), self._read(request), now)

    def answered(self, request: Request, endpoint: Endpoint, now: float) -> None:
        """Close its leg."""
        self._legs.pop(request.index).answered(now)

    def engine(self, endpoint: Endpoint) -> PrefillEngine:
        """The state of one engine."""
        engine = self.state.engine(endpoint.name)
        if engine.cache.capacity != self._tokens:
            engine.cache.resize(self._tokens)
        return engine

    def _read(self, request: Request) -> PromptBlocks:
        """The blocks of a prompt, computed once."""
        if self._blocks[0] != request.index:
            self._blocks = request.index, prompt_blocks(request)
        return self._blocks[1]


def prompt_blocks(request: Request) -> PromptBlocks:
    """The blocks of a prompt as the gateway cuts them: 2 KiB, longer in long prompts."""
    hashes: list[int] = []
    ends: list[int] = []
    last = 0
    for key, end in request.prefix:
        if end - last >= max(BLOCK_TOKENS // 2, last // _GROWTH) and len(hashes) < MAX_BLOCKS:
            hashes.append(key)
            ends.append(end)
            last = end
    return PromptBlocks(hashes, ends, request.prompt)
