"""What `pdx doctor` looks for in the objects of a cluster. Each check: a picture in, findings out."""

import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from pdx_api.names import ROLE_GATEWAY, ConditionType, Role, gateway_name
from pdx_cli.checks.findings import Finding, Severity, listed, wrong
from pdx_cli.sources.picture import Picture
from pdx_operator.render.spec_fields import field_of
from pdx_operator.status.conditions import INVALID
from pdx_operator.status.diagnosis import Diagnosis, diagnose

PATIENCE: Final = timedelta(seconds=15)
"""Within which a running operator has seen every change of a spec."""
ROLLOUT_PATIENCE: Final = timedelta(minutes=45)
"""Engines may load for half an hour, and their image is pulled before that."""


def operator_is_behind(picture: Picture) -> Iterator[Finding]:
    """The newest spec has not been seen by an operator."""
    if not picture.body:
        return
    metadata = picture.body.get("metadata") or {}
    generation, seen = metadata.get("generation") or 0, picture.status.get("observedGeneration") or 0
    operator = picture.operator
    gone = operator.seen and not operator.ready
    if seen >= generation:
        # One that is not in the cluster as a Deployment may run all the same.
        if not gone or not operator.namespaces:
            return
        yield wrong("OperatorNotRunning", f"{_absence(picture)}, so changes and failures are not acted on", _START)
        return
    what = (
        "No operator has ever looked at the object"
        if not seen
        else f"The operator has not seen the newest spec: it knows generation {seen}, and this is {generation}"
    )
    certain = gone and operator.namespaces
    if not certain and picture.now - _changed(picture) < PATIENCE:
        yield Finding(Severity.WAIT, "OperatorBehind", f"{what}; it was changed only now", "Wait some seconds.")
    elif gone:
        yield wrong("OperatorNotRunning", f"{what}: {_absence(picture, small=True)}", _START)
    else:
        yield wrong("OperatorBehind", f"{what}: no operator runs, it does not serve this namespace, or it fails", _LOOK)


_LOOK: Final = (
    "See whether it runs, and its log: kubectl logs -A -l app.kubernetes.io/part-of=pdx,app.kubernetes.io/component="
    "operator --tail=50; with `watchNamespaces` in the chart's values it serves only the namespaces named there."
)
_START: Final = (
    "Install it (helm install pdx charts/pdx), scale it to 1, or see why its pod does not start: "
    "kubectl get pods -A -l app.kubernetes.io/part-of=pdx,app.kubernetes.io/component=operator."
)


def _absence(picture: Picture, *, small: bool = False) -> str:
    operator = picture.operator
    where = f" (namespace {listed(operator.namespaces)})" if operator.namespaces else ""
    if operator.wanted:
        text = f"the operator{where} is not ready"
    elif operator.namespaces:
        text = f"the operator{where} is scaled to 0"
    else:
        text = "no operator is installed in this cluster"
    return text if small else text[0].upper() + text[1:]


def _changed(picture: Picture) -> datetime:
    """When the object was last written by anything but a status."""
    metadata = picture.body.get("metadata") or {}
    entries = metadata.get("managedFields") or ()
    times = [e["time"] for e in entries if e.get("time") and not e.get("subresource")]
    last = max(times, default=metadata.get("creationTimestamp"))
    return datetime.fromisoformat(last) if last else picture.now - PATIENCE


def spec_cannot_be_used(picture: Picture) -> Iterator[Finding]:
    """What the operator says of a spec that it cannot use."""
    degraded = picture.condition(ConditionType.DEGRADED)
    if degraded.get("reason") == INVALID:
        yield wrong(INVALID, f"The spec cannot be used: {degraded.get('message', '')}")


