"""Frames that bring worker processes to the latest snapshot."""

from pdx_proxy.endpoints.snapshot import Snapshot, SnapshotChange
from pdx_proxy.process.channel import encode


class SnapshotFrames:
    """Owner of the latest snapshot as workers receive it.

    A frame contains only what has changed since the snapshot that a worker has, and is encoded once for all workers
    that have the same one.
    """

    def __init__(self) -> None:
        self.none = Snapshot()
        """The snapshot of a worker that has just started."""
        self.latest = self.none
        self._frames: dict[int, tuple[Snapshot, bytes]] = {}
        """By the identity of the snapshot that a worker has."""

    def put(self, snapshot: Snapshot) -> None:
        """Replace the latest snapshot."""
        self.latest = snapshot
        self._frames.clear()

    def since(self, before: Snapshot) -> bytes:
        """Return the frame for a worker that has the snapshot `before`."""
        if id(before) not in self._frames:
            # The snapshot is kept with its frame, so that no other one gets its identity.
            self._frames[id(before)] = before, encode(SnapshotChange.between(before, self.latest))
        return self._frames[id(before)][1]
