"""A push whose P answered, but was another start of the engine than D was sent to: nobody reads its KV."""

from pdx_api.connectors.families import KVParams
from pdx_proxy.handoff.settle import Ask, Free
from pdx_proxy.handoff.settlements import LastStep, Legs
from pdx_proxy.handoff.situation import Decode, Prefill, Situation, kind_of
from pdx_proxy.handoff.transfer import Transfer
from pdx_proxy.telemetry.counters import Settlement


class Stray(Legs):
    """P's finished leg, without a D."""

    __slots__ = ("_params", "_transfer", "request")

    def __init__(self, transfer: Transfer, params: KVParams) -> None:
        self.request = transfer.request
        self._transfer = transfer
        self._params = params

    def situation(self) -> Situation:
        kind = kind_of(self._transfer.family)
        return Situation(kind, self.request.stream, Prefill.FINISHED, Decode.NOT_SENT)

    async def perform(self, step: Ask) -> None:
        raise AssertionError(f"nothing to wait for: {step}")

    async def conclude(self, step: LastStep) -> Settlement:
        freed = await self._transfer.free(self._params, refused=step is Free.BY_REFUSED_LEG)
        return Settlement.RELEASED if freed else Settlement.LEASE

    def end(self, result: Settlement | None) -> None:
        """Its leg has ended, and its KV was never counted as pinned."""