def secrets_are_missing(picture: Picture) -> Iterator[Finding]:
    """Secrets that the object names and that are not there, or lack the value."""
    told = {}
    for event in picture.events:
        if found := re.search(r'secret "([^"]+)" not found|references non-existent secret key: (\S+)', event.note):
            told[found[1] or found[2].rstrip(".,;")] = bool(found[1])
    for secret in picture.secrets:
        if secret.exists is False or (secret.exists is None and told.get(secret.name)):
            yield wrong(
                "SecretNotFound",
                f"The Secret {secret.name}, which {secret.field} names, does not exist in namespace "
                f"{picture.namespace}; pods that need it wait for it",
                f"Create it: kubectl create secret generic {secret.name} -n {picture.namespace} "
                f"--from-file={secret.key}=FILE.",
            )
        elif told.get(secret.key) is False:
            yield wrong(
                "SecretKeyNotFound",
                f"The Secret {secret.name} has no value {secret.key}, which {secret.field} names",
                f"Add the value {secret.key} to it, or name another one in {secret.field}.key.",
            )


def pods_do_not_start(picture: Picture) -> Iterator[Finding]:
    """Why engines, gateways and side services are not ready, role by role, as the operator diagnoses it."""
    spec = picture.deployment.spec if picture.deployment else None
    fields = {str(role): str(field_of(spec, role)) for role in spec.pools()} if spec else {}
    known = (*map(str, Role), ROLE_GATEWAY)
    services = sorted({pod.role for pod in picture.pods} - {*known, ""})
    for role in (*known, *services):
        found = diagnose(
            [pool for pool in picture.pools if pool.role == role],
            picture.gateway if role == ROLE_GATEWAY else None,
            [pod for pod in picture.pods if pod.role == role],
            picture.ended_logs,
            now=picture.now,
            may_use_surge=len({pool.revision for pool in picture.pools if pool.replicas}) > 1,
            fields=fields,
        )
        # That a gateway starts is no cause: it is not ready before an engine is.
        if found and not (role == ROLE_GATEWAY and found.reason == "Loading"):
            yield _of(found)


def _of(found: Diagnosis) -> Finding:
    severity = Severity.WRONG if found.failing else Severity.WAIT
    remedy = "" if found.failing else "Wait; `pdx doctor` tells when it takes long."
    return Finding(severity, found.reason, _capital(found.message), remedy)


def degraded_says_more(picture: Picture) -> Iterator[Finding]:
    """What the operator has found and the pods do not show, as an object that the API server refuses."""
    degraded = picture.condition(ConditionType.DEGRADED)
    if degraded.get("status") != "True" or degraded.get("reason") == INVALID:
        return
    if degraded["reason"] not in {finding.cause for finding in pods_do_not_start(picture)}:
        yield wrong(degraded["reason"], f"The operator says: {degraded.get('message', '')}")


def gateway_lacks_rights(picture: Picture) -> Iterator[Finding]:
    """The gateway cannot list the pods of its namespace."""
    account = f"system:serviceaccount:{picture.namespace}:{gateway_name(picture.name)}"
    remedy = (
        f"The operator makes ServiceAccount, Role and RoleBinding {gateway_name(picture.name)} and puts them back; see "
        "whether it runs and what takes them away. To check: kubectl auth can-i list pods "
        f"-n {picture.namespace} --as={account}."
    )
    if picture.rights.missing and picture.status:
        sentence = f"The gateway may not see pods, so it finds no engine: {listed(picture.rights.missing)} is missing"
        yield wrong("GatewayRights", sentence, remedy)
    elif picture.rights.lists is False:
        sentence = f"The Role {gateway_name(picture.name)} does not let the gateway list and watch pods"
        yield wrong("GatewayRights", sentence, remedy)
    else:
        for gateway in picture.gateways:
            if line := _last(r"cannot watch pods|cannot reach a cluster", gateway.log):
                away = not re.search(r"forbidden|cannot list|40[13]", line, re.IGNORECASE)
                hint = "See whether its pod reaches the API server: an egress NetworkPolicy may stop it."
                sentence = f"The gateway {gateway.name} cannot list pods, so it finds no engine: {line}"
                yield wrong("GatewayRights", sentence, hint if away else remedy)
                return


