"""The answers that the gateway itself gives to clients: an error for every outcome."""

from math import ceil
from typing import Final

from pdx_proxy.admission.admission import ShedError
from pdx_proxy.http.downstream.exchange import Exchange, answer, own_headers
from pdx_proxy.http.errors import RefusedError, error_body, unavailable_body
from pdx_proxy.http.upstream.failures import BadAnswer, EngineBusy, EngineFailure, RequestExpired, is_local
from pdx_proxy.serving.stream_end import break_of
from pdx_proxy.telemetry.counters import Outcome
from pdx_proxy.telemetry.timeline import Timeline

DEADLY: Final = "Engines died while they served this request. It is not tried again."
BROKE_OFF: Final = "Two engines broke off their answers to this request in the same place. It is not tried again."
_SAME_ERROR: Final = "Two engines answered this request with the same error. It is not tried again."
_BUSY: Final = "No engine accepts a request at present."
_EXHAUSTED: Final = "The service is overloaded: the gateway is out of ports, files or memory."


def answer_unavailable(
    exchange: Exchange,
    last: EngineFailure | None,
    timeline: Timeline,
    *,
    deadly: bool = False,
    at_fault: bool = False,
) -> Outcome:
    """Every attempt failed, `last` at last; None if no engine could be selected. An engine's own error goes on,
    and so does the time after which it accepts requests again. A `deadly` request has killed engines, and one that is
    `at_fault` got the same failure from two of them: they are not to be sent again."""
    timeline.status, path = 503, exchange.path
    if deadly:
        timeline.status = 500
        answer(exchange, 500, error_body(500, DEADLY, "InternalServerError", path=path), own_headers(exchange))
        return Outcome.UNAVAILABLE
    if at_fault:
        status, body, message = 500, b"", BROKE_OFF
        if isinstance(last, BadAnswer):
            status, body, message = last.status, last.body, _SAME_ERROR
        timeline.status = status
        body = body or error_body(status, message, "InternalServerError", path=path)
        answer(exchange, status, body, own_headers(exchange))
        return Outcome.UNAVAILABLE
    headers = {**own_headers(exchange), "retry-after": "1"}
    if last is not None and last.local:
        answer(exchange, 503, unavailable_body(_EXHAUSTED, path), headers)
        return Outcome.EXHAUSTED
    if isinstance(last, EngineBusy):
        headers["retry-after"] = str(ceil(last.seconds))
        status = timeline.status = last.answered
        kind = "RateLimitError" if status == 429 else "ServiceUnavailableError"
        answer(exchange, status, last.body or error_body(status, _BUSY, kind, path=path), headers)
    elif isinstance(last, BadAnswer) and last.body and last.status >= 500:
        timeline.status = last.status
        answer(exchange, last.status, last.body, headers)
    elif isinstance(last, BadAnswer) and last.text and last.status >= 500:  # the text may be none for clients
        timeline.status = last.status
        message = f"An engine answered {last.status}, without an error that the API describes."
        answer(exchange, last.status, error_body(last.status, message, "InternalServerError", path=path), headers)
    elif last is None:
        answer(exchange, 503, unavailable_body("No engine is ready.", path), headers)
    else:
        answer(exchange, 503, unavailable_body("No engine could answer the request.", path), headers)
    return Outcome.UNAVAILABLE


def answer_error(exchange: Exchange, error: Exception, timeline: Timeline) -> Outcome:
    """Answer a request that an error ended, and return its outcome."""
    if isinstance(error, RefusedError):
        return _answer_refused(exchange, error, timeline)
    if isinstance(error, RequestExpired):
        timeline.status = 504
        broken = break_of(error)
        body = error_body(504, broken.message, broken.kind, path=exchange.path)
        answer(exchange, 504, body, own_headers(exchange))
        return Outcome.EXPIRED
    if exchange.begun:
        exchange.abort()
    elif is_local(error):
        exchange.drop_body()
        timeline.status, headers = 503, {**own_headers(exchange), "retry-after": "1"}
        answer(exchange, 503, unavailable_body(_EXHAUSTED, exchange.path), headers)
        return Outcome.EXHAUSTED
    else:
        exchange.drop_body()
        timeline.status = 500
        body = error_body(500, "The gateway failed to serve the request.", "InternalServerError", path=exchange.path)
        answer(exchange, 500, body, own_headers(exchange))
    return Outcome.INTERNAL


def _answer_refused(exchange: Exchange, refusal: RefusedError, timeline: Timeline) -> Outcome:
    exchange.drop_body()
    timeline.status = refusal.status
    answer(exchange, refusal.status, refusal.body(exchange.path), {**own_headers(exchange), **refusal.headers})
    if isinstance(refusal, ShedError):
        timeline.failures.append(refusal.reason.value)
        return Outcome.SHED
    return Outcome.REFUSED
