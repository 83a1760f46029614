"""What distinguishes the APIs whose requests may be split: P's leg, its answer, and where a leg carries its ID. Pure.

Facts: vLLM 0.32 entrypoints/openai/completion/protocol.py, entrypoints/openai/chat_completion/protocol.py,
entrypoints/openai/responses/{protocol,serving}.py, entrypoints/anthropic/{protocol,serving}.py. docs/api.md has a row
for each parameter.
"""

from collections.abc import Mapping
from typing import Any, Final

from pdx_proxy.payload.answer_members import SHAPING
from pdx_proxy.payload.decisions import CHAT, COMPLETIONS, DECIDING, MESSAGES, RESPONSES
from pdx_proxy.payload.prefill_answer import (
    COMPLETION,
    MESSAGE,
    PLAIN,
    RESPONSE,
)
from pdx_proxy.payload.tools import thinks_within_budget

ENGINE_FIELDS: Final = ("kv_transfer_params", "ec_transfer_params", "request_id")
_COMMON: Final = ("model", "messages", "temperature")
"""Frequent members that go to both legs."""
_COMPLETION_ANSWER: Final = (
    *("stream", "stream_options"),
    *("max_tokens", "min_tokens", "max_completion_tokens", "min_completion_tokens", "ignore_eos"),
    *("logprobs", "top_logprobs", "logprob_token_ids"),
    *("return_token_ids", "return_tokens_as_token_ids", "return_prompt_text"),
    *("stop", "stop_token_ids", "repetition_detection", "structured_outputs"),
)
"""Members that P's leg leaves out or sets itself. With one token and no stream, vLLM refuses or ignores them.

Members that change some models' prompts (`response_format`, `tool_choice`) are not among them.
"""
_MESSAGE_ANSWER: Final = ("stream", "max_tokens", "stop_sequences", "thinking")
_RESPONSE_ANSWER: Final = (
    *("stream", "store", "include", "top_logprobs", "enable_response_messages"),
    *("max_output_tokens", "ignore_eos", "stop", "stop_token_ids", "structured_outputs"),
)
_PREFILL: Final = b'"stream":false,"max_tokens":1,"ignore_eos":true'


class Member:
    """What happens to a member with a certain name."""

    __slots__ = ("answer", "deciding", "key", "removed")

    def __init__(self, name: str, *, answer: bool, deciding: bool) -> None:
        self.key = f'"{name}":'.encode()
        """As a JSON key, encoded once."""
        self.answer = answer
        """Whether it is left out of P's leg."""
        self.deciding = deciding
        self.removed = name in ENGINE_FIELDS


class API:
    """One path's requests and answers. Immutable."""

    __slots__ = (
        "depends_on",
        "ended",
        "id_in_body",
        "limit",
        "may_stop",
        "members",
        "own",
        "path",
        "prompt",
        "reuses_tokens",
        "settles_at",
    )

    def __init__(
        self,
        path: str,
        answer: tuple[str, ...],
        own: bytes,
        *,
        depends_on: str = "",
        limit: str = "max_tokens",
        prompt: Mapping[str, Any],
        ended: bytes,
        settles_at: str = "",
        may_stop: bool = False,
        id_in_body: bool = False,
        reuses_tokens: bool = False,
    ) -> None:
        self.path = path
        deciding = DECIDING[path] | SHAPING[path]
        self.members = {
            name: Member(name, answer=name in answer, deciding=name in deciding)
            for name in (*answer, *deciding, *ENGINE_FIELDS, *_COMMON)
        }
        """Members with a rule. Others go to both legs and decide nothing."""
        self.own = own
        """The members that P's leg has instead of those that shape the answer."""
        self.depends_on = depends_on
        """The member of the client on which P's own members depend, if any."""
        self.limit = limit
        """The member that limits the tokens of an answer."""
        self.prompt = prompt
        """A short prompt, for legs that settle a hand-off."""
        self.ended = ended
        """In P's answer: it has ended by its length."""
        self.settles_at = settles_at or path
        """The path of legs that settle a hand-off. An engine's ID of a request is the same there."""
        self.may_stop = may_stop
        """Whether P's one token may be a stop token: the API has no `ignore_eos`."""
        self.reuses_tokens = reuses_tokens
        """Whether D may get the tokens that P has made of the messages."""
        self.id_in_body = id_in_body
        """Whether an engine reads a leg's ID from the body (`request_id`) and not from the header X-Request-Id."""

    def read_prefill(self, body: Any, how: int = PLAIN) -> tuple[bool, Any]:
        """Read a P's complete answer: whether its engine has aborted it, and its KV transfer parameters.

        `how` is PLAIN, NESTED or RAW. Raises DecodeError for what is no answer of vLLM. With PLAIN it raises
        ValidationError if the parameters have nested values that are not those of vLLM's connectors.
        """
        found = COMPLETION[how].decode(body)
        for choice in found.choices:
            if choice.finish_reason == "abort":
                return True, None
        return False, found.kv_transfer_params


