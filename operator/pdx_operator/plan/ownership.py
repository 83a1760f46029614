"""To which PDDeployment an existing object belongs."""

from enum import Enum, auto

from pdx_api.names import GROUP, KIND, LABEL_DEPLOYMENT
from pdx_operator.kube.resources import Body, controller_of


class Ownership(Enum):
    """The owner of an existing object, from the view of one PDDeployment."""

    OURS = auto()
    PREVIOUS_OWNER = auto()
    """Its controller is a deleted PDDeployment of the same name."""
    ORPHAN = auto()
    """It has our label and no controller."""
    FOREIGN = auto()


def ownership(metadata: Body, name: str, uid: str) -> Ownership:
    """The owner of the object with this metadata, for the PDDeployment with this name and uid."""
    owner = controller_of({"metadata": metadata})
    if not owner:
        ours = (metadata.get("labels") or {}).get(LABEL_DEPLOYMENT) == name
        return Ownership.ORPHAN if ours else Ownership.FOREIGN
    if owner["uid"] == uid:
        return Ownership.OURS
    group = str(owner["apiVersion"]).partition("/")[0]
    previous = (group, owner["kind"], owner["name"]) == (GROUP, KIND, name)
    return Ownership.PREVIOUS_OWNER if previous else Ownership.FOREIGN
