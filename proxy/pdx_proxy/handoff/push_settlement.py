"""What frees the blocks of a rendezvous that ends early: one further leg under its id, as its family settles."""

from typing import Final

from pdx_api.connectors.families import KVParams, Push, Settles
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.engines.leg import Leg
from pdx_proxy.engines.transfer_params import identity_of
from pdx_proxy.handoff.base import FULL, HTTP_BAD_REQUEST, REFUSED_MAX_TOKENS, has_answered
from pdx_proxy.handoff.serving_state import ServingState
from pdx_proxy.handoff.settlement import Settlements
from pdx_proxy.http.upstream.failures import DeadlineExceeded, EngineFailure
from pdx_proxy.payload.request import Request, prefill_body, settling_body
from pdx_proxy.telemetry.counters import Settlement

PUSH_SECONDS: Final = 0.1
"""How long after P's end a D whose answer shows no first event is given to take the KV."""
_NOT_BEGUN: Final = (*range(400, 500), FULL)
"""What P answers to a leg that does not reach its engine."""


class PushSettlement:
    """Who was to meet under which id. It knows nothing of how the attempt went."""

    __slots__ = ("_decode", "_engines", "_family", "_id", "_meets", "_prefill", "_request", "_serving", "_settlements")

    def __init__(
        self,
        serving: ServingState,
        settlements: Settlements,
        family: Push,
        pair: tuple[Endpoint, Endpoint],
        request: Request,
        meeting: str,
    ) -> None:
        self._serving = serving
        self._engines = serving.engines
        self._settlements = settlements
        self._family = family
        self._prefill, self._decode = pair
        self._request = request
        self._id = meeting
        self._meets = family.settles is Settles.BY_PREFILL_LEG

    async def decode_takes_it(self, leg: Leg) -> bool:
        """Whether D, whose leg this is, has the KV of a P that has finished, or needs it no more."""
        seconds = self._engines.deadlines.settle if self._request.stream else PUSH_SECONDS
        try:
            answer = await leg.opened(seconds)
            return answer.status == 200 or (self._meets and HTTP_BAD_REQUEST not in answer.body)
        except DeadlineExceeded:
            return True
        except EngineFailure:
            return False

    async def unmet(self, failure: Exception | None, *, refused: bool = False) -> Settlement:
        """No leg of P's has come to its end under the id that D was told: another one may take its place.

        A short one only where D has refused its leg and wants no KV: any other D would keep what P writes as the KV of
        its own prompt. `failure` is that of P's leg.
        """
        begun = failure is not None and not has_answered(failure, _NOT_BEGUN)
        if not self._meets or begun:
            return Settlement.LEASE if refused else self.lost()
        params = self._family.prefill_params(self._id)
        body = prefill_body(self._request.body, params)
        if refused:
            body = settling_body(self._request.path, params, 1, self._id)
        status = await self._settlements.call(self._prefill, self._request, body, self._id)
        if status == 200:
            return Settlement.FINISHED
        return Settlement.LEASE if refused else self.lost()  # a D that refuses holds nothing

    async def free(self, params: KVParams) -> Settlement:
        """Free what P has finished by a D leg under the same id: of one token, or one that D refuses."""
        others = [d for d in self._engines.snapshot.decode if d.revision == self._prefill.revision]
        decode = next((d for d in others if d.name != self._decode.name), self._decode)
        identity = identity_of(self._prefill, self._family, params)
        assert identity is not None, "a P that has finished is known"
        leg_params = self._family.decode_params(self._id, identity)
        body = settling_body(self._request.path, leg_params, REFUSED_MAX_TOKENS if self._meets else 1, self._id)
        status = await self._settlements.call(decode, self._request, body, self._id)
        freed = 400 <= status < 500 if self._meets else status == 200
        return Settlement.RELEASED if freed else Settlement.LEASE

    def lost(self) -> Settlement:
        """D waits for a push that never comes."""
        self._engines.lost(self._decode)
        return Settlement.DECODE_LOST
