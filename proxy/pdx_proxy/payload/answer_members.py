"""Members that shape the answer: whether they have the forms that vLLM usually accepts. Pure.

P's leg does not carry them. So if vLLM refuses one, D would refuse it after P's whole prefill. A request with an
unusual form is therefore not split: D reads all of it first, and its own answer is the client's. A form that vLLM
accepts and this module does not costs only speed.

Facts: vLLM 0.28 to 0.33 entrypoints/openai/{completion,chat_completion,responses}/protocol.py,
entrypoints/anthropic/protocol.py and sampling_params.py (`_verify_args`, `_validate_logprobs`).
"""

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import msgspec

from pdx_proxy.payload.decisions import CHAT, COMPLETIONS, MESSAGES, RESPONSES

_Check: TypeAlias = Callable[[bytes], bool]
_NULL: Final = b"null"
_TRUE: Final = b"true"
_BOOLS: Final = (_TRUE, b"false")
_MOST_DIGITS: Final = 12
_MOST_LOGPROBS: Final = 20
"""vLLM's default of `--max-logprobs`."""
_MOST_STOPS: Final = 4
"""vLLM's default of VLLM_MAX_STOP_STRINGS."""
_MOST_BYTES: Final = 64 * 1024
"""A longer value is not read."""
_DEFAULT_TOKENS: Final = 16
"""Of a completion without `max_tokens`."""
_LEAST_BUDGET: Final = 1024
_TEXTS: Final = msgspec.json.Decoder(str | list[str])
_NUMBERS: Final = msgspec.json.Decoder(list[int])
_OPTIONS: Final = msgspec.json.Decoder(dict[str, bool | None])
_LIMITS: Final = msgspec.json.Decoder(dict[str, int])
_OBJECT: Final = msgspec.json.Decoder(dict[str, Any])
_INCLUDED: Final = frozenset(
    (
        *("code_interpreter_call.outputs", "computer_call_output.output.image_url", "file_search_call.results"),
        *("message.input_image.image_url", "message.output_text.logprobs", "reasoning.encrypted_content"),
    )
)
_CONSTRAINTS: Final = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


def are_usual(path: str, members: dict[str, Any], stream: bool) -> bool:
    """Whether each member of a request that shapes its answer has a usual form, or its path is never split.

    `members` are JSON values. `stream`: whether the answer is a stream.
    """
    checks = _CHECKS.get(path)
    if checks is None:
        return True
    for name, raw in members.items():
        check = checks.get(name)
        if check is not None and not (len(raw) <= _MOST_BYTES and check(bytes(raw))):
            return False
    if path == MESSAGES:
        return "max_tokens" in members and _has_budget(members)
    if "stream_options" in members and not stream and bytes(members["stream_options"]) not in (_NULL, b"{}"):
        return False
    return ("min_tokens" not in members or _reaches(path, members)) and _has_logprobs(path, members)


def _read(decoder: Any, raw: bytes) -> Any:
    """The decoded value; None if it is null or of another type."""
    if raw == _NULL:
        return None
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None


def _is_count(raw: bytes) -> bool:
    return raw.isdigit() and len(raw) <= _MOST_DIGITS


def _is_positive(raw: bytes) -> bool:
    return _is_count(raw) and raw != b"0"


def _is_limit(raw: bytes) -> bool:
    return _is_positive(raw) or raw == _NULL


def _is_bool(raw: bytes) -> bool:
    return raw in _BOOLS


def _is_optional_bool(raw: bytes) -> bool:
    return raw in _BOOLS or raw == _NULL


def _is_number_of_logprobs(raw: bytes) -> bool:
    return raw == _NULL or (_is_count(raw) and int(raw) <= _MOST_LOGPROBS)


def _are_stops(raw: bytes) -> bool:
    found = _read(_TEXTS, raw)
    if found is None:
        return raw == _NULL
    texts = [found] if isinstance(found, str) else found
    return len(texts) <= _MOST_STOPS and all(texts)


def _are_stop_sequences(raw: bytes) -> bool:
    return raw[:1] != b'"' and _are_stops(raw)


def _are_tokens(raw: bytes) -> bool:
    found = _read(_NUMBERS, raw)
    return raw == _NULL if found is None else min(found, default=0) >= 0


def _are_options(raw: bytes) -> bool:
    return raw == _NULL or _read(_OPTIONS, raw) is not None


