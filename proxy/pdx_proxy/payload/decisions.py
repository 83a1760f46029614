"""The members that decide how a request is served, read as vLLM reads them.

vLLM's request models (entrypoints/openai/{completion,chat_completion,responses}/protocol.py and
entrypoints/anthropic/protocol.py) are pydantic models that convert values: `"stream": "off"` means false, `"n": "1"`
means 1.
"""

import re
from collections.abc import Callable
from math import inf
from typing import Any, Final, TypeAlias

import msgspec

from pdx_proxy.http.errors import null_member
from pdx_proxy.payload.tools import are_clients_tools, forces_tool

COMPLETIONS: Final = "/v1/completions"
CHAT: Final = "/v1/chat/completions"
MESSAGES: Final = "/v1/messages"
RESPONSES: Final = "/v1/responses"


class Refused:
    """Instead of a value: vLLM refuses it."""

    __slots__ = ()


REFUSED: Final = Refused()
Read: TypeAlias = Callable[[Any], Any]
"""Converts a decoded scalar as pydantic does, or returns REFUSED."""

_SCALAR: Final = msgspec.json.Decoder(bool | int | float | str | None)
_ITEMS: Final = msgspec.json.Decoder(list[msgspec.Raw])
_MAX_SCALAR_BYTES: Final = 64
"""A longer value counts as refused: it is then served whole, and the engine decides."""
_TOO_LARGE: Final = 1 << 63
"""pydantic converts only smaller floats to integers."""
_FALSE: Final = msgspec.Raw(b"false")
_TRUE: Final = msgspec.Raw(b"true")
"""Frequent values, compared before anything is decoded."""
_BOOLS: Final[dict[str, bool]] = {
    **dict.fromkeys(("true", "t", "yes", "y", "on", "1"), True),
    **dict.fromkeys(("false", "f", "no", "n", "off", "0"), False),
}
_INTEGER: Final = re.compile(r"[+-]?[0-9]+(?:_[0-9]+)*(?:\.0+)?")
_QUOTE: Final = ord('"')
_TOKENS: Final = re.compile(rb"\[\s*-?\d+\s*,")
"""The beginning of a list whose first element is an integer and which has more elements."""
_TOKEN: Final = re.compile(rb"-?\d+|true|false")


def read_bool(value: Any) -> Any:
    """A value of pydantic's type `bool`."""
    if value is True or value is False:
        return value
    if isinstance(value, str):
        return _BOOLS.get(value.lower(), REFUSED) if value.isascii() else REFUSED
    return bool(value) if isinstance(value, int | float) and value in (0, 1) else REFUSED


def read_int(value: Any) -> Any:
    """A value of pydantic's type `int`."""
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < _TOO_LARGE else REFUSED
    if isinstance(value, str) and _INTEGER.fullmatch(text := value.strip()):
        return int(text.partition(".")[0])
    return REFUSED


def read_kept_tokens(value: Any) -> Any:
    """A value of `truncate_prompt_tokens`, which is at least -1."""
    read = read_int(value)
    return read if read is not REFUSED and -1 <= read < _TOO_LARGE else REFUSED


def optional(read: Read) -> Read:
    """The same type, or null."""

    def read_optional(value: Any) -> Any:
        return None if value is None else read(value)

    return read_optional


def read_any(value: Any) -> Any:
    """A member that the request model does not have: vLLM ignores it."""
    return 0 if value is REFUSED else value


_OPTIONAL_BOOL: Final = optional(read_bool)
_OPTIONAL_INT: Final = optional(read_int)
_BOTH: Final[dict[str, Read]] = {
    "stream": _OPTIONAL_BOOL,
    "best_of": read_any,
    "use_beam_search": read_bool,
    "prompt_logprobs": _OPTIONAL_INT,
    "truncate_prompt_tokens": optional(read_kept_tokens),
}
TYPES: Final[dict[str, dict[str, Read]]] = {
    COMPLETIONS: {**_BOTH, "n": read_int, "echo": _OPTIONAL_BOOL},
    CHAT: {**_BOTH, "n": _OPTIONAL_INT, "echo": read_bool, "include_reasoning": read_bool},
    MESSAGES: {"stream": _OPTIONAL_BOOL, "include_reasoning": read_any},
    RESPONSES: {"stream": _OPTIONAL_BOOL, "background": _OPTIONAL_BOOL, "include_reasoning": read_bool},
}
"""The types of the deciding members, by path."""
_OTHER: Final[dict[str, Read]] = {"stream": _OPTIONAL_BOOL}
"""The only deciding member of a path whose requests are never split."""
_NOT_NULL: Final = ("background", "truncation")
_REFERENCES: Final = ("previous_response_id", "conversation", "prompt")
"""Members of a response's request that stand for something which at most one engine has."""
_LIMITS: Final = ("max_tokens", "max_completion_tokens", "max_output_tokens")
"""Members that limit the tokens of an answer."""
_SILENT: Final = ("include_reasoning", "tools")
"""Members with which a parser of vLLM may withhold what the engine generates (parser/abstract_parser.py,
`parse_delta`). vLLM 0.32 shows the reasoning of each message, although a message can request otherwise in `thinking`
(anthropic/serving.py, `_handle_thinking`)."""
_MOST_DIGITS: Final = 12
DECIDING: Final[dict[str, frozenset[str]]] = {
    COMPLETIONS: frozenset((*TYPES[COMPLETIONS], *_LIMITS, "prompt", "prompt_embeds")),
    CHAT: frozenset((*TYPES[CHAT], *_LIMITS, *_SILENT)),
    MESSAGES: frozenset((*TYPES[MESSAGES], *_LIMITS, *_SILENT, "thinking", "tool_choice")),
    RESPONSES: frozenset((*TYPES[RESPONSES], *_LIMITS, *_REFERENCES, *_SILENT, "truncation")),
}
"""The deciding members, by path."""


