"""A generation request, validated as vLLM validates it."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import orjson
from pydantic import BaseModel, ValidationError

from pdx_sim.api.members import ChatMembers, CompletionMembers
from pdx_sim.api.paths import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from pdx_sim.core.sequence import KVParams, Leg
from pdx_sim.core.tokens import MAX_TOKEN, Tokens, chat_tokens, tokenize
from pdx_sim.settings import SimSettings

Model = TypeVar("Model", bound=BaseModel)

_DEFAULT_TOKENS = 16
"""vLLM's max_tokens for completions."""
_MOST_LOGPROBS: Final = 20
"""vLLM's default of `--max-logprobs`."""
_PREFIXES: Final = {COMPLETIONS: "cmpl-", CHAT: "chatcmpl-", MESSAGES: "chatcmpl-", RESPONSES: ""}


class APIError(Exception):
    """A refusal, with vLLM's error object."""

    def __init__(self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param
        self.retry_after = 0
        """Seconds of the answer's Retry-After header; 0: it has none."""
        self.closes = False
        """Whether the connection is closed behind the answer, without a header that says so (ServerErrorMiddleware)."""

    def as_json(self) -> dict[str, Any]:
        """The error object."""
        return {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.status}}


@dataclass(frozen=True, slots=True)
class Call:
    """A valid generation request."""

    path: str
    request_id: str
    """X-Request-Id, or request_id of the body, or a random id; of a response, the body's or a random id."""
    prompts: tuple[Tokens, ...]
    max_tokens: int
    stream: bool
    leg: Leg
    params: KVParams
    include_usage: bool = True
    n: int = 1
    echo: bool = False
    logprobs: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    return_token_ids: bool = False
    repeated: Mapping[str, Any] = field(default_factory=dict)
    """The body, where the answer repeats members of it."""
    hides: bool = False
    """Whether the reasoning at the beginning of the answer is not sent."""
    forced_tool: str = ""
    """The tool that a message must call; empty without one. A stream has its text all the same."""

    @property
    def chat(self) -> bool:
        """Whether it is a chat completion."""
        return self.path == CHAT

    @property
    def answer_id(self) -> str:
        """The `id` of the answer."""
        return f"{_PREFIXES[self.path]}{self.request_id}"

    def internal_id(self, index: int, suffix: str) -> str:
        """vLLM's own id of the prompt with this index."""
        if self.path == COMPLETIONS:
            return f"{self.answer_id}-{index}-{suffix}"
        return f"{self.answer_id}_0-{suffix}" if self.path == RESPONSES else f"{self.answer_id}-{suffix}"


def decode_body(raw: bytes, content_type: str) -> dict[str, Any]:
    """The JSON object in a body. Raises APIError."""
    if content_type.partition(";")[0].strip().lower() != "application/json":
        message = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
        raise APIError(400, message, "Bad Request")
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        where = f"body.{error.pos}"
        detail = {
            "type": "json_invalid",
            "loc": where,
            "msg": "JSON decode error",
            "input": "<dict of 0 items>",
            "ctx": {"error": "Expecting value"},
        }
        raise APIError(400, f"1 validation error:\n  {detail}", "Bad Request", where) from error
    if not isinstance(body, dict):
        detail = {"type": "model_attributes_type", "loc": "body", "msg": "Input should be a valid dictionary"}
        raise APIError(400, f"1 validation error:\n  {detail}", "Bad Request", "body")
    return body


def leg_of(body: Mapping[str, Any]) -> Leg:
    """The leg that a request is, by its kv_transfer_params."""
    params = params_of(body)
    if params.get("do_remote_prefill"):
        return Leg.DECODE
    return Leg.PREFILL if params.get("do_remote_decode") else Leg.PLAIN


def params_of(body: Mapping[str, Any]) -> KVParams:
    """The kv_transfer_params of a body; empty if they are no object."""
    params = body.get("kv_transfer_params")
    return params if isinstance(params, dict) else {}


def check_model(body: Mapping[str, Any], settings: SimSettings) -> None:
    """Raises APIError for a model that the engine does not serve."""
    model = body.get("model")
    if model not in (None, settings.model):
        message = f"The model `{model}` does not exist. Valid aliases: {settings.model}."
        raise APIError(404, message, "NotFoundError", "model")


def read_completion(body: Mapping[str, Any], path: str, header_id: str | None, settings: SimSettings) -> Call:
    """Validate the body of a completion or a chat, in the order in which vLLM does. Raises APIError."""
    chat = path == CHAT
    name = "messages" if chat else "prompt"
    if name not in body:
        raise invalid("missing", name, "Field required")
    check_model(body, settings)
    if body.get("stream_options") and not body.get("stream"):
        message = "Stream options can only be defined when `stream=True`. (parameter=stream_options)"
        raise APIError(400, message, param="stream_options")
    members: CompletionMembers | ChatMembers
    members = validated(ChatMembers, body) if chat else validated(CompletionMembers, body)
    prompts = (_chat_prompt(body),) if chat else _prompts(body["prompt"])
    max_tokens = granted_tokens(members.answer_tokens, chat, max(map(len, prompts)), settings.max_model_len)
    _check_sampling(members, max_tokens)
    n = 1 if members.n is None else members.n
    if n < 1:
        raise APIError(400, f"n must be at least 1, got {n}. (parameter=n, value={n})", param="n")
    return Call(
        path=path,
        request_id=header_id or str(body.get("request_id") or uuid.uuid4().hex),
        prompts=prompts,
        max_tokens=max_tokens,
        stream=bool(members.stream),
        include_usage=members.include_usage,
        n=n,
        echo=bool(members.echo) and not chat,
        logprobs=members.with_logprobs,
        ignore_eos=members.ignore_eos,
        min_tokens=members.min_tokens,
        return_token_ids=bool(members.return_token_ids),
        hides=isinstance(members, ChatMembers) and not members.include_reasoning,
        leg=leg_of(body),
        params=params_of(body),
    )