def _is_detection(raw: bytes) -> bool:
    found = _read(_LIMITS, raw)
    if found is None:
        return raw == _NULL
    limits: dict[str, int] = found
    most, least = limits.get("max_pattern_size", 0), limits.get("min_pattern_size", 0)
    return 0 <= least <= most and (most == 0 or limits.get("min_count", 0) >= 2)


def _is_constraint(raw: bytes) -> bool:
    """One kind of constraint, with a value of its type. Only an engine can read a grammar, a pattern or a schema."""
    found = _read(_OBJECT, raw)
    if found is None:
        return raw == _NULL
    given = [(name, found[name]) for name in _CONSTRAINTS if found.get(name) is not None]
    return len(given) == 1 and _fits(*given[0])


def _fits(name: str, value: Any) -> bool:
    if name == "choice":
        return isinstance(value, list) and bool(value) and all(isinstance(each, str) for each in value)
    if name == "json_object":
        return value is True
    return isinstance(value, str) or (name == "json" and isinstance(value, dict))


def _are_included(raw: bytes) -> bool:
    found = _read(_TEXTS, raw)
    return raw == _NULL if found is None else isinstance(found, list) and _INCLUDED.issuperset(found)


def _has_budget(members: dict[str, Any]) -> bool:
    """Whether `thinking` has a form that vLLM accepts."""
    raw = members.get("thinking", _NULL)
    if len(raw) > _MOST_BYTES:
        return False
    found = _read(_OBJECT, bytes(raw))
    if found is None:
        return bytes(raw) == _NULL
    kind, budget = found.get("type"), found.get("budget_tokens")
    if kind == "enabled":
        return isinstance(budget, int) and _LEAST_BUDGET <= budget < int(bytes(members["max_tokens"]))
    return kind in ("disabled", "adaptive")


def _reaches(path: str, members: dict[str, Any]) -> bool:
    """Whether the least number of tokens is not above the largest."""
    least = int(bytes(members["min_tokens"]))
    for name in ("max_completion_tokens", "max_tokens"):
        raw = bytes(members.get(name, _NULL))
        if raw != _NULL and (name == "max_tokens" or path == CHAT):
            return least <= int(raw)
    return path == CHAT or least <= _DEFAULT_TOKENS


def _has_logprobs(path: str, members: dict[str, Any]) -> bool:
    """Whether `top_logprobs` and `logprob_token_ids` come with the `logprobs` that they need."""
    ids, top = members.get("logprob_token_ids"), members.get("top_logprobs")
    if ids is None and top is None:
        return True
    given = bytes(members.get("logprobs", _NULL))
    if given == _TRUE if path == CHAT else given != _NULL:
        return True
    return bytes(ids or _NULL) in (_NULL, b"[]") and (path != CHAT or bytes(top or _NULL) in (_NULL, b"0"))


_STOPS: Final[dict[str, _Check]] = {"stop": _are_stops, "stop_token_ids": _are_tokens, "ignore_eos": _is_bool}
_BOTH: Final[dict[str, _Check]] = {
    **_STOPS,
    "max_tokens": _is_limit,
    "min_tokens": _is_count,
    "stream_options": _are_options,
    "logprob_token_ids": _are_tokens,
    "return_token_ids": _is_optional_bool,
    "return_tokens_as_token_ids": _is_optional_bool,
    "repetition_detection": _is_detection,
    "structured_outputs": _is_constraint,
}
_CHECKS: Final[dict[str, dict[str, _Check]]] = {
    COMPLETIONS: {**_BOTH, "logprobs": _is_number_of_logprobs},
    CHAT: {
        **_BOTH,
        "max_completion_tokens": _is_limit,
        "logprobs": _is_optional_bool,
        "top_logprobs": _is_number_of_logprobs,
    },
    MESSAGES: {"max_tokens": _is_positive, "stop_sequences": _are_stop_sequences},
    RESPONSES: {
        **_STOPS,
        "max_output_tokens": _is_limit,
        "store": _is_optional_bool,
        "include": _are_included,
        "top_logprobs": _is_number_of_logprobs,
        "enable_response_messages": _is_bool,
        "structured_outputs": _is_constraint,
    },
}
SHAPING: Final[dict[str, frozenset[str]]] = {path: frozenset(checks) for path, checks in _CHECKS.items()}
"""The members that are checked, by path."""
