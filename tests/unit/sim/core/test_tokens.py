"""Tokens and texts."""

import pytest

from pdx_sim import expected_text, tokenize
from pdx_sim.core.blocks import blocks_for
from pdx_sim.core.tokens import chat_tokens, detokenize, pieces


@pytest.mark.parametrize("text", ["", "a", "abcd", "abcde", "Grüße, 世界", "x" * 4096])
def test_detokenize_reverses_tokenize(text: str) -> None:
    tokens = tokenize(text)
    assert detokenize(tokens) == text
    assert len(tokens) == blocks_for(len(text.encode()), 4)


def test_a_longer_answer_extends_a_shorter_one() -> None:
    prompt = tokenize("hello")
    assert expected_text(prompt, 9).startswith(expected_text(prompt, 4))
    assert len(pieces("x", 7)) == 7
    assert expected_text(tokenize("other"), 4) != expected_text(prompt, 4)


def test_chat_content_may_come_in_parts() -> None:
    plain = chat_tokens([{"role": "user", "content": "hi"}])
    assert plain == chat_tokens([{"role": "user", "content": [{"type": "text", "text": "hi"}]}])
    assert plain != chat_tokens([{"role": "system", "content": "hi"}])
