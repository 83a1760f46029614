"""/v1/responses: OpenAI's newer requests and their answers.

Facts: vLLM 0.32 entrypoints/openai/responses/{protocol,serving,streaming_events}.py.
"""

import uuid
from collections.abc import Mapping
from typing import Any, Final, Literal

from pydantic import BaseModel, Field

from pdx_sim.api.answers import Choice, Writer, named_event
from pdx_sim.api.request import APIError, Call, check_model, granted_tokens, invalid, leg_of, params_of, validated
from pdx_sim.core.sequence import Finish
from pdx_sim.core.tokens import Tokens, chat_tokens
from pdx_sim.settings import SimSettings

_NO_STORE: Final = (
    "This vLLM engine does not support `store=True` and therefore does not support the background mode. To enable "
    "these features, set the environment variable `VLLM_ENABLE_RESPONSES_API_STORE=1` when launching the vLLM server."
)


class _Tool(BaseModel):
    type: str


class _Request(BaseModel):
    input: str | list[dict[str, Any]]
    background: bool | None = False
    ignore_eos: bool = False
    include_reasoning: bool = True
    instructions: str | None = None
    max_output_tokens: int | None = None
    previous_response_id: str | None = None
    prompt: dict[str, Any] | None = None
    request_id: str = Field(default_factory=lambda: f"resp_{uuid.uuid4().hex}")
    store: bool | None = True
    stream: bool | None = False
    tools: list[_Tool] = Field(default_factory=list)
    truncation: Literal["auto", "disabled"] | None = "disabled"


def read_response(body: Mapping[str, Any], path: str, header_id: str | None, settings: SimSettings) -> Call:
    """Validate a body, in the order in which vLLM does. Raises APIError. The header's ID is not read."""
    request = validated(_Request, body)
    if request.prompt is not None:
        raise invalid("value_error", "prompt", "prompt template is not supported")
    if request.background and not request.store:
        raise invalid("value_error", "background", "background can only be used when `store` is true")
    check_model(body, settings)
    if request.background:
        raise APIError(400, _NO_STORE, "invalid_request_error", "background")
    if request.previous_response_id is not None:
        message = f"Response with id '{request.previous_response_id}' not found."
        raise APIError(404, message, "invalid_request_error", "response_id")
    prompt = _prompt(request, body)
    return Call(
        path=path,
        request_id=request.request_id,
        prompts=(prompt,),
        max_tokens=_granted(request.max_output_tokens, len(prompt), settings.max_model_len),
        stream=bool(request.stream),
        ignore_eos=request.ignore_eos,
        leg=leg_of(body),
        params=params_of(body),
        repeated=body,
        hides=not request.include_reasoning,
    )


def _granted(given: int | None, prompt_tokens: int, longest: int) -> int:
    """A limit that leaves too little room for the prompt is lowered, one above the model's length is refused."""
    if given is not None and given > longest:
        message = (
            f"max_output_tokens={given} cannot be greater than max_model_len={longest}. Please request fewer output "
            "tokens."
        )
        raise APIError(400, message, param="max_output_tokens")
    return granted_tokens(None if given is None else min(given, longest - prompt_tokens), True, prompt_tokens, longest)


def _prompt(request: _Request, body: Mapping[str, Any]) -> Tokens:
    chat: list[dict[str, Any]] = []
    if request.instructions:
        chat.append({"role": "system", "content": request.instructions})
    items = [{"role": "user", "content": request.input}] if isinstance(request.input, str) else request.input
    for item in items:
        kind = item.get("type", "message")
        if kind == "function_call":
            chat.append({"role": "assistant", "tool_calls": [(item.get("name"), item.get("arguments"))]})
        elif kind == "function_call_output":
            chat.append({"role": "tool", "content": item.get("output")})
        elif kind == "message":
            chat.append({"role": item.get("role"), "content": item.get("content")})
    return chat_tokens(chat, body.get("tools"))


