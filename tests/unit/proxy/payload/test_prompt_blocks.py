"""Blocks of prompts: equal beginnings have equal blocks, whatever follows and however the body is read."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdx_proxy.payload.body import read_body, read_large_body
from pdx_proxy.payload.features import PromptReader
from pdx_proxy.payload.prompt_blocks import MAX_BLOCKS, PromptBlocks

READER = PromptReader(blocks=True)
CHAT = "/v1/chat/completions"


def blocks_of(**members: Any) -> PromptBlocks:
    return read_body(json.dumps(members).encode(), "application/json", CHAT, READER).features.blocks


def large_blocks_of(**members: Any) -> PromptBlocks:
    slices = read_large_body(json.dumps(members).encode(), "application/json", CHAT, READER)
    while True:
        try:
            next(slices)
        except StopIteration as end:
            found: PromptBlocks = end.value.features.blocks
            return found


def common(one: PromptBlocks, other: PromptBlocks) -> int:
    """Tokens of the blocks that both begin with."""
    tokens = 0
    for mine, theirs, end in zip(one.hashes, other.hashes, one.ends, strict=False):
        if mine != theirs:
            break
        tokens = end
    return tokens


def chat(*texts: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[index % 2], "content": text} for index, text in enumerate(texts)]


TEXT = "Tell me more about it. "


@given(st.lists(st.text(max_size=30).map(lambda text: text * 40), min_size=1, max_size=12))
def test_a_conversation_keeps_its_blocks(texts: list[str]) -> None:
    longer = blocks_of(messages=chat(*texts, "And then?", TEXT * 100))
    shorter = blocks_of(messages=chat(*texts))
    assert longer.hashes[: len(shorter.hashes)] == shorter.hashes
    assert longer.ends[: len(shorter.ends)] == shorter.ends


@given(st.lists(st.text(max_size=30).map(lambda text: text * 60), max_size=30), st.text().map(lambda text: text * 99))
def test_large_bodies_have_the_same_blocks(texts: list[str], system: str) -> None:
    members = {"system": system, "tools": [{"name": system}] * 3, "messages": chat(*texts)}
    one, other = blocks_of(**members), large_blocks_of(**members)
    assert (one.hashes, one.ends, one.tokens) == (other.hashes, other.ends, other.tokens)


@pytest.mark.parametrize(
    "size", [0, 1, 253, 254, 255, 4093, 4094, 4095, 4300, 4400, 12_286, 12_287, 99_999, 131_069, 140_000]
)
def test_one_text_has_the_same_blocks_by_the_short_way(size: int) -> None:
    text = "".join(chr(97 + n % 23) for n in range(size))
    one, other = blocks_of(model="m", prompt=text), large_blocks_of(model="m", prompt=text)
    assert (one.hashes, one.ends, one.tokens) == (other.hashes, other.ends, other.tokens)


def test_a_long_conversation_keeps_its_blocks_from_small_to_large_bodies() -> None:
    texts = [f"{number} {TEXT * 150}" for number in range(90)]
    small, large = blocks_of(messages=chat(*texts[:60])), large_blocks_of(messages=chat(*texts))
    assert small.tokens > 50_000
    assert common(small, large) > 0.96 * small.tokens


KEYS: list[tuple[str, dict[str, Any]]] = [
    ("an adapter", {"model": "lora"}),
    ("a salt", {"cache_salt": "mine"}),
    ("another salt", {"cache_salt": "yours"}),
    ("a template", {"chat_template": "mine"}),
    ("arguments of the template", {"chat_template_kwargs": {"enable_thinking": False}}),
    ("tools", {"tools": [{"name": "x" * 300}]}),
]


def test_what_separates_prompts_is_in_the_key() -> None:
    messages = chat(TEXT * 100)
    found = [blocks_of(**{"model": "base", "messages": messages, **more}).hashes[-1] for _, more in KEYS]
    found.append(blocks_of(model="base", messages=messages).hashes[-1])
    assert len({*found}) == len(found)
    assert blocks_of(model="base", messages=messages, temperature=1, max_tokens=5).hashes[-1] == found[-1]


def test_the_end_of_one_part_separates_prompts_too() -> None:
    """A short rest of the tools belongs to no block of its own, and is in the hashes of the messages."""
    one, other = (blocks_of(tools=[{"name": name * 20}], messages=chat(TEXT * 100)) for name in ("a", "b"))
    assert one.ends == other.ends
    assert not {*one.hashes} & {*other.hashes}


def test_prompts_with_one_system_prompt_share_it() -> None:
    system = {"role": "system", "content": "Be brief. " * 120}
    one, other = (blocks_of(messages=[system, *chat(f"{name} {TEXT * 200}")]) for name in "ab")
    assert common(one, other) == one.ends[0]
    assert common(one, other) == pytest.approx(len(json.dumps(system)) / 4, abs=2)


BILLING = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=%s;"}


def _agents(cch: str, *texts: str) -> dict[str, Any]:
    billing = {**BILLING, "text": BILLING["text"] % cch}
    return {"system": [billing, {"type": "text", "text": "Be brief. " * 300}], "messages": chat(*texts)}


@pytest.mark.parametrize("read", [blocks_of, large_blocks_of])
def test_what_vllm_removes_does_not_separate_prompts(read: Any) -> None:
    """The first text of Claude Code's system prompt differs with every request."""
    one, other = read(**_agents("a1b2", "go")), read(**_agents("c3d4", "go", "hu"))
    assert common(one, other) > 750 > 0.97 * one.tokens
    assert one.tokens == read(**_agents("longer-than-before", "go")).tokens
    plain = read(**{**_agents("a1b2", "go"), "system": BILLING["text"] + "Be brief. " * 300})
    assert common(one, plain) == 0


