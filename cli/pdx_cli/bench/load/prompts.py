"""Texts of prompts: as many tokens as required, with equal beginnings where a trace has them. Pure.

All words have three letters, and a blank follows each. A word is one token of the usual tokenizers, and of `pdx sim`;
for other tokenizers the number of words is scaled by what a first request has shown.
"""

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

VOCABULARY: Final = (
    *("act", "add", "age", "ago", "aid", "aim", "air", "all", "and", "any", "are", "arm", "art", "bad", "bag", "bar"),
    *("bed", "big", "bit", "box", "boy", "bus", "but", "buy", "can", "car", "cut", "dad", "day", "did", "dog", "eat"),
    *("end", "eye", "far", "few", "fit", "fly", "for", "fun", "gas", "get", "got", "gun", "had", "has", "her", "him"),
    *("his", "hit", "hot", "how", "ice", "its", "job", "key", "kid", "law", "lay", "led", "leg", "let", "lie", "lot"),
)
"""As many as six bits distinguish."""
_MASK: Final = len(VOCABULARY) - 1
assert not len(VOCABULARY) & _MASK
_ROOT: Final = "root"


@lru_cache(maxsize=4096)
def filler(key: str, count: int) -> str:
    """Return so many words, each followed by a blank, that depend on the key alone."""
    data = hashlib.shake_128(key.encode()).digest(count)
    return "".join([f"{VOCABULARY[byte & _MASK]} " for byte in data])


def text(salt: str, blocks: Sequence[tuple[int, int]], tokens: int, terms_per_token: float = 1.0) -> str:
    """Return the text of a prompt.

    `blocks`: the key and the end in tokens of each block; equal keys have equal texts for one salt. What follows the
    last block belongs to this prompt alone, whose last key makes it so.
    """
    parts: list[str] = []
    begin, last = 0, _ROOT
    for key, end in blocks:
        parts.append(filler(f"{salt}/{key}", _terms(end, terms_per_token) - _terms(begin, terms_per_token)))
        begin, last = end, str(key)
    if tokens > begin:
        rest = _terms(tokens, terms_per_token) - _terms(begin, terms_per_token)
        parts.append(filler(f"{salt}/{last}/rest", rest))
    return "".join(parts).rstrip()


def _terms(tokens: int, terms_per_token: float) -> int:
    return max(1, round(tokens * terms_per_token)) if tokens else 0
