"""The prompts of transfer probes: each is new to the D that gets it, and each P computes few of them."""

import random
import string
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from pdx_proxy.verification.record import Pair

_WORD_COUNT: Final = 160
"""In a prompt. It has 300 to 400 tokens, more than the smallest piece that any connector transfers."""
_MIN_WORD_COUNT: Final = 10
_LETTERS: Final = 5


@dataclass(slots=True)
class Prompt:
    """A P's current prompt, and the names of the D's that have received it."""

    text: str
    created: float
    decodes: set[str] = field(default_factory=set)


class Prompts:
    """Owner of the current prompt of each P. A prompt is used for one period, and once for each D."""

    def __init__(self, period: float, rng: random.Random) -> None:
        self._period = period
        self._random = rng
        self._current: dict[str, Prompt] = {}
        self._word_counts: dict[str, int] = {}
        """By revision, where engines refused the default."""

    def prompt_for(self, pair: Pair, now: float) -> str:
        """Return P's current prompt, or a new one if it is too old or D has received it."""
        prefill, decode = pair
        prompt = self._current.get(prefill.name)
        if prompt is None or decode.name in prompt.decodes or now - prompt.created >= self._period:
            prompt = self._current[prefill.name] = Prompt(self._make_text(self._word_count(prefill.revision)), now)
        prompt.decodes.add(decode.name)
        return prompt.text

    def shorten(self, revision: str, refused: str) -> None:
        """Halve the length of new prompts after a refusal, unless that was done since the refused prompt was made."""
        count = self._word_count(revision)
        if len(refused.split()) == count:
            self._word_counts[revision] = max(count // 2, _MIN_WORD_COUNT)
            self._current.clear()

    def keep(self, names: Collection[str], revisions: Collection[str]) -> None:
        """Forget the prompts of engines that are gone, and the lengths of revisions that have no engine."""
        self._current = {name: prompt for name, prompt in self._current.items() if name in names}
        self._word_counts = {revision: count for revision, count in self._word_counts.items() if revision in revisions}

    def _word_count(self, revision: str) -> int:
        return self._word_counts.get(revision, _WORD_COUNT)

    def _make_text(self, count: int) -> str:
        letters = self._random.choices(string.ascii_lowercase, k=count * _LETTERS)
        return " ".join("".join(letters[at : at + _LETTERS]) for at in range(0, len(letters), _LETTERS))
