"""The tokens of a prompt in P's answer, for a D that need not render the messages again. Pure.

vLLM answers them for `return_token_ids`, once and outside the choices (entrypoints/openai/chat_completion/protocol.py,
ChatCompletionResponse). No text can look like them: in a JSON string, quotes are escaped.
"""

from typing import Final

_TOKENS: Final = b'"prompt_token_ids":['
_IN_LIST: Final = b"0123456789, "


def tokens_of(answer: bytes) -> bytes:
    """Return the list of tokens in a P's whole answer to a chat, as JSON; empty without one that D may get."""
    begin = answer.find(_TOKENS) + len(_TOKENS) - 1
    end = answer.find(b"]", begin) + 1 if begin >= len(_TOKENS) - 1 else 0
    tokens = answer[begin:end]
    return tokens if len(tokens) > 2 and not tokens[1:-1].translate(None, _IN_LIST) else b""


def count(tokens: bytes) -> int:
    """Return how many a list of tokens has."""
    return tokens.count(b",") + 1
