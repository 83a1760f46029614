"""Checks of what clients receive: no answer, failures, late first tokens, slow tokens, no splitting, and its causes."""

from collections.abc import Iterator, Mapping
from typing import Final

from pdx_api.names import Mode, Order, Role
from pdx_cli.checks.findings import Finding, Severity, listed, log_of, wrong
from pdx_cli.checks.transfer import broken_pairs, is_verified
from pdx_cli.sources.experience import (
    CLIENT_LIMIT,
    LEAST_FAILURES,
    Limit,
    experience_of,
    gateway_objectives,
    late_streams,
    limits_of,
    longest_part,
    never_splits,
    spec_objectives,
    spoken,
)
from pdx_cli.sources.figures import WARM
from pdx_cli.sources.observation import Body, Observation

_MEANINGS: Final[Mapping[str, str]] = {
    "shed": "were refused because of a limit",
    "unavailable": "got no answer from any engine",
    "broken": "lost their engine during the answer",
    "idle": "got no more events during the answer (spec.routing.deadlines.idleSeconds)",
    "expired": "exceeded spec.routing.deadlines.totalSeconds",
    "exhausted": "found the gateway at its own limits",
    "internal": "failed in the gateway",
}
"""Outcome -> what happened to the requests."""
_SHED: Final[Mapping[str, tuple[str, str]]] = {
    "queue_full": ("because the gateway's queue was full", "Add decode engines, or send less load."),
    "queue_timeout": ("after the longest wait in the queue", "Add decode engines, or send less load."),
    CLIENT_LIMIT: (
        "because their client had too many open requests",
        "Let the client send fewer requests at once, or raise its limit (docs/how-to/tenants.md).",
    ),
    "bytes": ("because the gateway held too many bytes of bodies", "Add gateways, or send smaller bodies."),
}
"""Reason -> when requests are shed for it, and the remedy."""
_ATTEMPTS: Final[Mapping[str, str]] = {
    "connect": "got no connection",
    "lost": "lost their connection",
    "deadline": "got no answer in time",
    "status": "were answered with an error status",
    "error_event": "were answered with an error event",
    "abort": "were aborted by their engine",
    "local": "found the gateway at its own limits",
}
"""Reason (`pdx_proxy.http.upstream.failures`) -> what happened to the attempts."""
_ANSWER: Final = (Role.DECODE, Role.AGGREGATED)
"""Roles of the engines that answer clients."""
_SUSPECT: Final = "Suspect"
"""State of an engine that serves only while no other one can answer."""
_QUEUE_SHARE: Final = 0.5
"""Of the longest wait in the queue: a longer median wait is a finding."""
_LEAST_WAITS: Final = 3
_LEAST_RESTARTS: Final = 2
_LEAST_SPLITS: Final = 0.5
"""Share of the requests that must be served whole before a finding says so."""


def impact(sentence: str, cause: str, remedy: str = "") -> Finding:
    """Return a finding about what clients receive."""
    return Finding(Severity.IMPACT, cause, sentence, remedy)


def unanswered_clients(observation: Observation) -> Iterator[Finding]:
    """No gateway answers, or no engine that can answer serves."""
    states = _states(observation)
    if observation.starting is not None:
        return
    silent = any(gateway.problem for gateway in observation.gateways)
    deployed = observation.gateway
    silent = silent or (deployed is not None and deployed.replicas > 0 and not deployed.ready)
    if not states and (silent or "gateway" in {process.name for process in observation.dead}):
        yield impact("Clients get no answer: no gateway answers", "Unavailable")
    elif _is_used(states) and not _serving(observation, *_ANSWER):
        yield impact("Every request fails: no engine that can answer clients serves", "Unavailable")
    elif _is_used(states) and all(e.get("state") == _SUSPECT for e in _serving(observation, *_ANSWER)):
        yield impact("Requests hang or fail: every engine that can answer clients has failed", "Unavailable")


