"""The credit of namespaces: which of them have lately used more than their share of the operator and the API server."""

from collections import Counter
from collections.abc import Callable
from typing import Final

_RECENT_SECONDS: Final = 2.0
"""How long a namespace counts as active after a reconcile: an object that becomes Ready has several, with pauses."""
CREDIT_SECONDS: Final = 5.0
"""How much work a namespace may cause until its share counts: some hundred reconciles take as long."""
_MOST_DEBT_SECONDS: Final = 1.0
"""What a namespace has used beyond its credit counts up to here: with a share of 0.1, it has credit after 10 s."""


class Credit:
    """Owner of what each namespace has used, in seconds of work, less its share of the time."""

    def __init__(self, clock: Callable[[], float], share: float) -> None:
        """`share`: work per second that costs a namespace no credit. `clock`: monotonic, in seconds."""
        self._clock = clock
        self._share = share
        self._reconciles: Counter[str] = Counter()
        """The reconciles of each namespace that run or wait for a slot."""
        self._last_at: dict[str, float] = {}
        """When the last reconcile of each active namespace began to wait or ended."""
        self._used: dict[str, float] = {}
        self._used_at = clock()

    def enter(self, namespace: str) -> None:
        """A reconcile of a namespace waits for a slot. Call `leave` when it has ended, or does not wait any more."""
        self._reconciles[namespace] += 1
        self._last_at[namespace] = self._clock()

    def leave(self, namespace: str) -> None:
        """A reconcile has ended: once for each `enter`."""
        self._reconciles -= Counter((namespace,))
        self._last_at[namespace] = self._clock()

    def use(self, namespace: str, seconds: float) -> None:
        """Count so much work of a namespace."""
        self.update()
        used = self._used.get(namespace, 0.0) + seconds
        self._used[namespace] = min(used, CREDIT_SECONDS + _MOST_DEBT_SECONDS)

    def update(self) -> None:
        """Subtract the shares from what was used, and forget the namespaces that are not active any more."""
        now = self._clock()
        allowed, self._used_at = self._share * (now - self._used_at), now
        self._used = {name: left for name, used in self._used.items() if (left := used - allowed) > 0}
        for name, since in list(self._last_at.items()):
            if now - since >= _RECENT_SECONDS and not self._reconciles[name]:
                del self._last_at[name]

    def active(self) -> list[str]:
        """Return the namespaces with a reconcile that runs or waits, or that has ended recently."""
        return list(self._last_at)

    def is_left(self, namespace: str) -> bool:
        """Whether a namespace has credit."""
        return self._used.get(namespace, 0.0) <= CREDIT_SECONDS
