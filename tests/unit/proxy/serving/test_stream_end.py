"""Which streams have the end of their protocol."""

import pytest

from pdx_proxy.payload.decisions import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from pdx_proxy.serving.stream_end import is_whole

DELTA = b'event: content_block_delta\ndata: {"delta":{"type":"text_delta","text":"%s"}}\n\n'


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, MESSAGES])
@pytest.mark.parametrize(
    "tail",
    [
        b"data: [DONE]\n\n",
        b'data: {"a":1}\n\ndata: [DONE]\n\n',
        b'data: {"a":1}\n\ndata:[DONE]\n\n: a comment\n\n',
        b"ta: [DONE]\n\n",
        b"[DONE]\n\n",
        b'data: {"a":1}\n\r\n1c\r\n\ndata: [DO\r\n4\r\nNE]\n\n\r\n0\r\n\r\n',
    ],
)
def test_done_ends_a_stream(path: str, tail: bytes) -> None:
    assert is_whole(path, tail)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, MESSAGES, RESPONSES])
@pytest.mark.parametrize("text", [b"[DONE]", b"data: [DONE]", b"\\ndata: [DONE]", b"[DONE"])
def test_done_in_a_text_ends_none(path: str, text: bytes) -> None:
    assert not is_whole(path, DELTA % text)
    assert not is_whole(path, b'data: {"choices":[{"delta":{"content":"%s"}}]}\n\n' % text) or path == RESPONSES