class ResponseWriter(Writer):
    """Writes the answer to a request at /v1/responses."""

    _number = 0
    """The number of the next event."""

    def whole(self, choices: list[Choice], with_params: bool = True) -> dict[str, Any]:
        """A complete answer. One that was aborted looks completed."""
        choice = choices[0]
        text = "" if choice.seq.finish is Finish.ABORT else choice.text(0, choice.seq.produced)
        cut = choice.seq.finish is Finish.LENGTH
        found = self._response("incomplete" if cut else "completed")
        return {
            **found,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": [self._item("completed", text)],
            "usage": self._usage(choices),
            "kv_transfer_params": choice.seq.answer_params if with_params else None,
        }

    def _usage(self, choices: list[Choice]) -> dict[str, Any]:
        usage = self.usage(choices)
        per_request: dict[str, Any] = {"input_tokens_per_turn": [], "cached_tokens_per_turn": []}
        output = {"reasoning_tokens": 0, "tool_output_tokens": 0}
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": self.cached(choices), "cache_write_tokens": 0, **per_request},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {**output, "output_tokens_per_turn": [], "tool_output_tokens_per_turn": []},
            "total_tokens": usage["total_tokens"],
        }

    def _response(self, status: str) -> dict[str, Any]:
        """The response before its engine has answered."""
        given, call = self.call.repeated, self.call
        kept = ("instructions", "metadata", "max_tool_calls", "previous_response_id", "prompt", "reasoning", "text")
        return {
            "id": call.answer_id,
            "created_at": self.created,
            "incomplete_details": None,
            **{name: given.get(name) for name in (*kept, "user")},
            "model": self.model,
            "object": "response",
            "output": [],
            "parallel_tool_calls": given.get("parallel_tool_calls", True),
            "temperature": given.get("temperature", 1.0),
            "tool_choice": given.get("tool_choice", "auto" if given.get("tools") else "none"),
            "tools": given.get("tools", []),
            "top_p": given.get("top_p", 1.0),
            "background": False,
            "max_output_tokens": call.max_tokens,
            "service_tier": given.get("service_tier", "auto"),
            "status": status,
            "top_logprobs": None,
            "truncation": given.get("truncation", "disabled"),
            "usage": None,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "input_messages": None,
            "output_messages": None,
        }

    def _item(self, status: str, text: str) -> dict[str, Any]:
        content = [self._part(text)] if text else []
        head = {"id": f"msg_{self.call.answer_id}", "content": content, "role": "assistant", "status": status}
        return {**head, "type": "message", "phase": None}

    def _part(self, text: str) -> dict[str, Any]:
        return {"annotations": [], "text": text, "type": "output_text", "logprobs": None}

    def _event(self, kind: str, **content: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        return named_event(f"response.{kind}", sequence_number=number, **content)

    def _of_item(self, kind: str, **content: Any) -> bytes:
        return self._event(kind, item_id=f"msg_{self.call.answer_id}", output_index=0, content_index=0, **content)

    def announcements(self) -> list[bytes]:
        """What vLLM sends before the engine has the request."""
        response = self._response("in_progress")
        return [self._event("created", response=response), self._event("in_progress", response=response)]

    def first(self, choice: Choice) -> list[bytes]:
        """Nothing comes before the first token."""
        return []

    def token(self, choice: Choice) -> list[bytes]:
        """The next token, in an item that the first one begins and the last one ends."""
        position = choice.take()
        events = self._begin() if position == choice.hidden else []
        events.append(self._of_item("output_text.delta", delta=choice.text(position, position + 1), logprobs=[]))
        return [*events, *self._end(choice)] if choice.ended else events

    def _begin(self) -> list[bytes]:
        item = self._event("output_item.added", item=self._item("in_progress", ""), output_index=0)
        return [item, self._of_item("content_part.added", part={**self._part(""), "logprobs": []})]

    def _end(self, choice: Choice) -> list[bytes]:
        text = choice.text(0, choice.sent)
        return [
            self._of_item("output_text.done", text=text, logprobs=[]),
            self._of_item("content_part.done", part=self._part(text)),
            self._event("output_item.done", item=self._item("completed", text), output_index=0),
        ]

    def ending(self, choice: Choice) -> list[bytes]:
        """The end of an answer whose last token was sent without it."""
        choice.ended = True
        return self._end(choice) if choice.sent > choice.hidden else []

    def closing(self, choices: list[Choice]) -> list[bytes]:
        """The whole response again."""
        return [self._event("completed", response=self.whole(choices))]

    def failed(self, error: APIError) -> bytes | None:
        """vLLM fails to convert its own error to an event of a response, and closes the connection."""
        return None
