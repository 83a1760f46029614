"""Checks of a cluster's objects: the operator, the spec, Secrets, pods, rights, rollouts and Events."""

import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from pdx_api.names import ROLE_GATEWAY, ConditionType, Role, gateway_name
from pdx_cli.checks.findings import Finding, Severity, capitalized, listed, shortened, wrong
from pdx_cli.sources.observation import Observation
from pdx_operator.render.spec_fields import field_of
from pdx_operator.status.causes import INVALID
from pdx_operator.status.diagnosis import Diagnosis, diagnose

OPERATOR_DELAY: Final = timedelta(seconds=15)
"""A running operator processes a change of the spec within this time."""
ROLLOUT_TIME: Final = timedelta(minutes=45)
"""Engines may load for half an hour, after their image has been pulled."""
MAX_EVENT: Final = 400
"""Characters of an Event's message."""

_FIND_OPERATOR: Final = (
    "Check that it runs, and read its log: kubectl logs -A -l app.kubernetes.io/part-of=pdx,app.kubernetes.io/"
    "component=operator --tail=50; with `watchNamespaces` in the chart's values it serves only those namespaces."
)
_START_OPERATOR: Final = (
    "Install it (helm install pdx charts/pdx), scale it to 1, or find why its pod does not start: "
    "kubectl get pods -A -l app.kubernetes.io/part-of=pdx,app.kubernetes.io/component=operator."
)


def operator_behind(observation: Observation) -> Iterator[Finding]:
    """No operator has processed the newest spec."""
    if not observation.body:
        return
    metadata = observation.body.get("metadata") or {}
    generation, processed = metadata.get("generation") or 0, observation.status.get("observedGeneration") or 0
    operator = observation.operator
    gone = operator.seen and not operator.ready
    if processed >= generation:
        # Without a Deployment in this cluster, the operator may still run elsewhere.
        if gone and operator.namespaces:
            absence = capitalized(_absence(observation))
            yield wrong("OperatorNotRunning", f"{absence}, so nothing acts on changes and failures", _START_OPERATOR)
        return
    what = (
        "No operator has processed the object yet"
        if not processed
        else f"The operator has not processed the newest spec: it has seen generation {processed}, "
        f"the newest is {generation}"
    )
    certain = gone and operator.namespaces
    if not certain and observation.now - _changed(observation) < OPERATOR_DELAY:
        yield Finding(Severity.WAIT, "OperatorBehind", f"{what}; the spec changed seconds ago", "Wait some seconds.")
    elif gone:
        yield wrong("OperatorNotRunning", f"{what}: {_absence(observation)}", _START_OPERATOR)
    else:
        why = "no operator runs, it does not serve this namespace, or it fails"
        yield wrong("OperatorBehind", f"{what}: {why}", _FIND_OPERATOR)


def _absence(observation: Observation) -> str:
    operator = observation.operator
    where = f" (namespace {listed(operator.namespaces)})" if operator.namespaces else ""
    if operator.replicas:
        return f"the operator{where} is not ready"
    if operator.namespaces:
        return f"the operator{where} is scaled to 0"
    return "no operator is installed in this cluster"


def _changed(observation: Observation) -> datetime:
    """Return when the object was last written, not counting its status."""
    metadata = observation.body.get("metadata") or {}
    entries = metadata.get("managedFields") or ()
    times = [e["time"] for e in entries if e.get("time") and not e.get("subresource")]
    last = max(times, default=metadata.get("creationTimestamp"))
    return datetime.fromisoformat(last) if last else observation.now - OPERATOR_DELAY


def invalid_spec(observation: Observation) -> Iterator[Finding]:
    """The operator reports that the spec is invalid."""
    degraded = observation.condition(ConditionType.DEGRADED)
    if degraded.get("reason") == INVALID:
        yield wrong(INVALID, f"The spec is invalid: {degraded.get('message', '')}")


