"""Observes the operators that hold objects of this operator's scope: conflicts, and holders that are gone.

A holder whose Lease expires is gone. Its Lease may be unreadable: an uninstall removes the right to read it. Then this
operator writes a notice into one of the holder's objects. An operator that works removes a notice from its objects
within seconds. A holder that leaves it for a minute is gone too.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from pdx_api.kube.client import Cluster, MissingError, RefusedError
from pdx_api.kube.kinds import LEASE
from pdx_api.names import ANNOTATION_OPERATOR
from pdx_operator.kube.resources import Body, Key
from pdx_operator.plan.claim import Claim, Claimed, claim_on
from pdx_operator.status.notice import notice_in

_READ_SECONDS: Final = 5.0
"""Between two reads of one Lease."""
_EXPIRED_SECONDS: Final = 60.0
"""A Lease that is not renewed for so long has expired: four times the default duration, so that an operator that
restarts keeps its objects. A notice that is not removed for so long has no answer."""
_ANSWER_SECONDS: Final = 600.0
"""How long an answer, or its absence, counts until the holder is asked again."""

log = logging.getLogger(__name__)


class _Holder(Enum):
    """What is known about a holder."""

    WORKS = auto()
    EXPIRED = auto()
    SILENT = auto()
    """Its Lease cannot be read, and it has not answered."""
    ASKED = auto()
    """Its Lease cannot be read, and there is no answer yet."""
    UNASKED = auto()


@dataclass(slots=True)
class _Observed:
    """A Lease as it was last read."""

    renewal: str
    since: float
    read: float


@dataclass(slots=True)
class _Asked:
    """A notice to a holder whose Lease cannot be read."""

    key: Key
    since: float
    answered: bool = False


class Claims:
    """Owner of the observed Leases. `own` is NAMESPACE/NAME of this operator's Lease; empty without one."""

    def __init__(self, cluster: Cluster, own: str, clock: Callable[[], float], count: Callable[[], None]) -> None:
        self.own = own
        self._cluster = cluster
        self._clock = clock
        self._count = count
        self._observed: dict[str, _Observed] = {}
        self._asked: dict[str, _Asked] = {}
        self._conflicts: dict[Key, str] = {}

    async def claim_on(self, key: Key, body: Body) -> tuple[Claim, str]:
        """The claim on an object, and the notice to write into a foreign one: one sentence, empty for none.

        A conflict is counted and logged once for each holder.
        """
        found = claim_on(body, self.own)
        if found.claim is not Claim.FOREIGN:
            self._conflicts.pop(key, None)
            return found.claim, ""
        self._report(key, found)
        if not self.own:
            return Claim.FOREIGN, ""
        state = await self._state(found.holder, key, body)
        if state in (_Holder.EXPIRED, _Holder.SILENT):
            return (Claim.FOREIGN, self._assigned(found.holder, state)) if found.by_annotation else (Claim.FREE, "")
        return Claim.FOREIGN, self._question(key, found) if state is _Holder.UNASKED else ""

    def forget(self, key: Key) -> None:
        """Forget a deleted object."""
        self._conflicts.pop(key, None)
        self.withdraw(key)

    def withdraw(self, key: Key) -> None:
        """Forget a question that was asked in this object: its notice could not be written, or the object is gone."""
        self._asked = {holder: asked for holder, asked in self._asked.items() if asked.key != key}

    def _report(self, key: Key, found: Claimed) -> None:
        if self._conflicts.get(key) != found.holder:
            self._conflicts[key] = found.holder
            self._count()
            how = "its annotation names" if found.by_annotation else "its status names"
            log.warning("%s: %s the operator %s, so this operator writes nothing", key, how, found.holder)

    def _question(self, key: Key, found: Claimed) -> str:
        self._asked[found.holder] = _Asked(key, self._clock())
        subject = f"the operator {found.holder}, whose Lease {self.own} cannot read"
        if found.by_annotation:
            return f"the annotation {ANNOTATION_OPERATOR} assigns this object to {subject}"
        return (
            f"this object belongs to {subject}; {self.own} takes it over unless that operator answers within a minute"
        )

    def _assigned(self, holder: str, state: _Holder) -> str:
        why = "has not renewed its Lease" if state is _Holder.EXPIRED else "does not answer"
        return (
            f"no operator manages this object: the annotation {ANNOTATION_OPERATOR} assigns it to {holder}, which "
            f"{why}; start that operator, or set the annotation to {self.own}, or remove it"
        )

    async def _state(self, holder: str, key: Key, body: Body) -> _Holder:
        now, observed = self._clock(), self._observed.get(holder)
        if observed is None or now - observed.read >= _READ_SECONDS:
            renewal = await self._renewal(holder)
            if renewal is None:
                self._observed.pop(holder, None)
                return self._answer(holder, key, body)
            same = observed is not None and observed.renewal == renewal
            since = observed.since if observed is not None and same else now
            observed = self._observed[holder] = _Observed(renewal, since, now)
        return _Holder.EXPIRED if now - observed.since >= _EXPIRED_SECONDS else _Holder.WORKS

    def _answer(self, holder: str, key: Key, body: Body) -> _Holder:
        """What the notice in one of the holder's objects has shown."""
        now, asked = self._clock(), self._asked.get(holder)
        if asked is None or now - asked.since >= _ANSWER_SECONDS:
            return _Holder.UNASKED
        if key == asked.key and not notice_in(body):
            asked.answered = True
        if asked.answered:
            return _Holder.WORKS
        return _Holder.SILENT if now - asked.since >= _EXPIRED_SECONDS else _Holder.ASKED

    async def _renewal(self, holder: str) -> str | None:
        """What changes with each renewal; None without the right to read the Lease. Raises UnavailableError."""
        namespace, _, name = holder.partition("/")
        try:
            spec = (await self._cluster.get(LEASE, namespace, name)).get("spec") or {}
        except MissingError:
            return ""
        except RefusedError as error:
            log.debug("the Lease %s cannot be read: %s", holder, error)
            return None
        return f"{spec.get('holderIdentity')} {spec.get('renewTime')}"
