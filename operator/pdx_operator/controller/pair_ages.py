"""Since when each revision of an object has a ready pair of engines."""

from collections.abc import Callable
from math import inf

from pdx_api.verification import Finding, Verdict
from pdx_operator.observed.workloads import Workloads
from pdx_operator.plan.proof import PROOF_SECONDS, paired


class PairAges:
    """Owner of the times of one object's revisions; `clock` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.since: dict[str, float] = {}

    def update(self, workloads: Workloads, finding: Finding | None) -> None:
        """Take note of the revisions that have a ready pair now. A finding about a single one proves it."""
        now, revisions = self._clock(), paired(workloads.pools.values())
        self.since = {revision: self.since.get(revision, now) for revision in revisions}
        if len(revisions) == 1 and finding is not None and finding.verdict is Verdict.VERIFIED:
            self.since = dict.fromkeys(revisions, -inf)

    def until_proven(self, revision: str) -> float:
        """Seconds until a revision with a ready pair has had time for a transfer probe."""
        return self.since[revision] + PROOF_SECONDS - self._clock()
