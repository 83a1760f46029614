"""Alerts about what users experience. The worst state of a PDDeployment hides the others."""

from typing import Final

from scripts.alerts.model import ONE, WHICH, Alert, Severity, unless
from scripts.alerts.states import (
    DEGRADED,
    ERRORS,
    FLAPPING,
    GATEWAY_DOWN,
    NOT_AVAILABLE,
    NOT_SPLITTING,
    SLOW_FIRST_TOKEN,
    SLOW_TOKENS,
    UNAVAILABLE,
    broken_pairs,
)

_OUTAGES: Final = (GATEWAY_DOWN, UNAVAILABLE)
_FAULTS: Final = (*_OUTAGES, ERRORS, NOT_SPLITTING)
# By its alert: a share of failures around the limit comes and goes, and would keep PDXErrors from lasting.
_UNLESS_UNAVAILABLE: Final = f'unless on ({ONE}) ALERTS{{alertname="PDXUnavailable",alertstate="firing"}}'

ALERTS: Final = (
    Alert(
        "PDXGatewayDown",
        GATEWAY_DOWN.name,
        "1m",
        Severity.CRITICAL,
        f"No gateway of {WHICH} answers.",
        "Clients get no connection. No gateway has answered Prometheus for a minute, although one did within the last "
        "day.",
    ),
    Alert(
        "PDXUnavailable",
        unless(UNAVAILABLE.name, GATEWAY_DOWN),
        "1m",
        Severity.CRITICAL,
        f"{WHICH} does not answer requests.",
        "The gateway has no engine that can answer, or more than three quarters of the requests fail, or all requests "
        "hang.",
    ),
    Alert(
        "PDXErrors",
        f"{unless(ERRORS.name, GATEWAY_DOWN)} {_UNLESS_UNAVAILABLE}",
        "3m",
        Severity.CRITICAL,
        f"Requests to {WHICH} fail.",
        "{{ $value | humanizePercentage }} of requests get an error, or lose their answer after it has begun.",
    ),
    Alert(
        "PDXNotSplitting",
        unless(NOT_SPLITTING.name, *_OUTAGES, ERRORS),
        "2m",
        Severity.CRITICAL,
        f"Decode engines of {WHICH} compute the prompts.",
        "No prefill engine serves, or no KV moves to decode engines. Answers are right, but prefills slow down "
        "decoding, and prefill engines are of little use.",
    ),
    Alert(
        "PDXSlowTokens",
        unless(SLOW_TOKENS.name, *_FAULTS),
        "3m",
        Severity.CRITICAL,
        f"Answers of {WHICH} are slow.",
        "An engine needs {{ $value | humanizeDuration }} for a token: more than spec.slo, else than the chart's "
        "tokenSeconds, else than three times the median of the last day.",
    ),
    Alert(
        "PDXSlowFirstToken",
        unless(SLOW_FIRST_TOKEN.name, *_FAULTS, SLOW_TOKENS),
        "3m",
        Severity.CRITICAL,
        f"Requests to {WHICH} wait too long for their first token.",
        "First tokens come later than spec.slo, else than the chart's firstTokenSeconds, else than four times the "
        "normal time of the last day; or the gateway's queue is full and requests are shed.",
    ),
    Alert(
        "PDXTransferProbeFailing",
        unless(broken_pairs(), *_FAULTS, FLAPPING),
        "3m",
        Severity.WARNING,
        f"KV does not move between some engines of {WHICH}.",
        "Transfer probes failed in {{ $value | humanize }} pairs: the decode engine computed the prompt again, the "
        "hand-off failed, or the text differs. Other pairs still split requests.",
    ),
    Alert(
        "PDXEndpointFlapping",
        unless(FLAPPING.name, *_FAULTS),
        "0m",
        Severity.WARNING,
        f"Engines of {WHICH} fail and recover repeatedly.",
        "A gateway ejected engines {{ $value | humanize }} times in 15 minutes.",
    ),
    Alert(
        "PDXNotAvailable",
        unless(NOT_AVAILABLE.name, *_FAULTS, SLOW_TOKENS, SLOW_FIRST_TOKEN),
        "5m",
        Severity.CRITICAL,
        f"{WHICH} is not available.",
        "The operator finds no gateway or no engine that answers, although the object was available within the last "
        "day.",
    ),
    Alert(
        "PDXDegraded",
        unless(DEGRADED.name, *_FAULTS, SLOW_TOKENS, SLOW_FIRST_TOKEN, NOT_AVAILABLE),
        "5m",
        Severity.WARNING,
        f"{WHICH} is degraded.",
        "Requests are answered, but engines or gateways do not start, or the spec cannot be applied. The condition "
        "Degraded names the cause.",
    ),
)
