"""Bodies that are not deep are seldom measured, and deep ones always."""

import pytest

from pdx_proxy.payload.structure import MAX_DEPTH, count_of, may_be_deep, measure

_MESSAGE = b'{"role":"user","content":"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}'


def _body(*parts: bytes) -> bytes:
    return b'{"messages":[' + b",".join(parts) + b'],"max_tokens":16}'


@pytest.mark.parametrize("messages", [1, 3, 5, 200, 298, 400, 450])
def test_a_flat_list_need_not_be_measured(messages: int) -> None:
    assert not may_be_deep(_body(*[_MESSAGE] * messages))


@pytest.mark.parametrize("before", [0, 1, 100, 300, 2000])
@pytest.mark.parametrize("behind", [0, 1, 100, 300, 2000])
@pytest.mark.parametrize(("left", "right"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_a_deep_value_is_found_wherever_it_is(before: int, behind: int, left: bytes, right: bytes) -> None:
    deep = left * (MAX_DEPTH - 1) + b"1" + right * (MAX_DEPTH - 1)
    raw = _body(*[_MESSAGE] * before, deep, *[_MESSAGE] * behind)
    assert may_be_deep(raw)
    assert measure(raw) == (MAX_DEPTH + 1, MAX_DEPTH + 1 + before + behind)


@pytest.mark.parametrize("number", [0, 1, 3, 4, 5, 100])
@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_characters_are_counted(number: int, kind: type[bytes] | type[bytearray]) -> None:
    assert count_of(kind(b"xx[" * number + b"{x"), b"[", b"{") == number + 1
