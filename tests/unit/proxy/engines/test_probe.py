"""What a probe quotes of an engine's failure, and how much of a page it reads."""

import json

import pytest

from pdx_api.names import Role
from pdx_proxy.config.settings import Address, EndpointSpec
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.engines import probe
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


@pytest.mark.parametrize("text", ["\x1b[2J\x1b]0;x\x07", "a\x00b", "\u202egnp", "\x9b31m"])
def test_control_characters_of_an_engine_reach_no_terminal(text: str) -> None:
    for body in (text.encode(), json.dumps({"error": {"message": text}}).encode()):
        assert error_text(body).isprintable()


@pytest.mark.parametrize(
    ("path", "ranks", "kib"),
    [("/metrics", 1, 608), ("/metrics", 16, 2048), ("/v1/models", 1, 2048), ("/version", 16, 64)],
)
def test_a_page_is_bounded(path: str, ranks: int, kib: int) -> None:
    engine = Endpoint(EndpointSpec(Address("d", 1), Role.DECODE, ranks=ranks))
    assert probe._most_bytes(engine, path) == kib * 1024
