"""/v1/messages: Anthropic's requests, which vLLM converts to chats, and its answers.

Facts: vLLM 0.32 entrypoints/anthropic/{protocol,serving}.py.
"""

import json
import uuid
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field

from pdx_sim.api.answers import Choice, Usage, Writer, named_event
from pdx_sim.api.request import APIError, Call, check_model, granted_tokens, invalid, leg_of, params_of, validated
from pdx_sim.core.sequence import Finish
from pdx_sim.core.tokens import Tokens, chat_tokens
from pdx_sim.settings import SimSettings

_BILLING: Final = "x-anthropic-billing-header"
_STOP_REASONS: Final = {Finish.LENGTH: "max_tokens", Finish.STOP: "end_turn"}


class _Block(BaseModel):
    type: Literal[
        "text",
        "image",
        "tool_use",
        "tool_result",
        "tool_reference",
        "thinking",
        "redacted_thinking",
        "tool_addition",
        "tool_removal",
    ]
    text: str | None = None
    id: str | None = None
    tool_use_id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    content: str | list[dict[str, Any]] | None = None
    thinking: str | None = None


class _Message(BaseModel):
    role: Literal["user", "assistant", "system"]
    content: str | list[_Block]


class _Tool(BaseModel):
    name: str
    description: str | None = None
    input_schema: dict[str, Any]


class _ToolChoice(BaseModel):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None


class _Enabled(BaseModel):
    type: Literal["enabled"]
    budget_tokens: int = Field(ge=1024)


class _Other(BaseModel):
    type: Literal["disabled", "adaptive"]


class _Counted(BaseModel):
    """What counting and generating have in common."""

    model: str = Field(min_length=1)
    messages: list[_Message]
    system: str | list[_Block] | None = None
    thinking: Annotated[_Enabled | _Other, Field(discriminator="type")] | None = None
    tools: list[_Tool] | None = None
    tool_choice: _ToolChoice | None = None


class _Request(_Counted):
    max_tokens: int = Field(gt=0)
    stop_sequences: list[str] | None = None
    stream: bool | None = False


def read_message(body: Mapping[str, Any], path: str, header_id: str | None, settings: SimSettings) -> Call:
    """Validate a body, in the order in which vLLM does. Raises APIError."""
    request = validated(_Request, body)
    prefills = bool(params_of(body).get("do_remote_decode"))
    budget = request.thinking.budget_tokens if isinstance(request.thinking, _Enabled) else 0
    if budget >= request.max_tokens and not prefills:
        raise invalid("value_error", "thinking", "thinking.budget_tokens must be less than max_tokens")
    check_model(body, settings)
    prompt = _prompt(request)
    return Call(
        path=path,
        request_id=header_id or uuid.uuid4().hex,
        prompts=(prompt,),
        max_tokens=granted_tokens(request.max_tokens, True, len(prompt), settings.max_model_len),
        stream=bool(request.stream),
        leg=leg_of(body),
        params=params_of(body),
        forced_tool=_forced_tool(request),
        hides=body.get("include_reasoning") is False,  # vLLM ignores it; a parser that withholds a call looks the same
    )


def count_tokens(body: Mapping[str, Any], settings: SimSettings) -> dict[str, Any]:
    """The answer of /v1/messages/count_tokens. Raises APIError."""
    request = validated(_Counted, body)
    check_model(body, settings)
    tokens = len(_prompt(request))
    return {"input_tokens": tokens, "context_management": {"original_input_tokens": tokens}}


def anthropic_error(error: APIError) -> dict[str, Any]:
    """The error object. That of vLLM's HTTP server has the same shape on all paths."""
    if error.kind == "Bad Request":
        return error.as_json()
    return {"type": "error", "error": {"type": error.kind, "message": str(error)}}


def _forced_tool(request: _Request) -> str:
    """The tool that the answer must call; empty without one."""
    choice = request.tool_choice
    if choice is None or choice.type != "tool":
        return ""
    if not choice.name:
        raise invalid("value_error", "tool_choice", "Value error, tool_choice.name is required when type is 'tool'")
    return choice.name


def _prompt(request: _Counted) -> Tokens:
    """The tokens of the chat to which vLLM converts a request."""
    tools = [tool.model_dump() for tool in request.tools or []]
    system = request.system
    if isinstance(system, list):
        system = "".join(block.text or "" for block in system if not (block.text or "").startswith(_BILLING))
    chat: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    for message in request.messages:
        chat += _converted(message)
    return chat_tokens(chat, tools)