def failed_requests(observation: Observation) -> Iterator[Finding]:
    """So many requests of the last minutes failed that clients notice."""
    seen = experience_of(_states(observation))
    if seen.fails:
        kinds = sorted(seen.failed.items(), key=lambda each: -each[1])
        parts = listed(f"{count:,} {_MEANINGS[outcome]}" for outcome, count in kinds)
        yield impact(
            f"{seen.share}: {seen.failures:,} of the {seen.ended:,} of {seen.period}",
            "RequestsFail",
            f"Of these, {parts}.",
        )


def late_answers(observation: Observation) -> Iterator[Finding]:
    """First tokens come late, or tokens come slowly: see `limits_of` for what they are compared with."""
    states = _states(observation)
    seen, limits = experience_of(states), _limits(observation, states)
    if late := late_streams(seen.ttft, seen.ttft_p90, limits["ttft"]):
        yield impact(
            f"Answers begin late: {late[0]} of the streams of {seen.period} waited for more than {spoken(late[1])} for "
            f"their first token; {limits['ttft'].clause}",
            "FirstTokenLate",
        )
    slow = {name: seconds for name, seconds in seen.tpot.items() if seconds > limits["tpot"].seconds}
    if slow:
        worst = max(slow, key=slow.__getitem__)
        names = {str(e.get("name")): str(e.get("pod") or e.get("name")) for e in observation.endpoints}
        others = f" ({len(slow)} of {len(seen.tpot)} engines are slow)" if len(seen.tpot) > 1 else ""
        yield impact(
            f"Answers are slow: {names.get(worst, worst)} needs {spoken(slow[worst])} for each token; "
            f"{limits['tpot'].clause}{others}",
            "TokensSlow",
            _slow_remedy(observation, {names.get(name, name) for name in slow}, len(seen.tpot)),
        )


_WAITS: Final[Mapping[str, tuple[str, str, str]]] = {
    "to_prefill": (
        "PrefillConnectSlow",
        "to select and reach a prefill engine",
        "Compare the CPU of the gateways with its limit, and check the network to the prefill engines.",
    ),
    "prefill": (
        "PrefillSlow",
        "for the prefill engine's answer",
        "Add prefill engines (spec.prefill.replicas). If `pdx top` shows no queue at them (WAIT), prompts are longer "
        "than usual, or an engine is slow.",
    ),
    "handoff": (
        "HandoffSlow",
        "from the prefill engine's answer to the decode engine's first token",
        "If `pdx top` shows no queue at decode engines (WAIT), the transfer of KV is slow: without RDMA, UCX uses TCP. "
        "Check engine.rdma, UCX_TLS, UCX_NET_DEVICES and the nodes' network. Until it is repaired, "
        "spec.routing.split: Never avoids the transfer.",
    ),
}
"""Phase between queue and first token -> the cause, what half of the requests waited for, the remedy."""


def slow_phases(observation: Observation) -> Iterator[Finding]:
    """First tokens come late, without a long queue, and most of the wait is one phase."""
    if not late_first_token(observation) or any(finding.cause == "QueueLong" for finding in full_queue(observation)):
        return
    pushes = any(e.get("order") not in (None, Order.PREFILL_FIRST) for e in observation.endpoints)
    if (longest := longest_part(experience_of(_states(observation)), pushes=pushes)) is not None:
        name, seconds = longest
        cause, what, remedy = _WAITS[name]
        yield wrong(cause, f"Most of the time to first token is one wait: {spoken(seconds)} {what}", remedy)


def flapping_engines(observation: Observation) -> Iterator[Finding]:
    """An engine was ejected and warmed up again, more than once in the last minutes."""
    seen = experience_of(_states(observation))
    for name, count in seen.restarts.items():
        if count >= _LEAST_RESTARTS:
            pod, log = _engine_of(observation, name)
            yield wrong("EngineFlapping", f"{pod} failed and recovered {count} times in {seen.period}", log)


