"""A client's request, read once: refused, cleaned of everything that speaks to the KV protocol, and classified."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

Body = dict[str, Any]

_ENGINE_FIELDS: Final = ("kv_transfer_params", "ec_transfer_params", "request_id")
_COMPLETIONS: Final = "/v1/completions"
_MAX_DEPTH: Final = 250
"""Deepest nesting of a body that is sure to be written again: orjson reads deeper than it writes."""


class RefusedError(Exception):
    """The gateway refuses the request by itself, in vLLM's words."""

    def __init__(self, status: int, message: str, kind: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param

    def body(self) -> bytes:
        """vLLM's error object."""
        return error_body(self.status, self.message, self.kind, self.param)


@dataclass(frozen=True, slots=True)
class Request:
    """A request that may go to an engine."""

    path: str
    body: Body
    headers: tuple[tuple[str, str], ...]
    """What of the client's head engines get."""
    split: bool
    """Whether prefill and decode may run on different engines."""

    @property
    def stream(self) -> bool:
        """Whether the client asked for a stream, as far as deadlines need to know."""
        return bool(self.body.get("stream"))


def error_body(status: int, message: str, kind: str, param: str | None = None) -> bytes:
    """An error in the shape vLLM gives it (vllm/entrypoints/serve/engine/protocol.py, ErrorResponse)."""
    return orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": status}})


def read_body(raw: bytes, content_type: str) -> Body:
    """The JSON object of a body, without the fields that reach into the engine; raises RefusedError.

    What is not valid UTF-8 JSON never goes on: vLLM's reader accepts more (UTF-16, NaN) and would see fields that were
    not seen here.
    """
    if content_type.split(";", 1)[0].strip().lower() != "application/json":
        raise RefusedError(
            400, "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed", "Bad Request"
        )
    if not raw:
        raise _invalid({"type": "missing", "loc": "body", "msg": "Field required", "input": "None"})
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise _not_json(raw, error) from None
    if not isinstance(body, dict):
        shown = f"<list of {len(body)} items>" if isinstance(body, list) else str(body)[:200]
        message = "Input should be a valid dictionary or object to extract fields from"
        raise _invalid({"type": "model_attributes_type", "loc": "body", "msg": message, "input": shown})
    if raw.count(b"[") + raw.count(b"{") >= _MAX_DEPTH:
        _refuse_depth(body)
    return clean(body)


def _refuse_depth(body: Body) -> None:
    try:
        orjson.dumps(body)
    except orjson.JSONEncodeError:
        raise RefusedError(400, f"The body is nested deeper than {_MAX_DEPTH} levels.", "Bad Request", "body") from None


def clean(body: Body) -> Body:
    """Remove what would reach the KV protocol or name a request inside the engine."""
    for name in _ENGINE_FIELDS:
        body.pop(name, None)
    extra = body.get("vllm_xargs")
    if isinstance(extra, dict):
        for name in _ENGINE_FIELDS:
            extra.pop(name, None)
    return body


def can_split(path: str, body: Mapping[str, Any]) -> bool:
    """Whether one prompt gives one answer, so that its KV can be made elsewhere.

    vLLM skips the connector for echo and prompt_logprobs (v1/core/sched/scheduler.py), and with n > 1 each child would
    fetch the same blocks, which the first one frees. A prompt that is cut to what the answer leaves may be cut
    otherwise for P, whose answer is one token.
    """
    if body.get("n") not in (None, 1) or body.get("best_of") not in (None, 1) or body.get("use_beam_search"):
        return False
    if body.get("echo") or body.get("prompt_logprobs") is not None:
        return False
    kept = body.get("truncate_prompt_tokens")
    if kept is not None and not (isinstance(kept, int) and kept >= 0):
        return False
    if path != _COMPLETIONS:
        return True
    prompt = body.get("prompt")
    if isinstance(prompt, list):
        return bool(prompt) and (len(prompt) == 1 or isinstance(prompt[0], int))
    return isinstance(prompt, str) and bool(prompt) and body.get("prompt_embeds") is None


def prefill_body(body: Body, params: Mapping[str, Any]) -> bytes:
    """P's leg: one token, no stream, and everything that shapes the prompt as the client wrote it."""
    leg = {key: value for key, value in body.items() if key not in _ANSWER_ONLY}
    leg["stream"] = False
    leg["max_tokens"] = 1
    if "max_completion_tokens" in body:
        leg["max_completion_tokens"] = 1
    leg["kv_transfer_params"] = params
    return orjson.dumps(leg)


_ANSWER_ONLY: Final = frozenset(
    {
        *("stream_options", "min_tokens", "max_completion_tokens"),
        *("logprobs", "top_logprobs", "logprob_token_ids"),
        *("return_token_ids", "return_tokens_as_token_ids", "return_prompt_text"),
        *("stop", "stop_token_ids", "repetition_detection", "structured_outputs"),
    }
)
"""Members that P's leg has none of: one token and no stream make vLLM refuse them, or nothing of them. Not among them
is what some models' prompts are made of (`response_format`, `tool_choice`). Each has its row in docs/api.md."""


def decode_body(body: Body, params: Mapping[str, Any] | None) -> bytes:
    """D's leg: the client's body, with parameters for the hand-off if there are any."""
    return orjson.dumps(body if params is None else {**body, "kv_transfer_params": params})


def settling_body(path: str, params: Mapping[str, Any], max_tokens: int) -> bytes:
    """A D leg that only settles a hand-off: a prompt of a few tokens under the hand-off's parameters."""
    prompt = {"prompt": "."} if path == _COMPLETIONS else {"messages": [{"role": "user", "content": "."}]}
    return orjson.dumps({**prompt, "max_tokens": max_tokens, "kv_transfer_params": params})


def _invalid(detail: dict[str, Any], param: str = "body") -> RefusedError:
    return RefusedError(400, f"1 validation error:\n  {detail}", "Bad Request", param)


def _not_json(raw: bytes, error: orjson.JSONDecodeError) -> RefusedError:
    position, message = error.pos, error.msg
    try:
        json.loads(raw)
    except json.JSONDecodeError as strict:
        position, message = strict.pos, strict.msg
    except (ValueError, RecursionError):
        pass
    detail = {
        "type": "json_invalid",
        "loc": f"body.{position}",
        "msg": "JSON decode error",
        "input": "<dict of 0 items>",
        "ctx": {"error": message},
    }
    return _invalid(detail, f"body.{position}")
