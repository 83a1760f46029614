"""The estimate of a prompt's tokens, against two real tokenizers and the table in docs/gateway/choosing.md."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from statistics import median

import mistral_common
import orjson
import pytest
from mistral_common.tokens.tokenizers.sentencepiece import SentencePieceTokenizer
from mistral_common.tokens.tokenizers.tekken import Tekkenizer

from pdx_proxy.payload.features import PromptReader
from pdx_proxy.payload.prompt import estimate, is_short

ROOT = Path(__file__).parents[4]
TEXTS = Path(__file__).parent / "texts"
DATA = Path(mistral_common.__file__).parent / "data"
SLACK = 0.08
"""How far the measured error may exceed the documented one: the samples of code change, and three of 60 pieces decide
the 95th percentile."""

Count = Callable[[str], int]


def records() -> str:
    """JSON as programs send it: short keys, numbers, no spaces."""
    rows = (
        {
            "id": i,
            "user": f"u{i * 7919 % 100000:05d}",
            "at": f"2026-11-{i % 28 + 1:02d}T{i % 24:02d}:00:00Z",
            "amount": round(i * 13.37, 2),
            "tags": ["new", "paid"],
            "ok": i % 3 > 0,
            "place": {"lat": round(52.5 + i / 1000, 4), "lon": round(13.4 - i / 999, 4)},
        }
        for i in range(200)
    )
    return "\n".join(json.dumps(row, separators=(",", ":")) for row in rows)


def samples(text: str, random: Random) -> Iterator[str]:
    """Pieces of some 50 to 500 tokens."""
    for _ in range(60):
        size = min(random.choice((200, 400, 800, 1600)), len(text) - 1)
        start = random.randrange(len(text) - size)
        yield text[start : start + size]


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Count]:
    tekken = Tekkenizer.from_file(str(DATA / "tekken_240911.json"))
    pieces = SentencePieceTokenizer(str(DATA / "mistral_instruct_tokenizer_240323.model.v3"))
    return {
        "Tekken": lambda text: len(tekken.encode(text, bos=False, eos=False)),
        "SentencePiece": lambda text: len(pieces.encode(text, bos=False, eos=False)),
    }


def text_of(kind: str) -> str:
    return records() if kind == "JSON" else (TEXTS / f"{kind.lower()}.txt").read_text()


def errors(kind: str, count: Count) -> tuple[float, float]:
    """Median and 95th percentile of the estimate's error, as a share of the tokens."""
    found = []
    for text in samples(text_of(kind), Random(kind)):
        tokens = count(text)
        found.append(abs(estimate(orjson.dumps(text)) - tokens) / tokens)
    return median(found), sorted(found)[int(len(found) * 0.95)]


def documented() -> dict[str, list[float]]:
    """The document's table: kind of text -> median and p95 of each tokenizer."""
    page = (ROOT / "docs/gateway/choosing.md").read_text()
    table = page[page.index("| estimate of |") :].split("\n\n", 1)[0].splitlines()[2:]
    rows = ([cell.strip() for cell in line.strip("| ").split("|")] for line in table)
    return {
        kind.split()[0]: [int(number) / 100 for number in re.findall(r"\d+", " ".join(cells))] for kind, *cells in rows
    }


@pytest.mark.parametrize("kind", ["English", "code", "JSON", "German", "Russian", "Chinese"])
def test_the_estimates_error_is_as_documented(kind: str, tokenizers: dict[str, Count]) -> None:
    measured = [each for name in ("Tekken", "SentencePiece") for each in errors(kind, tokenizers[name])]
    stated = documented()[kind]
    print(kind, [f"{each:.0%}" for each in measured])  # noqa: T201 (for the document)
    assert all(a <= b + SLACK for a, b in zip(measured, stated, strict=True)), (measured, stated)


@pytest.mark.parametrize("kind", ["German", "Chinese", "Russian"])
def test_escaped_characters_count_as_what_they_are(kind: str) -> None:
    text = text_of(kind)[:500]
    assert estimate(json.dumps(text).encode()) == estimate(orjson.dumps(text))
    estimate(b'"half a pair: \\ud800"')


IDS = [(b"[1,2,3]", 3), (b"[ 1, 22 ,333 ]", 3), (b"[[1,2,3]]", 3), (b"[7]", 1)]


@pytest.mark.parametrize(("value", "tokens"), IDS)
def test_token_ids_are_counted(value: bytes, tokens: int) -> None:
    assert estimate(value) == tokens


