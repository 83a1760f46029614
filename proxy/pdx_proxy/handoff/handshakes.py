"""The pairs that have exchanged KV, indexed by engine."""

from pdx_proxy.endpoints.endpoint import Pairing, Start


class Handshakes:
    """Pairs that have exchanged KV in this generation of both. Contains no pair of an earlier generation.

    The cost of `apply` depends on the starts that begin and end, not on the number of pairs.
    """

    __slots__ = ("_of", "pairs")

    def __init__(self) -> None:
        self.pairs: set[Pairing] = set()
        self._of: dict[Start, set[Pairing]] = {}
        """The pairs of each start in force."""

    def add(self, pair: Pairing) -> None:
        """Record a pair, unless a generation of it is over."""
        prefill, decode = self._of.get(pair[:2]), self._of.get(pair[2:])
        if prefill is not None and decode is not None:
            self.pairs.add(pair)
            prefill.add(pair)
            decode.add(pair)

    def apply(self, current: set[Start]) -> None:
        """Receive the starts in force, and forget the pairs of those that are over."""
        for start in self._of.keys() - current:
            for pair in self._of.pop(start):
                self.pairs.discard(pair)
                other = self._of.get(pair[2:] if pair[:2] == start else pair[:2])
                if other is not None:
                    other.discard(pair)
        for start in current - self._of.keys():
            self._of[start] = set()