def missing_secrets(observation: Observation) -> Iterator[Finding]:
    """A Secret that the object names does not exist, or lacks the key."""
    reported = {}
    for event in observation.events:
        if found := re.search(r'secret "([^"]+)" not found|references non-existent secret key: (\S+)', event.note):
            reported[found[1] or found[2].rstrip(".,;")] = bool(found[1])
    for secret in observation.secrets:
        if secret.exists is False or (secret.exists is None and reported.get(secret.name)):
            yield wrong(
                "SecretNotFound",
                f"The Secret {secret.name}, which {secret.field} names, does not exist in namespace "
                f"{observation.namespace}; pods that need it wait for it",
                f"Create it: kubectl create secret generic {secret.name} -n {observation.namespace} "
                f"--from-file={secret.key}=FILE.",
            )
        elif reported.get(secret.key) is False:
            yield wrong(
                "SecretKeyNotFound",
                f"The Secret {secret.name} has no key {secret.key}, which {secret.field} names",
                f"Add the key {secret.key} to it, or name another key in {secret.field}.key.",
            )


def unstarted_pods(observation: Observation) -> Iterator[Finding]:
    """Engines, gateways or side services are not ready; the operator's diagnosis names the reason for each role."""
    spec = observation.deployment.spec if observation.deployment else None
    fields = {str(role): str(field_of(spec, role)) for role in spec.pools()} if spec else {}
    roles = (*map(str, Role), ROLE_GATEWAY)
    services = sorted({pod.role for pod in observation.pods} - {*roles, ""})
    for role in (*roles, *services):
        found = diagnose(
            [pool for pool in observation.pools if pool.role == role],
            observation.gateway if role == ROLE_GATEWAY else None,
            [pod for pod in observation.pods if pod.role == role],
            observation.ended_logs,
            now=observation.now,
            may_use_surge=len({pool.revision for pool in observation.pools if pool.replicas}) > 1,
            fields=fields,
        )
        # A gateway that starts is no cause: it becomes ready only after an engine does.
        if found and not (role == ROLE_GATEWAY and found.reason == "Loading"):
            yield _from_diagnosis(found)


def _from_diagnosis(found: Diagnosis) -> Finding:
    severity = Severity.WRONG if found.failing else Severity.WAIT
    remedy = "" if found.failing else "Wait; `pdx doctor` reports it if it takes too long."
    return Finding(severity, found.reason, capitalized(found.message), remedy)


def degraded_condition(observation: Observation) -> Iterator[Finding]:
    """The operator reports a problem that the pods do not show, for example an object that the API server rejects."""
    degraded = observation.condition(ConditionType.DEGRADED)
    if degraded.get("status") != "True" or degraded.get("reason") == INVALID:
        return
    if degraded["reason"] not in {finding.cause for finding in unstarted_pods(observation)}:
        yield wrong(degraded["reason"], f"The operator reports: {degraded.get('message', '')}")


def gateway_rights(observation: Observation) -> Iterator[Finding]:
    """The gateway cannot list the pods of its namespace."""
    if observation.deployment is not None and not observation.deployment.spec.gateway.enabled:
        return
    name = gateway_name(observation.name)
    remedy = (
        f"The operator creates and restores ServiceAccount {name} and its RoleBinding: check that it runs, and find "
        f"what removes them. To verify: kubectl auth can-i list pods -n {observation.namespace} "
        f"--as=system:serviceaccount:{observation.namespace}:{name}."
    )
    if observation.rights.missing and observation.status:
        missing = listed(observation.rights.missing)
        yield wrong(
            "GatewayRights", f"The gateway may not list pods, so it finds no engine: {missing} is missing", remedy
        )
    elif observation.rights.lists is False:
        yield wrong("GatewayRights", "The Role of the gateway does not let it list and watch pods", remedy)
    else:
        yield from _rights_by_log(observation, remedy)


def _rights_by_log(observation: Observation, remedy: str) -> Iterator[Finding]:
    for gateway in observation.gateways:
        line = _last_watch_failure(gateway.log)
        if line:
            refused = re.search(r"forbidden|unauthorized|cannot list|40[13]", line, re.IGNORECASE)
            network = "Check that its pod reaches the API server; an egress NetworkPolicy may block it."
            sentence = f"The gateway {gateway.name} cannot list pods, so it finds no engine: {line}"
            yield wrong("GatewayRights", sentence, remedy if refused else network)
            return


