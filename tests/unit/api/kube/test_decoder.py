"""The decoder reads every document of the API server, whatever tenants have written into an object."""

import json
from collections.abc import AsyncIterator

import pytest

from pdx_api.kube.decoder import LEVELS, decode, lines_of, readable


def _list(*values: bytes) -> bytes:
    return b'{"items": [%s], "metadata": {"resourceVersion": "7"}}' % b", ".join(values)


DEEP = {
    "lists": b"[" * 1500 + b"]" * 1500,
    "mappings": b'{"a": ' * 3000 + b"1" + b"}" * 3000,
    "mixed, with brackets in texts": b'[{"]}": "[{\\"", "a": ' * 900 + b"[]" + b"}]" * 900,
    "wide and deep": b"[" + b", ".join([b"[" * 1200 + b"1" + b"]" * 1200] * 3) + b"]",
    "a million levels": b"[" * 10**6 + b"]" * 10**6,
}


@pytest.mark.parametrize("deep", DEEP.values(), ids=DEEP)
def test_what_is_too_deep_is_cut_and_the_rest_stays(deep: bytes) -> None:
    good = {"name": 'a "quoted" [name] {', "numbers": [1, -2.5, True, None]}
    document = decode(_list(json.dumps(good).encode(), deep, json.dumps(good).encode()))
    assert (document["items"][0], document["items"][2]) == (good, good)
    assert document["metadata"] == {"resourceVersion": "7"}
    assert 0.9 * LEVELS < _levels(document["items"][1]) <= LEVELS


def _levels(value: object) -> int:
    level, values = 0, [value]
    while values := [value for value in values if isinstance(value, dict | list)]:
        values = [inner for value in values for inner in (value.values() if isinstance(value, dict) else value)]
        level += 1
    return level


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b'["' + b"9" * 5000 + b'", 1]', ["9" * 5000, 1]),
        (b"[%s]" % (b"9" * 5000), [int("9" * 400)]),
        (b'["\xff\xfe"]', ["��"]),
        (b'{"a": "\\ud800"}', {"a": "\ud800"}),
    ],
)
def test_odd_numbers_and_texts_are_read(text: bytes, value: object) -> None:
    assert decode(text) == json.loads(readable(text)) == value


@pytest.mark.parametrize("text", [b"", b"<html>", b'{"a": ', b"[" * 3000, b"]" * 3000, b'{"a": "' + b"[" * 3000])
def test_what_is_no_json_raises_valueerror(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        decode(text)


async def test_lines_may_be_of_any_length() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for chunk in (b"a", b"b\n\nc", b"x" * 10**7, b"\n", b"d\ne"):
            yield chunk

    assert [line async for line in lines_of(chunks())] == [b"ab", b"", b"c" + b"x" * 10**7, b"d"]
