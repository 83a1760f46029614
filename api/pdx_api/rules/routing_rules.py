"""The rules between the fields of `spec.routing` and `spec.gateway`."""

from typing import Any, Final

from pdx_api.names import Mode, PrefillFailure
from pdx_api.rule import Rule
from pdx_api.settings.gateway import Queue
from pdx_api.settings.kinds import in_bytes

ENGINE_KEY_VARIABLE: Final = "VLLM_API_KEY"
"""The environment variable from which vLLM reads its API key."""

_WITHIN_TOTAL: Final = ("connectSeconds", "prefillSeconds", "firstEventSeconds", "idleSeconds")


def _within_total(deadlines: Any) -> bool:
    longest = max(
        deadlines.connect_seconds, deadlines.prefill_seconds, deadlines.first_event_seconds, deadlines.idle_seconds
    )
    return bool(longest <= deadlines.total_seconds)


DEADLINES_RULES: Final = (
    Rule(
        "self.handoffSeconds <= self.firstEventSeconds",
        "a hand-off ends with the first event; write handoffSeconds of at most firstEventSeconds",
        lambda deadlines: deadlines.handoff_seconds <= deadlines.first_event_seconds,
        ("handoffSeconds", "firstEventSeconds"),
    ),
    Rule(
        " && ".join(f"self.{field} <= self.totalSeconds" for field in _WITHIN_TOTAL),
        f"no wait is longer than the whole request; write {', '.join(_WITHIN_TOTAL)} of at most totalSeconds",
        _within_total,
    ),
)

RETRIES_RULES: Final = (
    Rule(
        "self.attempts == 1 || self.budgetPercent > 0 || !has(self.minRetries) || self.minRetries > 0",
        "without a retry budget no request is retried; write budgetPercent or minRetries above 0, or attempts: 1",
        lambda retries: retries.attempts == 1 or retries.budget_percent > 0 or retries.min_retries > 0,
        ("budgetPercent", "minRetries", "attempts"),
    ),
)

ROUTING_RULES: Final = (
    Rule(
        "self.queue.maxWaitSeconds <= self.deadlines.totalSeconds",
        "no wait is longer than the whole request; write queue.maxWaitSeconds of at most deadlines.totalSeconds",
        lambda routing: routing.queue.max_wait_seconds <= routing.deadlines.total_seconds,
        ("queue.maxWaitSeconds", "deadlines.totalSeconds"),
    ),
)


def _tries_again(spec: Any) -> bool:
    routing = spec.routing
    fails = spec.mode is not Mode.DISAGGREGATED or routing.on_prefill_failure is PrefillFailure.FAIL
    return bool(fails or routing.retries.attempts > 1)


def _splits_something(spec: Any) -> bool:
    longest = spec.engine.max_model_len
    above = spec.routing.disaggregate_above_tokens
    return bool(longest is None or above == 0 or above < longest)


def _bodies_fit(spec: Any) -> bool:
    return in_bytes(spec.gateway.limits.max_body_size) <= in_bytes(spec.routing.queue.max_buffered_bytes)


_QUEUE: Final = "self.routing.queue"
_BUFFERED: Final = (
    f"(has({_QUEUE}.maxBufferedBytes) ? string({_QUEUE}.maxBufferedBytes) : '{in_bytes(Queue.max_buffered_bytes)}')"
)
_KEY_FLAGS: Final = ("--api-k", "--api-ke", "--api-key")
"""vLLM accepts prefixes of a flag too."""
_WITH_ARGS: Final = ("engine", "prefill", "decode", "aggregated")


def _key_is_named_once(spec: Any) -> bool:
    if spec.engine.api_key_secret_ref is None:
        return True
    parts = [part for name in _WITH_ARGS if (part := getattr(spec, name)) is not None]
    return not any(variable.name == ENGINE_KEY_VARIABLE for part in parts for variable in part.env) and not any(
        argument.split("=")[0].replace("_", "-") in _KEY_FLAGS for part in parts for argument in part.args
    )


_NO_OTHER_KEY: Final = " && ".join(
    f"(!has(self.{part}) || (self.{part}.env.all(v, v.name != '{ENGINE_KEY_VARIABLE}') && "
    f"self.{part}.args.all(a, !(a.split('=')[0].replace('_', '-') in {list(_KEY_FLAGS)}))))"
    for part in _WITH_ARGS
)

REQUEST_RULES: Final = (
    Rule(
        f"self.mode != '{Mode.DISAGGREGATED}' || self.routing.onPrefillFailure == '{PrefillFailure.FAIL}'"
        " || self.routing.retries.attempts > 1",
        "a retry needs a second attempt; write routing.retries.attempts of at least 2, or "
        f"routing.onPrefillFailure: {PrefillFailure.FAIL}",
        _tries_again,
        ("routing.retries.attempts", "routing.onPrefillFailure"),
    ),
    Rule(
        "!has(self.engine.maxModelLen) || self.routing.disaggregateAboveTokens == 0"
        " || self.routing.disaggregateAboveTokens < self.engine.maxModelLen",
        "no prompt would be split; write routing.disaggregateAboveTokens below engine.maxModelLen",
        _splits_something,
        ("routing.disaggregateAboveTokens", "engine.maxModelLen"),
    ),
    Rule(
        f"!isQuantity(string(self.gateway.limits.maxBodySize)) || !isQuantity({_BUFFERED})"
        f" || quantity(string(self.gateway.limits.maxBodySize)).compareTo(quantity({_BUFFERED})) <= 0",
        "the largest body would never be accepted; write gateway.limits.maxBodySize of at most "
        "routing.queue.maxBufferedBytes",
        _bodies_fit,
        ("gateway.limits.maxBodySize", "routing.queue.maxBufferedBytes"),
    ),
    Rule(
        f"!has(self.engine.apiKeySecretRef) || ({_NO_OTHER_KEY})",
        f"engines read their key from engine.apiKeySecretRef; leave out {ENGINE_KEY_VARIABLE} and {_KEY_FLAGS[-1]}",
        _key_is_named_once,
    ),
)
"""Rules of the whole spec."""
