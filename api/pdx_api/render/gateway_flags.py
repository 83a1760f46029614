"""The gateway's flags for a spec: those whose values are not the gateway's defaults. Pure.

`pdx_proxy.config.flags` parses them. The operator writes them into pods; `pdx up` starts its gateway with them.
"""

from collections.abc import Mapping

from pdx_api.defaults import TRACING_RATIO
from pdx_api.quantities import quantity
from pdx_api.spec.kv_transfer import KVTransfer
from pdx_api.spec.routing import SLO, GatewayLimits, Routing
from pdx_api.spec.types import Gateway, Spec, Tracing

Values = Mapping[str, str]


def gateway_flags(spec: Spec) -> tuple[str, ...]:
    """The flags for the parts of a spec that concern requests, each as `--name=value`."""
    values = {**_values(spec.routing, spec.gateway), **_goals(spec.slo, spec.kv_transfer)}
    values |= _tracing(spec.observability.tracing)
    usual = {**_values(Routing(), Gateway()), **_goals(SLO(), KVTransfer()), **_tracing(None)}
    return tuple(f"{flag}={value}" for flag, value in values.items() if value != usual[flag])


def _values(routing: Routing, gateway: Gateway) -> Values:
    routed = {**_choosing(routing), **_deadlines(routing), **_queue(routing, gateway.limits), **_health(routing)}
    return {**routed, **_answers(gateway)}


def _answers(gateway: Gateway) -> Values:
    return {
        "--log-format": str(gateway.logs.format),
        "--slow-seconds": str(gateway.logs.slow_seconds),
        "--cors-allowed-origins": ",".join(gateway.cors.allowed_origins),
        "--stream-keep-alive-seconds": str(gateway.stream_keep_alive_seconds or 0),
    }


def _choosing(routing: Routing) -> Values:
    return {
        "--split": str(routing.split),
        "--prefill-policy": str(routing.prefill_policy or ""),
        "--decode-policy": str(routing.decode_policy or ""),
        "--disaggregate-above-tokens": str(routing.disaggregate_above_tokens),
        "--on-prefill-failure": str(routing.on_prefill_failure),
        "--attempts": str(routing.retries.attempts),
        "--retry-budget-percent": str(routing.retries.budget_percent),
        "--min-retries": str(routing.retries.min_retries),
    }


def _deadlines(routing: Routing) -> Values:
    deadlines = routing.deadlines
    return {
        "--connect-seconds": str(deadlines.connect_seconds),
        "--prefill-seconds": str(deadlines.prefill_seconds),
        "--handoff-seconds": str(deadlines.handoff_seconds),
        "--first-event-seconds": str(deadlines.first_event_seconds),
        "--idle-seconds": str(deadlines.idle_seconds),
        "--total-seconds": str(deadlines.total_seconds),
    }


def _queue(routing: Routing, limits: GatewayLimits) -> Values:
    queue = routing.queue
    return {
        "--max-queued-requests": str(queue.max_requests),
        "--max-wait-seconds": str(queue.max_wait_seconds),
        "--max-in-flight-per-decode": str(queue.max_in_flight_per_decode),
        "--max-in-flight-per-prefill": str(queue.max_in_flight_per_prefill),
        "--max-buffered-bytes": _bytes(queue.max_buffered_bytes),
        "--max-body-size": _bytes(limits.max_body_size),
        "--max-requests-per-client": str(limits.max_requests_per_client),
        "--trusted-proxies": ",".join(limits.trusted_proxies),
    }


def _health(routing: Routing) -> Values:
    return {
        "--consecutive-errors": str(routing.outlier_detection.consecutive_errors),
        "--stalled-seconds": str(routing.outlier_detection.stalled_seconds),
        "--slow-start-seconds": str(routing.slow_start_seconds),
    }


def _goals(slo: SLO, transfer: KVTransfer) -> Values:
    return {
        "--slo-ttft-milliseconds": str(slo.ttft_milliseconds or 0),
        "--slo-tpot-milliseconds": str(slo.tpot_milliseconds or 0),
        "--verification-period-seconds": str(transfer.verification.period_seconds),
    }


def _tracing(tracing: Tracing | None) -> Values:
    endpoint, ratio = ("", TRACING_RATIO) if tracing is None else (tracing.endpoint, tracing.ratio)
    return {"--tracing-endpoint": endpoint, "--tracing-ratio": f"{ratio:.9g}"}


def _bytes(size: int | str) -> str:
    found = quantity(size)
    assert found is not None, "the field's rule accepts quantities only"
    return str(int(found))
