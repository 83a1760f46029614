"""Texts of prompts: lengths, equal beginnings, and other texts in another step."""

from pdx_cli.bench.load.prompts import VOCABULARY, text
from pdx_sim import tokenize


def test_a_prompt_has_as_many_tokens_as_required() -> None:
    for tokens in (1, 2, 17, 512, 4000):
        assert len(tokenize(text("step", [(1, tokens)], tokens))) == tokens
    assert len(tokenize(text("step", [(1, 500)], 512))) == 512
    assert all(len(word) == 3 for word in VOCABULARY)
    assert len(set(VOCABULARY)) == 64


def test_a_tokenizer_with_more_tokens_gets_fewer() -> None:
    assert len(text("step", [], 300, terms_per_token=0.5).split()) == 150


def test_equal_keys_are_equal_beginnings_and_nothing_else_is() -> None:
    first = tokenize(text("step", [(1, 32), (2, 64)], 70))
    second = tokenize(text("step", [(1, 32), (3, 64)], 70))
    assert first[:32] == second[:32]
    assert first[32:48] != second[32:48]
    assert text("step", [(1, 32)], 64)[:200] != text("other", [(1, 32)], 64)[:200]


def test_what_follows_the_last_block_differs_between_prompts() -> None:
    assert text("step", [(1, 32), (2, 40)], 60)[160:] != text("step", [(1, 32), (3, 40)], 60)[160:]
