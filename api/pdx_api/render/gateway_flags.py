"""The gateway's flags for a spec: those whose values are not the gateway's defaults. Pure.

`pdx_proxy.config.flags` parses them. The operator writes them into pods; `pdx up` starts its gateway with them.
"""

from collections.abc import Mapping

from pdx_api.quantities import quantity
from pdx_api.spec.routing import GatewayLimits, GatewayLogs, Routing
from pdx_api.spec.types import Spec

Values = Mapping[str, str]


def gateway_flags(spec: Spec) -> tuple[str, ...]:
    """The flags for `spec.routing`, `spec.gateway.limits` and `spec.gateway.logs`, each as `--name=value`."""
    values = _values(spec.routing, spec.gateway.limits, spec.gateway.logs)
    usual = _values(Routing(), GatewayLimits(), GatewayLogs())
    return tuple(f"{flag}={value}" for flag, value in values.items() if value != usual[flag])


def _values(routing: Routing, limits: GatewayLimits, logs: GatewayLogs) -> Values:
    logged = {"--log-format": str(logs.format), "--slow-seconds": str(logs.slow_seconds)}
    return {**_choosing(routing), **_deadlines(routing), **_queue(routing, limits), **_health(routing), **logged}


def _choosing(routing: Routing) -> Values:
    return {
        "--prefill-policy": str(routing.prefill_policy or ""),
        "--decode-policy": str(routing.decode_policy or ""),
        "--disaggregate-above-tokens": str(routing.disaggregate_above_tokens),
        "--on-prefill-failure": str(routing.on_prefill_failure),
        "--attempts": str(routing.retries.attempts),
        "--retry-budget-percent": str(routing.retries.budget_percent),
        "--min-retries": str(routing.retries.free),
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
        "--max-buffered-bytes": _bytes(queue.max_memory),
        "--max-body-size": _bytes(limits.max_body_size),
        "--max-requests-per-client": str(limits.max_requests_per_client),
        "--trusted-proxies": ",".join(limits.trusted_proxies),
    }


def _health(routing: Routing) -> Values:
    return {
        "--consecutive-errors": str(routing.ejection.consecutive_failures),
        "--stalled-seconds": str(routing.ejection.stalled_seconds),
        "--slow-start-seconds": str(routing.slow_start_seconds),
        "--verification-period-seconds": str(routing.canary_seconds),
    }


def _bytes(size: int | str) -> str:
    found = quantity(size)
    assert found is not None, "the field's rule accepts quantities only"
    return str(int(found))
