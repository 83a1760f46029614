"""A cause of pods that are not ready, and how informative it is."""

import re
from dataclasses import dataclass
from typing import Final

INVALID: Final = "InvalidSpec"
"""Reason of conditions while the spec is invalid."""
_RANKS: Final = (
    *("listed", "image", "config", "volume", "memory", "start", "crash", "stuck", "refused", "place", "node"),
    "wait",
)
"""Sorts of causes, the most informative first: a cause with a remedy comes before one without."""
SERVICES: Final = "kvTransfer"
"""Field of the spec that describes side services."""
SURGE: Final = ", or set spec.rollout.maxSurge: 0 to replace engines in place"
"""A remedy during rollouts that run new engines in addition to old ones."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a pod is not ready. Equal causes are counted together."""

    rank: int
    reason: str
    text: str

    @property
    def waits(self) -> bool:
        """Whether it is enough to wait."""
        return self.rank == _RANKS.index("wait")


def found(kind: str, reason: str, text: str) -> Cause:
    """A cause of one of the sorts in `_RANKS`. `reason` is one word, `text` a clause with a remedy."""
    return Cause(_RANKS.index(kind), reason, text)


def sentence(text: str) -> str:
    """The first sentence of a text, on one line."""
    return re.split(r"\.\s", " ".join(text.split()), maxsplit=1)[0].rstrip(".")


def resources(field: str) -> str:
    """Where the spec states the resources of the pods that `field` describes: only an overlay states a service's."""
    return f"spec.{field}.{'podTemplate' if field == SERVICES else 'resources'}"