def test_a_response_has_the_blocks_of_its_conversation() -> None:
    texts = (TEXT * 50, TEXT * 60, TEXT * 70)
    shorter = blocks_of(instructions=TEXT * 30, tools=[{"type": "function"}], input=chat(*texts[:2]))
    longer = blocks_of(instructions=TEXT * 30, tools=[{"type": "function"}], input=chat(*texts))
    assert common(shorter, longer) > 0.9 * shorter.tokens
    other = blocks_of(instructions="Other. " + TEXT * 30, tools=[{"type": "function"}], input=chat(*texts))
    assert common(other, longer) < 30
    assert blocks_of(input=TEXT * 50).tokens == blocks_of(prompt=TEXT * 50).tokens


def test_texts_and_token_ids_are_measured_by_their_bytes() -> None:
    assert blocks_of(prompt="x" * 4094).tokens == 1024
    ids = blocks_of(prompt=[12345] * 1000)
    assert ids.tokens == pytest.approx(1000, rel=0.2)
    assert blocks_of(prompt=[[12345] * 1000]).tokens == pytest.approx(ids.tokens, abs=1)
    assert blocks_of(prompt=["x" * 4092]).tokens == 1024
    assert (blocks_of(seed=1).tokens, blocks_of(seed=1).hashes) == (0, [])


def test_the_same_prompt_is_cached_although_it_is_short() -> None:
    short = blocks_of(prompt="x" * 300)
    assert short.ends == [75]
    assert blocks_of(prompt="x" * 200).hashes == []


@pytest.mark.parametrize("texts", [[TEXT * 400_000], [TEXT * 20] * 18_000])
def test_the_number_of_blocks_is_bounded(texts: list[str]) -> None:
    found = large_blocks_of(messages=chat(*texts))
    assert found.tokens > 2_000_000
    assert 150 < len(found.hashes) <= MAX_BLOCKS
    assert found.ends[-1] > 0.9 * found.tokens
    assert max(b - a for a, b in zip(found.ends, found.ends[1:], strict=False)) < 0.04 * found.tokens


def test_a_block_ends_at_the_first_brace_after_1_kib() -> None:
    texts = ["x" * 500] * 8
    sizes = [len(json.dumps(message)) for message in chat(*texts)]
    found = blocks_of(messages=chat(*texts))
    ends = [1]
    for size in sizes:
        ends.append(ends[-1] + size + 2)
    assert found.ends == [(ends[number] - 2) // 4 for number in (2, 4, 6, 8)]
    assert blocks_of(messages=chat("}" * 900)).ends == [], "a text may have braces, and is too short"
    assert blocks_of(messages=chat("}" * 5000)).ends == [256, 512, 768, 1024]
