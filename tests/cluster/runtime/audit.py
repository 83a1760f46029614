"""What operators have written, as the API server's audit log shows it, and in which operator's term."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pdx_api.names import FIELD_MANAGER


@dataclass(frozen=True, slots=True)
class Write:
    """A write that the API server has performed."""

    done: str
    """When it was answered, in UTC to the microsecond: such texts sort like moments."""
    user: str
    agent: str
    """The User-Agent header: an operator's ends with the number of its process."""
    verb: str
    resource: str
    namespace: str
    name: str
    subresource: str
    holder: str
    """The holder in the body of a Lease."""

    @property
    def written(self) -> str:
        """The object."""
        return f"{self.resource} {self.namespace}/{self.name}"

    @property
    def is_of_operator(self) -> bool:
        """Whether an operator has sent it."""
        return self.agent.startswith(f"{FIELD_MANAGER} (")

    @classmethod
    def of(cls, event: dict[str, Any]) -> Self | None:
        """An event of the log; None if nothing was written."""
        what = event.get("objectRef") or {}
        if event["responseStatus"]["code"] >= 300 or "dryRun" in event["requestURI"]:
            return None
        spec = (event.get("requestObject") or {}).get("spec") or {}
        return cls(
            done=event["stageTimestamp"],
            user=event["user"]["username"],
            agent=event.get("userAgent", ""),
            verb=event["verb"],
            resource=what.get("resource", ""),
            namespace=what.get("namespace", ""),
            name=what.get("name", ""),
            subresource=what.get("subresource", ""),
            holder=spec.get("holderIdentity") or "",
        )


class Audit:
    """The log from the moment at which this object is made."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = path.stat().st_size
        self._writes: list[Write] = []

    def writes(self) -> Sequence[Write]:
        """All writes so far, in the order in which they were answered."""
        with self._path.open("rb") as log:
            log.seek(self._offset)
            text = log.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        found = [Write.of(json.loads(line)) for line in whole.splitlines()]
        self._writes += [write for write in found if write is not None]
        return sorted(self._writes, key=lambda write: write.done)

    def of_operators(self, namespace: str) -> Sequence[Write]:
        """What operators have written there."""
        return [write for write in self.writes() if write.is_of_operator and write.namespace == namespace]


@dataclass(frozen=True, slots=True)
class Term:
    """The writes between the moment when an operator takes the Lease, and the moment when another one does."""

    holder: str
    agent: str
    writes: tuple[Write, ...]

    def writers(self) -> dict[str, set[str]]:
        """Object -> the agents that have written it."""
        found: dict[str, set[str]] = {}
        for write in self.writes:
            found.setdefault(write.written, set()).add(write.agent)
        return found


def terms(writes: Iterable[Write], namespace: str, lease: str) -> Iterator[Term]:
    """The terms of one Lease, with the operators' writes in the namespace that fall into each.

    A write counts for the term in which it was answered: its effect is not later.
    """
    holder, agent, found = "", "", list[Write]()
    for write in sorted(writes, key=lambda write: write.done):
        if write.resource == "leases" and write.name == lease:
            if write.holder and write.holder != holder:
                if holder or found:
                    yield Term(holder, agent, tuple(found))
                holder, agent, found = write.holder, write.agent, []
        elif write.namespace == namespace and write.is_of_operator:
            found.append(write)
    yield Term(holder, agent, tuple(found))
