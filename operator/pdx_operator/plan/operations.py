"""The writes of a plan, and the records of writes that failed or did not last."""

from dataclasses import dataclass

from pdx_api.kube.kinds import KIND_OF, Kind
from pdx_api.names import ANNOTATION_APPLIED
from pdx_operator.kube.resources import ChildKey
from pdx_operator.render.objects import Manifest


@dataclass(frozen=True, slots=True)
class Apply:
    """Create or update a child."""

    manifest: Manifest
    uid: str
    """Of the existing object; empty when none is in the cache."""
    reason: str
    """Path of the first field that differs; empty for a new object."""
    version: str = ""
    """Resource version of the existing object."""

    @property
    def desired(self) -> str:
        """Identifies the desired state: the hash of the manifest."""
        return str(self.manifest["metadata"]["annotations"][ANNOTATION_APPLIED])

    @property
    def kind(self) -> Kind:
        """The child's kind."""
        return KIND_OF[self.manifest["kind"]]

    @property
    def key(self) -> ChildKey:
        """The child's key."""
        return ChildKey(self.manifest["kind"], self.manifest["metadata"]["name"])


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a child."""

    key: ChildKey
    uid: str
    foreground: bool = False
    """The object exists until its dependents are gone."""

    @property
    def desired(self) -> str:
        """Identifies the desired state: this object does not exist."""
        return f"no {self.uid}"


@dataclass(frozen=True, slots=True)
class Problem:
    """A child that cannot be written or deleted."""

    child: ChildKey
    message: str
    """The API server's message; empty when a foreign object has the child's name."""


@dataclass(frozen=True, slots=True)
class RevertedChange:
    """A child that does not stay as it is applied."""

    child: ChildKey
    path: str
    """The field; empty when the child is deleted."""