def _check_sampling(members: CompletionMembers | ChatMembers, max_tokens: int) -> None:
    """Raises APIError for what vLLM's `SamplingParams` refuse (vLLM 0.32, sampling_params.py, `_verify_args`)."""
    if members.min_tokens < 0:
        message = f"min_tokens must be greater than or equal to 0, got {members.min_tokens}."
        raise APIError(400, message, param="min_tokens")
    if members.min_tokens > max_tokens:
        message = f"min_tokens must be less than or equal to max_tokens={max_tokens}, got {members.min_tokens}."
        raise APIError(400, message, param="min_tokens")
    if members.stop is not None and not all([members.stop] if isinstance(members.stop, str) else members.stop):
        raise APIError(400, "stop cannot contain an empty string.", param="stop")
    number = members.logprobs if type(members.logprobs) is int else 0
    if not 0 <= number <= _MOST_LOGPROBS:  # -1 stands for the whole vocabulary
        message = f"Requested sample logprobs of {number}, which is greater than max allowed: {_MOST_LOGPROBS}"
        raise APIError(400, f"{message} (parameter=logprobs, value={number})", param="logprobs")


def _chat_prompt(body: Mapping[str, Any]) -> Tokens:
    """The tokens of the messages, or those of the leg's parameters (vLLM 0.32, renderers/online_renderer.py)."""
    messages = body["messages"]
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise invalid("list_type", "messages", "Input should be a valid list")
    if not messages:
        raise APIError(400, "messages must not be empty", param="messages")
    given = params_of(body).get("prompt_token_ids")
    if given is None:
        return chat_tokens(messages, body.get("tools"))
    if isinstance(given, list) and given and all(type(token) is int and 0 <= token <= MAX_TOKEN for token in given):
        return tuple(given)
    name = "kv_transfer_params.prompt_token_ids"
    message = "`kv_transfer_params['prompt_token_ids']` must be a non-empty list of non-negative integers."
    raise APIError(400, f"{message} (parameter={name})", param=name)


def _prompts(prompt: object) -> tuple[Tokens, ...]:
    several = isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list)
    items = prompt if several and isinstance(prompt, list) else [prompt]
    prompts = tuple(tokenize(item) if isinstance(item, str) else _ids(item) for item in items)
    if not all(prompts):
        raise APIError(400, "Either prompt or prompt_embeds must be provided and non-empty.", param="prompt")
    return prompts


def _ids(item: object) -> Tokens:
    if isinstance(item, list) and all(type(token) is int and 0 <= token <= MAX_TOKEN for token in item):
        return tuple(item)
    raise invalid("string_type", "prompt", "Input should be a valid string")


def granted_tokens(given: int | None, chat: bool, prompt_tokens: int, longest: int) -> int:
    """The tokens that an answer may have. Raises APIError."""
    rest = longest - prompt_tokens
    if given is not None and given < 1:
        message = f"max_tokens must be at least 1, got {given}. (parameter=max_tokens, value={given})"
        raise APIError(400, message, param="max_tokens")
    if given is not None and given > longest:
        message = (
            f"max_tokens={given} cannot be greater than max_model_len={longest}. Please request fewer output tokens. "
            f"(parameter=max_tokens, value={given})"
        )
        raise APIError(400, message, param="max_tokens")
    granted = given if given is not None else max(1, rest) if chat else min(_DEFAULT_TOKENS, max(1, rest))
    if granted > rest:
        message = (
            f"This model's maximum context length is {longest} tokens. However, you requested {granted} output tokens "
            f"and your prompt contains {prompt_tokens} input tokens, for a total of {prompt_tokens + granted} tokens. "
            "Please reduce the length of the input prompt or the number of requested output tokens. "
            f"(parameter=input_tokens, value={prompt_tokens})"
        )
        raise APIError(400, message, param="input_tokens")
    return granted


def validated(model: type[Model], body: Mapping[str, Any]) -> Model:
    """A body as a model. Raises APIError for the first member that has the wrong type."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise invalid(first["type"], ".".join(map(str, first["loc"])), first["msg"]) from error


def invalid(kind: str, name: str, message: str) -> APIError:
    """The error of vLLM's HTTP server for a member, which the engine never receives."""
    detail = {"type": kind, "loc": ("body", name), "msg": message}
    return APIError(400, f"1 validation error:\n  {detail}", "Bad Request", name)
