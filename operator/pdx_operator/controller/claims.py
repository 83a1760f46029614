"""Observes the operators that hold objects of this operator's scope: conflicts, and Leases that have expired."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pdx_operator.kube.client import ApiError, Cluster, MissingError
from pdx_operator.kube.resources import LEASE, Body, Key
from pdx_operator.plan.claim import Claim, Claimed, claim_on

_READ_SECONDS: Final = 5.0
"""Between two reads of one Lease."""
_EXPIRED_SECONDS: Final = 60.0
"""A Lease that is not renewed for so long has expired: four times the default duration, so that an operator that
restarts keeps its objects."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Observed:
    """A Lease as it was last read."""

    renewal: str
    since: float
    read: float


class Claims:
    """Owner of the observed Leases. `own` is NAMESPACE/NAME of this operator's Lease; empty without one."""

    def __init__(self, cluster: Cluster, own: str, clock: Callable[[], float], count: Callable[[], None]) -> None:
        self.own = own
        self._cluster = cluster
        self._clock = clock
        self._count = count
        self._observed: dict[str, _Observed] = {}
        self._conflicts: dict[Key, str] = {}

    async def claim_on(self, key: Key, body: Body) -> Claim:
        """The claim on an object. A conflict is counted and logged once for each holder."""
        found = claim_on(body, self.own)
        if found.claim is not Claim.FOREIGN:
            self._conflicts.pop(key, None)
            return found.claim
        if self.own and not found.by_annotation and await self._has_expired(found.holder):
            return Claim.FREE
        self._report(key, found)
        return Claim.FOREIGN

    def forget(self, key: Key) -> None:
        """Forget a deleted object."""
        self._conflicts.pop(key, None)

    def _report(self, key: Key, found: Claimed) -> None:
        if self._conflicts.get(key) != found.holder:
            self._conflicts[key] = found.holder
            self._count()
            how = "its annotation names" if found.by_annotation else "its status names"
            log.warning("%s: %s the operator %s, so this operator writes nothing", key, how, found.holder)

    async def _has_expired(self, holder: str) -> bool:
        """Whether the Lease has not been renewed for a while, or does not exist. One that cannot be read has not."""
        now, observed = self._clock(), self._observed.get(holder)
        if observed is None or now - observed.read >= _READ_SECONDS:
            renewal = await self._renewal(holder)
            if renewal is None:
                self._observed.pop(holder, None)
                return False
            same = observed is not None and observed.renewal == renewal
            since = observed.since if observed is not None and same else now
            observed = self._observed[holder] = _Observed(renewal, since, now)
        return now - observed.since >= _EXPIRED_SECONDS

    async def _renewal(self, holder: str) -> str | None:
        """What changes with each renewal; None if the Lease cannot be read."""
        namespace, _, name = holder.partition("/")
        try:
            spec = (await self._cluster.get(LEASE, namespace, name)).get("spec") or {}
        except MissingError:
            return ""
        except ApiError as error:
            log.debug("the Lease %s cannot be read: %s", holder, error)
            return None
        return f"{spec.get('holderIdentity')} {spec.get('renewTime')}"