def _converted(message: _Message) -> list[dict[str, Any]]:
    """A message as those of a chat: results of tools become messages of their own."""
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    results: list[dict[str, Any]] = []
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    for block in message.content:
        if block.type == "text":
            texts.append(block.text or "")
        elif block.type == "tool_use":
            calls.append({"id": block.id, "name": block.name, "arguments": json.dumps(block.input or {})})
        elif block.type == "tool_result":
            results.append({"role": "tool", "content": block.content or ""})
    own = {"role": message.role, "content": "".join(texts), **({"tool_calls": calls} if calls else {})}
    return [*results, own] if texts or calls or not results else results


class MessageWriter(Writer):
    """Writes the answer to a request at /v1/messages."""

    def whole(self, choices: list[Choice], with_params: bool = True) -> dict[str, Any]:
        """A complete answer. Members without a value are missing.

        For a forced tool an engine without structural tags parses its text as JSON: one token is none. Raises APIError.
        """
        choice = choices[0]
        if self.call.forced_tool and choice.seq.produced == 1:
            raise APIError(400, "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)")
        text = "" if choice.seq.finish is Finish.ABORT else choice.text(0, choice.seq.produced)
        content: dict[str, Any] = {"type": "text", "text": text}
        if self.call.forced_tool:
            tool = {"id": f"call_{self.call.request_id}", "name": self.call.forced_tool, "input": {"text": text}}
            content = {"type": "tool_use", **tool}
        found = {
            **self._head(),
            "content": [content],
            "model": self.model,
            "stop_reason": _STOP_REASONS.get(choice.seq.finish or Finish.ABORT),
            "usage": _usage(self.usage(choices)),
            "kv_transfer_params": choice.seq.answer_params if with_params else None,
        }
        return {name: value for name, value in found.items() if value is not None}

    def _head(self) -> dict[str, Any]:
        return {"id": self.call.answer_id, "type": "message", "role": "assistant"}

    def first(self, choice: Choice) -> list[bytes]:
        """What comes with the first token."""
        message = {**self._head(), "content": [], "model": self.model, "stop_reason": None, "stop_sequence": None}
        usage = {"input_tokens": len(choice.seq.prompt), "output_tokens": 0}
        return [named_event("message_start", message={**message, "usage": usage})]

    def token(self, choice: Choice) -> list[bytes]:
        """The next token, in a block that the first one begins and the last one ends."""
        position = choice.take()
        text = {"type": "text_delta", "text": choice.text(position, position + 1)}
        begin = [named_event("content_block_start", content_block={"type": "text", "text": ""}, index=0)]
        events = [
            *(begin if position == choice.hidden else []),
            named_event("content_block_delta", delta=text, index=0),
        ]
        return [*events, *self._block_end()] if choice.ended else events

    def _block_end(self) -> list[bytes]:
        return [named_event("content_block_stop", index=0)]

    def ending(self, choice: Choice) -> list[bytes]:
        """The end of an answer whose last token was sent without it."""
        choice.ended = True
        return self._block_end() if choice.sent > choice.hidden else []

    def closing(self, choices: list[Choice]) -> list[bytes]:
        """The stop reason, the usage and the end."""
        reason = _STOP_REASONS.get(choices[0].seq.finish or Finish.ABORT)
        delta = {"stop_reason": reason, "stop_sequence": None}
        usage = _usage(self.usage(choices))
        return [named_event("message_delta", delta=delta, usage=usage), named_event("message_stop")]

    def failed(self, error: APIError) -> bytes | None:
        """vLLM converts the chat's error event, which is no chunk, to one of its own."""
        return named_event("error", error={"type": _in_stream(error), "message": str(error)})


def _in_stream(error: APIError) -> str:
    """vLLM before 0.33 has one type for all; the errors that only 0.33 has are of the type that it gives them."""
    return error.kind if error.kind == "overloaded_error" else "internal_error"


def _usage(usage: Usage) -> dict[str, int]:
    """`_build_anthropic_usage`: the cached tokens are not among the input's."""
    details = usage["prompt_tokens_details"]
    cached = details["cached_tokens"] if details is not None else None
    found = {"input_tokens": usage["prompt_tokens"] - (cached or 0), "output_tokens": usage["completion_tokens"]}
    return found if cached is None else {**found, "cache_read_input_tokens": cached}
