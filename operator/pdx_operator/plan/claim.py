"""Which operator writes a PDDeployment, where the scopes of several installations overlap."""

from dataclasses import dataclass
from enum import Enum, auto

from pdx_api.names import ANNOTATION_OPERATOR
from pdx_operator.kube.resources import Body


class Claim(Enum):
    """The claim on an object, from the view of one operator."""

    OURS = auto()
    FREE = auto()
    """This operator may claim it."""
    FOREIGN = auto()


@dataclass(frozen=True, slots=True)
class Claimed:
    """A claim, and the operator that holds it."""

    claim: Claim
    holder: str = ""
    """NAMESPACE/NAME of its Lease; empty for a free object."""
    by_annotation: bool = False
    """The annotation names the holder: the object stays its own also when its Lease has expired."""


def claim_on(body: Body, own: str) -> Claimed:
    """The claim on an object. `own` is NAMESPACE/NAME of this operator's Lease; empty: it has none and claims nothing.

    The annotation decides; without it `status.operator`, which the first operator writes.
    """
    desired = (body["metadata"].get("annotations") or {}).get(ANNOTATION_OPERATOR) or ""
    holder = (body.get("status") or {}).get("operator") or ""
    if desired and desired != own:
        return Claimed(Claim.FOREIGN, desired, by_annotation=True)
    if holder == own:
        return Claimed(Claim.OURS, own)
    if not holder or (desired and desired == own):
        return Claimed(Claim.FREE)
    return Claimed(Claim.FOREIGN, holder)
