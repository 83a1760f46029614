"""Whether KV moves between the engines of a rollout's new revision, as far as the gateways have reported.

Gateways probe a pair once both of its engines are ready. Old engines stay until the first new pair has had time for
that, and for as long as a new pair is broken.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pdx_api.names import Role, engines_name
from pdx_api.verification import Broken, Finding
from pdx_operator.observed.workloads import ObservedPool

PROOF_SECONDS: Final = 60.0
"""How long old engines stay after the first new pair is ready: a failed transfer probe takes up to 45 s."""


@dataclass(frozen=True, slots=True)
class Unproven:
    """Why a rollout gives up no old engine."""

    broken: Broken | None = None
    """A new pair within which KV does not move; None: no new pair has been ready for long enough."""


def paired(pools: Iterable[ObservedPool]) -> set[str]:
    """The revisions with a ready engine of both roles."""
    ready: dict[Role, set[str]] = {role: set() for role in Role}
    for pool in pools:
        if min(pool.ready, pool.replicas):
            ready[pool.role].add(pool.revision)
    return ready[Role.PREFILL] & ready[Role.DECODE]


def unproven(
    deployment: str, revision: str, finding: Finding | None, ready_since: Mapping[str, float], now: float
) -> Unproven | None:
    """Why the revision may not replace another one yet; None: it may, or no gateway can tell.

    `ready_since` are the times since which a revision has a ready pair.
    """
    if finding is None or revision not in ready_since:
        return None
    prefixes = [f"{engines_name(deployment, role, revision)}-" for role in (Role.PREFILL, Role.DECODE)]
    for pair in finding.broken:
        if finding.broken_pairs and pair.prefill.startswith(prefixes[0]) and pair.decode.startswith(prefixes[1]):
            return Unproven(pair)
    return Unproven() if now - ready_since[revision] < PROOF_SECONDS else None
