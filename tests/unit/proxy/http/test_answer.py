"""An engine's answer while it arrives."""

from pdx_proxy.http.upstream.answer import Answer


def test_the_body_of_one_part_is_not_copied() -> None:
    answer, part = Answer(), b"{}" * 100
    answer.add(part)
    assert answer.body is part


def test_a_body_is_joined_from_its_parts() -> None:
    answer, first = Answer(), b"ab"
    for part in (first, b"c", b"def"):
        answer.add(part)
    assert (answer.body, type(answer.body)) == (b"abcdef", bytes)
    assert first == b"ab"