def _last_watch_failure(log: str) -> str:
    """Return the gateway's last line about a failed watch; empty if the watch has recovered since."""
    pattern = r"cannot watch pods|cannot reach a cluster|watches pods again"
    lines = [line for line in log.splitlines() if re.search(pattern, line)]
    return lines[-1].strip() if lines and "watches pods again" not in lines[-1] else ""


def unpaired_revisions(observation: Observation) -> Iterator[Finding]:
    """P and D are ready, but none of them share a revision."""
    pools = observation.pools
    ready = {role: {p.revision for p in pools if p.role is role and min(p.ready, p.replicas)} for role in Role}
    prefill, decode = ready[Role.PREFILL], ready[Role.DECODE]
    if prefill and decode and not prefill & decode:
        yield wrong(
            "NoPair",
            f"The ready prefill engines have revision {listed(sorted(prefill))}, the ready decode engines have "
            f"revision {listed(sorted(decode))}: a pair needs one revision, so decode engines serve whole requests",
            "Let the rollout end: find what keeps the engines of the other role from becoming ready.",
        )


def stuck_rollout(observation: Observation) -> Iterator[Finding]:
    """A rollout makes no progress."""
    progressing = observation.condition(ConditionType.PROGRESSING)
    remedy = (
        "Find what keeps the new engines from becoming ready. If there is no room for them, set "
        "spec.rollout.maxSurge: 0; to go back, apply the previous spec."
    )
    if observation.stalled:
        deployments = "Deployment" if len(observation.stalled) == 1 else "Deployments"
        yield wrong("RolloutStuck", f"The {deployments} {listed(observation.stalled)} made no progress in time", remedy)
        return
    since = progressing.get("lastTransitionTime")
    if progressing.get("status") == "True" and since:
        lasted = observation.now - datetime.fromisoformat(since)
        if lasted > ROLLOUT_TIME:
            minutes = int(lasted.total_seconds() // 60)
            sentence = f"The rollout has lasted for {minutes} minutes: {progressing.get('message', '')}"
            yield wrong("RolloutStuck", sentence, remedy)


def warning_events(observation: Observation) -> Iterator[Finding]:
    """Kubernetes warns about a pod that is not ready, and no other check has found the reason."""
    unready = {pod.name: pod for pod in observation.pods if not pod.ready and not pod.terminating}
    explained = {f.cause for f in unstarted_pods(observation) if f.severity is Severity.WRONG}
    if explained or any(missing_secrets(observation)):
        return
    reported: set[str] = set()
    for event in observation.events:
        pod = unready.get(event.name)
        if event.kind != "Pod" or pod is None or event.reason in ("Unhealthy", "BackOff", *reported):
            continue
        reported.add(event.reason)
        severity = Severity.WRONG if event.reason.startswith("Failed") else Severity.NOTE
        note = shortened(event.note, MAX_EVENT)
        yield Finding(severity, event.reason, f"Kubernetes reports for the pod {event.name}: {note}")


_CONSEQUENCES: Final = {
    "GatewayNotReady": "No client is served until a gateway has a warm decode engine: see the causes above.",
    "DecodeNotReady": "No client is served until then.",
    "AggregatedNotReady": "No client is served until then.",
    "PrefillNotReady": "Clients are served, by decode engines alone.",
}
"""Reason of the conditions Available and Ready -> what it means for clients."""


def serving_conditions(observation: Observation) -> Iterator[Finding]:
    """The status reports that clients are not served, or not as specified."""
    available, ready = observation.condition(ConditionType.AVAILABLE), observation.condition(ConditionType.READY)
    served = available.get("status") == "True"
    if ready.get("status") != "False" or ready.get("reason") == INVALID:
        return
    if served and ready.get("reason") not in _CONSEQUENCES and ready.get("reason") != "NoPair":
        return  # it is on its way, see `stuck_rollout`
    reason, message = ready.get("reason", ""), capitalized(ready.get("message", ""))
    if reason == "ScaledToZero":
        yield wrong(reason, message)
    else:
        yield Finding(Severity.FOLLOWS, reason, message, _CONSEQUENCES.get(reason, ""))
