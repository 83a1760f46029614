"""One push under one transfer ID: its engines, and the requests that free its KV blocks if it ends early."""

from typing import Final

from pdx_api.connectors.families import KVParams, Push, Settles
from pdx_api.vllm_metrics import read_metrics
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.engines.probe import page_of
from pdx_proxy.engines.transfer_params import identity_of
from pdx_proxy.handoff.failures import REFUSED_MAX_TOKENS
from pdx_proxy.handoff.request import Request
from pdx_proxy.handoff.settlements import Settlements
from pdx_proxy.payload.body import prefill_body, settling_body

_METRICS_SECONDS: Final = 1.0
"""How long an engine may take to report what its requests wait for."""


class Transfer:
    """The engines, the request and the transfer ID of a push. Holds no state of the attempt."""

    __slots__ = ("decode", "family", "id", "prefill", "request", "settlements")

    def __init__(self, settlements: Settlements, prefill: Endpoint, decode: Endpoint, request: Request) -> None:
        family = prefill.family
        assert isinstance(family, Push), "P and D are wired for a push"
        self.settlements = settlements
        self.family = family
        self.prefill = prefill
        self.decode = decode
        self.request = request
        self.id = settlements.engines.new_id()
        """The transfer ID, also the request ID of both legs."""

    @property
    def notifies(self) -> bool:
        """Whether D notifies P of a leg that it refuses or that is closed. P then waits for its own leg."""
        return self.family.settles is Settles.BY_PREFILL_LEG

    async def substitute(self, *, short: bool) -> bool:
        """Send P a leg under this ID, with the whole prompt or a short one; return whether P has finished it."""
        params, request = self.family.prefill_params(self.id), self.request
        body = settling_body(request.body.api, params, 1, self.id) if short else prefill_body(request.body, params)
        leg_id = self.settlements.engines.new_id() if short else self.id  # P may have had a leg that has this one
        return await self.settlements.send(self.prefill, request, body, leg_id, short=short) == 200

    async def free(self, params: KVParams, *, refused: bool) -> bool:
        """Free the blocks of a finished P by a D leg under this ID: one that D refuses, or one of one token."""
        decodes = self.settlements.engines.snapshot.decode
        others = [d for d in decodes if d.revision == self.prefill.revision]
        decode = next((d for d in others if d.name != self.decode.name), self.decode)
        identity = identity_of(self.prefill, self.family, params)
        assert identity is not None, "a P that has finished has an identity"
        leg_params = self.family.decode_params(self.id, identity)
        body = settling_body(self.request.body.api, leg_params, REFUSED_MAX_TOKENS if refused else 1, self.id)
        status = await self.settlements.send(decode, self.request, body, self.id, short=True)
        return 400 <= status < 500 if refused else status == 200

    async def decode_metrics(self) -> bytes:
        """Return D's metrics; empty if they cannot be read."""
        return await page_of(self.settlements.engines, self.decode, "/metrics", _METRICS_SECONDS)

    async def expired(self) -> float:
        """Return how many leases have ended at P, so that no D gets their KV; -1 if that is not known."""
        page = await page_of(self.settlements.engines, self.prefill, "/metrics", _METRICS_SECONDS)
        count = read_metrics(page).expired
        return -1.0 if count is None else count
