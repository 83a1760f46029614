"""What a probe quotes of an engine's failure."""

import pytest

from pdx_proxy.engines.probe import error_text


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"error": {"message": "Internal server error", "code": 500}}', "Internal server error"),
        (b'{"message": "no such model"}', "no such model"),
        (b'{"error": "Unauthorized"}', "Unauthorized"),
        (b"Bad\n  gateway", "Bad gateway"),
        (b"[1]", "[1]"),
        (b'{"error": {}}', '{"error": {}}'),
        (b"", ""),
        (b'{"message": "request cmpl-0123456789abcdef failed at 0x7f00aa00bb00"}', "request … failed at …"),
        (b"x" * 999, f"{'x' * 159}…"),
        (b"\xff", "\ufffd"),
    ],
)
def test_the_engines_own_text(body: bytes, text: str) -> None:
    assert error_text(body) == text