def broken_answers(observation: Observation) -> Iterator[Finding]:
    """So many requests fail that clients notice, and most of the answers that broke were one engine's."""
    seen = experience_of(_states(observation))
    total = sum(seen.broken.values())
    if not seen.fails or total < LEAST_FAILURES:
        return
    worst = max(seen.broken, key=seen.broken.__getitem__)
    if seen.broken[worst] > total / 2:
        pod, log = _engine_of(observation, worst)
        sentence = f"{seen.broken[worst]:,} of the {total:,} answers of {seen.period} that broke were those of {pod}"
        yield wrong("AnswersBreak", sentence, log)


def _engine_of(observation: Observation, name: str) -> tuple[str, str]:
    """Return the pod of an engine that a gateway names, and where its log is."""
    pod = next((str(e["pod"]) for e in observation.endpoints if e.get("name") == name and e.get("pod")), name)
    engine = next((e for e in observation.engines if e.name == pod), None)
    return pod, log_of(engine.log_source, engine.log) if engine is not None else log_of("", "")


def _slow_remedy(observation: Observation, slow: set[str], number: int) -> str:
    why = (
        "Only some engines are slow, so their machines or GPUs are the likely cause: compare clocks, temperature and "
        "neighbours, or replace the engine."
        if len(slow) < number
        else "Compare its batch (`pdx top`: RUN) with the usual one: too many requests for its GPU, or a slow machine."
    )
    engine = next((e for e in observation.engines if e.name in slow), None)
    return f"{why}\n{log_of(engine.log_source, engine.log)}" if engine is not None else why


def full_queue(observation: Observation) -> Iterator[Finding]:
    """Requests wait long in the gateway's queue, or are shed."""
    states = _states(observation)
    seen = experience_of(states)
    longest = max((((s.get("objectives") or {}).get("queueSeconds") or 0.0) for s in states), default=0.0)
    waits = seen.queue is not None and longest and seen.queue > _QUEUE_SHARE * longest
    waits = waits or (seen.queued > 0 and late_first_token(observation))
    if waits and max(seen.waited, seen.queued) >= _LEAST_WAITS:
        wait = f"; half of those that waited did so for more than {spoken(seen.queue)}" if seen.queue else ""
        yield wrong(
            "QueueLong",
            f"{seen.queued} requests wait in the gateway's queue{wait}{_full(observation)}",
            f"{_own_limit(observation)}Add decode engines (spec.decode.replicas), or send less load. To refuse "
            "requests sooner, lower spec.routing.queue.maxWaitSeconds.",
        )
    for reason, count in seen.sheds.items():
        when, remedy = _SHED.get(reason, (f"({reason})", ""))
        if count >= _LEAST_WAITS:
            severity = Severity.NOTE if reason == CLIENT_LIMIT else Severity.WRONG
            sentence = f"{count:,} requests of {seen.period} were refused {when}"
            yield Finding(severity, "RequestsShed", sentence, remedy)


def _own_limit(observation: Observation) -> str:
    """Return the remedy for a limit that the spec sets, which can be lower than what engines run at a time."""
    queue = observation.deployment.spec.routing.queue if observation.deployment else None
    if queue is None or not queue.max_in_flight_per_decode:
        return ""
    return (
        f"spec.routing.queue.maxInFlightPerDecode allows {queue.max_in_flight_per_decode} per decode engine: remove "
        "it, and the gateway finds the limit by itself. "
    )


def late_first_token(observation: Observation) -> bool:
    """Whether first tokens come later than the limit."""
    return any(finding.cause == "FirstTokenLate" for finding in late_answers(observation))


def _full(observation: Observation) -> str:
    """Return that all serving engines that answer clients have as many requests as they may; else nothing."""
    served = [e for e in _serving(observation, *_ANSWER) if e.get("limit") is not None]
    if not served or any((e.get("inFlight") or 0) < int(e["limit"]) for e in served):
        return ""
    have, may = sum(e.get("inFlight") or 0 for e in served), sum(int(e["limit"]) for e in served)
    engines = "1 engine that answers" if len(served) == 1 else f"{len(served)} engines that answer"
    return f". The {engines} clients {'is' if len(served) == 1 else 'are'} full: {have} of {may} requests"


