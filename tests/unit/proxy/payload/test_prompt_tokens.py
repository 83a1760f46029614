"""The tokens of a prompt in P's answer to a chat."""

import pytest

from pdx_proxy.payload.prompt_tokens import count, tokens_of


@pytest.mark.parametrize(
    ("answer", "tokens"),
    [
        (b'{"choices":[{"token_ids":[9]}],"prompt_token_ids":[1,22,333],"kv_transfer_params":{}}', b"[1,22,333]"),
        (b'{"prompt_token_ids":[1, 22]}', b"[1, 22]"),
        (b'{"prompt_token_ids":null}', b""),
        (b'{"prompt_token_ids":[]}', b""),
        (b'{"prompt_token_ids":[1,"a"]}', b""),
        (b'{"prompt_token_ids":[1,-2]}', b""),
        (b'{"prompt_token_ids":[[1]]}', b""),
        (b'{"prompt_token_ids":[1,2', b""),
        (b'{"choices":[{"message":{"content":"\\"prompt_token_ids\\":[1]"}}]}', b""),
        (b"{}", b""),
        (b"", b""),
    ],
)
def test_what_d_may_get(answer: bytes, tokens: bytes) -> None:
    assert tokens_of(answer) == tokens


def test_their_number() -> None:
    assert [count(each) for each in (b"[1]", b"[1,2]", b"[1, 2, 3]")] == [1, 2, 3]
