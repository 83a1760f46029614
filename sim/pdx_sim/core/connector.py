"""What the core calls to move KV, and the errors that end a load."""

from typing import Protocol

from pdx_sim.core.sequence import Sequence


class LoadError(Exception):
    """The KV of a D leg did not arrive. D's on_load_failure decides what follows."""


class MissError(Exception):
    """There is no KV to load: the engine computes it."""


class StrandedError(Exception):
    """A D leg was cancelled while P may still write into its blocks: the blocks stay held."""


class KVMover(Protocol):
    """One KV connector as the core calls it."""

    @property
    def finds_by_prompt(self) -> bool:
        """True if KV is found by the prompt, so that every leg may load. False if only D legs load."""

    def received(self, seq: Sequence) -> None:
        """A sequence has arrived at the core. It may wait long before its load begins."""

    def ended(self, seq: Sequence) -> None:
        """A sequence has ended, in whatever way; its load may not have begun."""

    async def load(self, seq: Sequence) -> None:
        """Load KV into the sequence's blocks; set its digest, and `cached` if less than the whole prompt was loaded.

        Raises MissError or LoadError; when cancelled, StrandedError.
        """

    async def save(self, seq: Sequence) -> None:
        """Save the KV of a prompt that was computed. The step ends when this returns."""

    def finish(self, seq: Sequence) -> bool:
        """A P leg was computed. True if its blocks stay held for a D."""

    def dropped(self, seq: Sequence) -> None:
        """A P leg ended before it was computed."""