def failing_engines(observation: Observation) -> Iterator[Finding]:
    """Requests failed because attempts at engines did, without another attempt if the retry budget was used up."""
    seen = experience_of(_states(observation))
    attempts = sum(seen.attempts.values())
    if seen.fails and attempts >= LEAST_FAILURES:
        kinds = sorted(seen.attempts.items(), key=lambda each: -each[1])
        how = listed(f"{count:,} {_ATTEMPTS.get(reason, reason)}" for reason, count in kinds)
        engine = next((e for e in observation.engines if e.role is not Role.PREFILL), None)
        remedy = log_of(engine.log_source, engine.log) if engine is not None else log_of("", "")
        yield wrong("EnginesFail", f"{attempts:,} attempts at engines failed in {seen.period}: {how}", remedy)
    if seen.fails and seen.retries_refused:
        yield wrong(
            "RetriesRefused",
            f"{seen.retries_refused:,} retries of {seen.period} were refused: the retry budget is used up, so that "
            "failing engines do not multiply the load",
            "Repair what the other findings name. `pdx_retries_total` counts the failed attempts by reason.",
        )


def whole_requests(observation: Observation) -> Iterator[Finding]:
    """The deployment is disaggregated, but it cannot split requests."""
    states = _states(observation)
    if observation.mode is not Mode.DISAGGREGATED or not _is_used(states) or observation.starting is not None:
        return
    if not _serving(observation, Role.DECODE) or never_splits(states):
        return  # see `unanswered_clients`, or spec.routing.split
    if not _serving(observation, Role.PREFILL):
        sentence = "No prefill engine serves: every request is served whole, by decode engines alone"
        yield impact(sentence, "NotSplitting", "Clients get right answers, later than usual at high load.")
        return
    yield from _suspended(observation, states)


def _suspended(observation: Observation, states: list[Body]) -> Iterator[Finding]:
    """At least half of the requests are or were served whole, because KV does not move."""
    seen = experience_of(states)
    suspended = seen.not_split.get("suspended", 0)
    if not suspended or suspended < _LEAST_SPLITS * seen.ended:
        return
    # A request is counted here at its start, so none may have ended yet.
    share = f"{100 * suspended / max(suspended, seen.ended):.0f} % of requests"
    remedy = "Clients get right answers, later than usual at high load."
    if any(state.get("suspendedPairs") != [] for state in states) or any(broken_pairs(observation)):
        sentence = f"KV does not move: {share} are served whole, by decode engines alone"
        yield impact(sentence, "NotSplitting", remedy)
        return
    past = f"KV did not move for a while: {share} of {seen.period} were served whole"
    if is_verified(observation):
        yield Finding(Severity.NOTE, "NotSplitting", f"{past}. It moves again")
    else:
        yield impact(f"{past}, and no transfer probe has shown yet that it moves again", "NotSplitting", remedy)


def cannot_split(observation: Observation) -> bool:
    """Whether a finding says that requests cannot be split."""
    return any(finding.severity is not Severity.NOTE for finding in whole_requests(observation))


def _states(observation: Observation) -> list[Body]:
    return [gateway.state for gateway in observation.gateways if gateway.state is not None]


def _is_used(states: list[Body]) -> bool:
    """Whether any client has sent a request."""
    return any(sum((state.get("outcomes") or {}).values()) for state in states)


def _serving(observation: Observation, *roles: Role) -> list[Body]:
    """Return the endpoints of these roles that a gateway uses, or uses if there is no other, and that answer."""
    return [
        each
        for each in observation.endpoints
        if each.get("role") in roles
        and (each.get("state") == WARM or (each.get("state") == _SUSPECT and Role.PREFILL not in roles))
        and not {each.get("pod"), each.get("name")} & observation.down
    ]


def _limits(observation: Observation, states: list[Body]) -> Mapping[str, Limit]:
    slo = observation.deployment.spec.slo if observation.deployment else None
    spec = spec_objectives(slo.ttft_milliseconds, slo.tpot_milliseconds) if slo else spec_objectives(None, None)
    stated = (observation.objectives, spec, gateway_objectives(states))
    return limits_of(stated, experience_of(states).normal)