def _last(pattern: str, log: str) -> str:
    lines = [line for line in log.splitlines() if re.search(pattern, line) or "watches pods again" in line]
    return lines[-1].strip() if lines and "watches pods again" not in lines[-1] else ""


def revisions_do_not_pair(picture: Picture) -> Iterator[Finding]:
    """P and D are ready, and no two of them are of one revision."""
    ready = {role: {p.revision for p in picture.pools if p.role is role and min(p.ready, p.replicas)} for role in Role}
    prefill, decode = ready[Role.PREFILL], ready[Role.DECODE]
    if prefill and decode and not prefill & decode:
        yield wrong(
            "NoPair",
            f"The prefill engines that are ready are of revision {listed(sorted(prefill))}, the decode engines of "
            f"{listed(sorted(decode))}: only one revision pairs, so decode engines serve whole requests",
            "Let the rollout end: see what keeps the engines of the other role from becoming ready.",
        )


def rollout_is_stuck(picture: Picture) -> Iterator[Finding]:
    """A rollout that does not move."""
    progressing = picture.condition(ConditionType.PROGRESSING)
    remedy = (
        "See what keeps the new engines from becoming ready; without room for them set spec.rollout.maxSurge: 0, "
        "and to go back apply the former spec."
    )
    if picture.stalled:
        deployments = "Deployment" if len(picture.stalled) == 1 else "Deployments"
        yield wrong("RolloutStuck", f"The {deployments} {listed(picture.stalled)} made no progress in time", remedy)
        return
    since = progressing.get("lastTransitionTime")
    if progressing.get("status") == "True" and since:
        lasted = picture.now - datetime.fromisoformat(since)
        if lasted > ROLLOUT_PATIENCE:
            minutes = int(lasted.total_seconds() // 60)
            sentence = f"A rollout goes on for {minutes} minutes: {progressing.get('message', '')}"
            yield wrong("RolloutStuck", sentence, remedy)


def nobody_serves(picture: Picture) -> Iterator[Finding]:
    """What clients feel of it, as the status says."""
    ready = picture.condition(ConditionType.READY)
    if ready.get("status") != "False" or ready.get("reason") == INVALID:
        return
    reason, message = ready.get("reason", ""), ready.get("message", "")
    if reason == "ScaledToZero":
        yield wrong(reason, _capital(message))
        return
    remedy = _AFTER.get(reason, "")
    yield Finding(Severity.FOLLOWS, reason, _capital(message), remedy)


_AFTER: Final = {
    "GatewayNotReady": "No client is served until a gateway knows a warm decode engine: see the causes above.",
    "DecodeNotReady": "No client is served meanwhile.",
    "AggregatedNotReady": "No client is served meanwhile.",
    "PrefillNotReady": "Clients are served, by decode engines alone.",
}


def warnings_of_events(picture: Picture) -> Iterator[Finding]:
    """Warnings that Kubernetes has told of a pod that is not ready, where nothing else says why."""
    unready = {pod.name: pod for pod in picture.pods if not pod.ready and not pod.terminating}
    explained = {f.cause for f in pods_do_not_start(picture) if f.severity is Severity.WRONG}
    if explained or any(secrets_are_missing(picture)):
        return
    told: set[str] = set()
    for event in picture.events:
        pod = unready.get(event.name)
        if event.kind != "Pod" or pod is None or event.reason in ("Unhealthy", "BackOff", *told):
            continue
        told.add(event.reason)
        severity = Severity.WRONG if event.reason.startswith("Failed") else Severity.NOTE
        yield Finding(severity, event.reason, f"Kubernetes says of the pod {event.name}: {_line(event.note)}")


def _line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 400 else f"{line[:399]}…"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


CHECKS: Final = (
    operator_is_behind,
    spec_cannot_be_used,
    secrets_are_missing,
    pods_do_not_start,
    degraded_says_more,
    gateway_lacks_rights,
    revisions_do_not_pair,
    rollout_is_stuck,
    warnings_of_events,
    nobody_serves,
)