class _Messages(API):
    """Of /v1/messages."""

    __slots__ = ()

    def read_prefill(self, body: Any, how: int = PLAIN) -> tuple[bool, Any]:
        """An aborted message has no stop reason."""
        found = MESSAGE[how].decode(body)
        return found.stop_reason is None, found.kv_transfer_params


class _Responses(API):
    """Of /v1/responses."""

    __slots__ = ()

    def read_prefill(self, body: Any, how: int = PLAIN) -> tuple[bool, Any]:
        """A response that was aborted before its first token looks complete and has no tokens."""
        found = RESPONSE[how].decode(body)
        return found.usage.output_tokens == 0, found.kv_transfer_params


_ONE_MESSAGE: Final = {"messages": [{"role": "user", "content": "."}]}
_APIS: Final = (
    API(
        COMPLETIONS,
        _COMPLETION_ANSWER,
        _PREFILL,
        depends_on="max_completion_tokens",
        prompt={"prompt": "."},
        ended=b'"finish_reason":"length"',
    ),
    API(
        CHAT,
        _COMPLETION_ANSWER,
        _PREFILL,
        depends_on="max_completion_tokens",
        prompt=_ONE_MESSAGE,
        ended=b'"finish_reason":"length"',
        reuses_tokens=True,
    ),
    # vLLM converts a message's request to a chat's: the engine's ID is a chat's, and a chat has `ignore_eos`.
    _Messages(
        MESSAGES,
        _MESSAGE_ANSWER,
        b'"stream":false,"max_tokens":1',
        depends_on="thinking",
        prompt=_ONE_MESSAGE,
        ended=b'"stop_reason":"max_tokens"',
        settles_at=CHAT,
        may_stop=True,
    ),
    _Responses(
        RESPONSES,
        _RESPONSE_ANSWER,
        b'"stream":false,"store":false,"max_output_tokens":1,"ignore_eos":true',
        limit="max_output_tokens",
        prompt={"input": "."},
        ended=b'"incomplete_details":{"reason":"max_output_tokens"',
        id_in_body=True,
    ),
)
APIS: Final[dict[str, API]] = {api.path: api for api in _APIS}
"""By path."""
COMPLETIONS_API: Final = APIS[COMPLETIONS]
"""Also stands for the paths that are never split."""


def api_of(path: str) -> API:
    """The API at a path."""
    return APIS.get(path, COMPLETIONS_API)


def own_members(api: API, members: Mapping[str, Any]) -> bytes:
    """The members that P's leg has instead of those of the client that shape the answer.

    `ignore_eos` makes the leg end by its length: some connectors hand over nothing for a leg that ends by a stop token.
    A chat's `max_completion_tokens` wins over `max_tokens`. A budget of thinking tokens must be below `max_tokens` and
    is no part of the prompt; `thinking` of another type changes some models' prompts.
    """
    given = members.get(api.depends_on)
    if given is None or not api.depends_on:
        return api.own
    if api.may_stop:
        return api.own if thinks_within_budget(given) else b'%b,"thinking":%b' % (api.own, bytes(given))
    return api.own + b',"max_completion_tokens":1'


def named(request_id: str) -> bytes:
    """The member that gives a leg its ID inside the engine, where a header does not."""
    return b'"request_id":"resp_%b"' % request_id.encode()