def test_every_part_of_a_prompt_counts() -> None:
    text = b'"' + b"some more words " * 20 + b'"'
    tokens = estimate(text)
    for members in ({"prompt": text}, {"messages": text, "model": text}, {"input": text}):
        assert is_short(members, int(tokens) + 1)
        assert not is_short(members, int(tokens) - 1)
    assert not is_short({"messages": text, "tools": text}, int(tokens) + 1)
    assert not is_short({"messages": text, "system": text}, int(tokens) + 1)
    assert is_short({"messages": text, "tools": text}, int(2 * tokens) + 1)


@pytest.mark.parametrize("size", [0, 10, 100, 1000])
def test_the_bounds_by_size_are_safe(size: int, tokenizers: dict[str, Count]) -> None:
    """No text has so many or so few tokens that its size alone gives a wrong decision."""
    for kind in ("English", "JSON", "Chinese", "Russian"):
        text = text_of(kind)[:size]
        value = orjson.dumps(text)
        for count in tokenizers.values():
            limit = max(1, count(text))
            assert len(value) <= 12 * limit
            assert is_short({"prompt": value}, 4 * limit + 4)


def test_the_features_of_a_large_chat_are_those_of_a_small_one() -> None:
    """The key ends with the first message of the user; the estimate of the tokens is the same but for a few."""
    first = [{"role": "system", "content": 'a "[{'}, {"role": "user", "content": "b \\"}]
    long = [{"role": "assistant", "content": f"{number} words\n" * 20} for number in range(2000)]
    small, large = (json.dumps(messages, indent=1).encode() for messages in (first, [*first, *long]))
    key = PromptReader(key=True, limit=0).features_of({"messages": small}).key
    tokens = estimate(large)
    for limit, short in ((int(tokens * 1.01), True), (int(tokens * 0.99), False)):
        slices = PromptReader(key=True, limit=limit).features_of_large({"messages": large})
        sizes = []
        while True:
            try:
                sizes.append(next(slices))
            except StopIteration as end:
                assert (end.value.key, end.value.short) == (key, short)  # noqa: PT017
                break
        assert max(sizes) <= 128 * 1024
    assert PromptReader(key=True, limit=0).features_of({"messages": large}).key == key


def _key(**members: object) -> int | None:
    raw = {name: orjson.dumps(value) for name, value in members.items()}
    return PromptReader(key=True).features_of(raw).key


def _conversation(text: str) -> list[dict[str, str]]:
    return [
        {"role": "user", "content": text},
        {"role": "assistant", "content": "le"},
        {"role": "user", "content": text},
    ]


@pytest.mark.parametrize(("system", "prompt"), [("system", "messages"), ("instructions", "input")])
def test_the_key_of_an_agents_prompt(system: str, prompt: str) -> None:
    """A conversation keeps its key; a long system prompt is the key of all its conversations."""
    one = _key(**{system: "go", prompt: _conversation("hu")})
    assert one == _key(**{system: "go", prompt: _conversation("hu")[:1]})
    assert one != _key(**{system: "gu", prompt: _conversation("hu")})
    assert one != _key(**{system: "go", prompt: _conversation("ha")})
    assert one != _key(**{prompt: _conversation("hu")})
    long = "go " * 1000
    assert _key(**{system: long, prompt: _conversation("hu")}) == _key(**{system: long, prompt: _conversation("ha")})
    assert _key(**{system: "go", prompt: {}}) is not None, "an engine refuses it"


def test_the_key_leaves_out_what_vllm_removes() -> None:
    systems = [[{"type": "text", "text": f"x-anthropic-billing-header: {n}"}, {"text": "go"}] for n in range(2)]
    messages = _conversation("hu")
    assert _key(system=systems[0], messages=messages) == _key(system=systems[1], messages=messages)
    assert _key(system=systems[0][:1], messages=messages) == _key(system=systems[1][:1], messages=messages)


@pytest.mark.parametrize("name", ["messages", "prompt", "input"])
def test_an_adapter_has_keys_of_its_own(name: str) -> None:
    reader, prompt = PromptReader(key=True), b'[{"role":"user","content":"x"}]' if name == "messages" else b'"x"'
    keys = [reader.features_of({**model, name: prompt}).key for model in ({}, {"model": b'"a"'}, {"model": b'"b"'})]
    assert len(set(keys)) == 3
    broken = [reader.features_of({"model": model, "messages": b"[1"}).key for model in (b'"a"', b'"b"')]
    assert broken[0] != broken[1]