class Decisions:
    """How a request is served."""

    __slots__ = ("may_be_silent", "most_tokens", "splits", "stream")

    def __init__(
        self, stream: bool = False, splits: bool = False, most_tokens: float = inf, may_be_silent: bool = False
    ) -> None:
        self.stream = stream
        """Whether the answer is a stream."""
        self.splits = splits
        """Whether the request has one prompt and one answer, so that another engine can compute the prompt's KV."""
        self.most_tokens = most_tokens
        """The most tokens of its answer; infinity if it sets no limit."""
        self.may_be_silent = may_be_silent
        """Whether its engine may generate for long and send nothing: it hides reasoning, or withholds a tool call."""


def decide(path: str, members: dict[str, Any]) -> Decisions:
    """Read the deciding members. `members` are JSON values by name, as bytes, views or `msgspec.Raw`.

    A request that vLLM refuses is not split and has no stream: the engine's own error answers it.

    vLLM skips the connector for echo and prompt_logprobs (v1/core/sched/scheduler.py). With n > 1 each child request
    would fetch the same blocks, which the first one frees. A prompt that is truncated to leave room for the answer may
    be truncated differently for P, whose answer is one token. A response in the background is polled for at its engine.
    If a message forces a tool, vLLM may parse the answer as JSON: P's one token is none, and P answers 400 after its
    prefill (anthropic/serving.py, `messages_full_converter`). P's leg cannot have another `tool_choice`, which is part
    of some models' prompts (renderers/kimi_k3.py).
    """
    stream, splits, shows = False, True, True
    types = TYPES.get(path, _OTHER)
    for name, raw in members.items():
        read = types.get(name)
        if read is None:
            continue
        value = read(scalar(raw))
        if value is REFUSED:
            return Decisions()
        if name == "stream":
            stream = bool(value)
        elif name == "include_reasoning":
            shows = value is not False
        elif name in ("n", "best_of"):
            splits = splits and (value is None or (value == 1 and value is not True))
        elif name == "truncate_prompt_tokens":
            splits = splits and (value is None or value >= 0)
        elif name == "prompt_logprobs":
            splits = splits and value is None
        elif value:
            splits = False
    if splits and path == COMPLETIONS:
        splits = _has_one_prompt(members)
    elif splits and path == RESPONSES:
        splits = _stands_alone(members)
    elif splits and path == MESSAGES:
        choice = members.get("tool_choice")
        splits = choice is None or not forces_tool(choice)
    silent = stream and not (shows and members.get("tools") is None and members.get("thinking") is None)
    return Decisions(stream, splits, _most_tokens(members), silent)


def _most_tokens(members: dict[str, Any]) -> float:
    """The least limit of the answer's tokens. An estimate for policies: only the engine reads it exactly."""
    most = inf
    for name in _LIMITS:
        raw = members.get(name)
        if raw is not None and len(raw) <= _MOST_DIGITS:
            digits = bytes(raw)
            if digits.isdigit():
                most = min(most, float(digits))
    return most


def scalar(raw: Any) -> Any:
    """A decoded scalar. REFUSED for anything else, which is not decoded."""
    if raw == _FALSE:
        return False
    if raw == _TRUE:
        return True
    if len(raw) > _MAX_SCALAR_BYTES:
        return REFUSED
    try:
        return _SCALAR.decode(raw)
    except msgspec.ValidationError:
        return REFUSED


def _has_one_prompt(members: dict[str, Any]) -> bool:
    """Whether a text completion has one prompt: a text, or token IDs, alone or as the only element of a list."""
    prompt, embeds = members.get("prompt"), members.get("prompt_embeds")
    if embeds is not None and bytes(memoryview(embeds)[:5]) != b"null":
        return False
    return prompt is not None and is_one_prompt(prompt)


def _stands_alone(members: dict[str, Any]) -> bool:
    """Whether a response needs nothing that one engine has, and D sends its engine one request with all of the prompt.

    For each result of a tool that vLLM runs itself, D's API server sends one more request with the same parameters
    (responses/serving.py `_generate_with_builtin_tools`), which would fetch blocks that are free by then.

    Raises RefusedError for a null that vLLM accepts and then fails to answer with (responses/protocol.py,
    `ResponsesResponse`): after the whole prefill, and in a stream by closing the connection.
    """
    for name in _NOT_NULL:
        value = members.get(name)
        if value is not None and scalar(value) is None:
            raise null_member(name)
    for name in _REFERENCES:
        value = members.get(name)
        if value is not None and scalar(value) is not None:
            return False
    truncation, tools = members.get("truncation"), members.get("tools")
    return (truncation is None or scalar(truncation) == "disabled") and (tools is None or are_clients_tools(tools))


def is_one_prompt(prompt: Any) -> bool:
    """Whether a JSON value is one prompt."""
    if is_text(prompt):
        return len(prompt) > len('""')
    start = bytes(memoryview(prompt)[:_MAX_SCALAR_BYTES])
    if not start.startswith(b"["):
        return False
    if _TOKENS.match(start):
        return True
    items = _ITEMS.decode(prompt)
    return bool(items) and (len(items) == 1 or is_token(items[0]))


def is_text(value: Any) -> bool:
    """Whether a JSON value is a string."""
    first = value[0] if isinstance(value, bytes) else memoryview(value)[0]
    return first == _QUOTE


def is_token(item: Any) -> bool:
    """Whether a JSON value is an integer, or a boolean, which vLLM converts to one."""
    return len(item) <= _MAX_SCALAR_BYTES and _TOKEN.fullmatch(bytes(item)) is not None
