"""Reads single facts from objects of the Kubernetes API. Pure."""

import json
from typing import Any

from pdx_api.names import ANNOTATION_TEMPLATE, ENGINE_CONTAINER, LABEL_REVISION, LABEL_ROLE
from pdx_cli.sources.observation import Body, WarningEvent


def role_of(body: Body) -> str:
    """Return the label with the role of a pod or Deployment; empty if there is none."""
    return str((body["metadata"].get("labels") or {}).get(LABEL_ROLE, ""))


def group_of(body: Body) -> tuple[str, str]:
    """Return role and revision."""
    labels = body["metadata"].get("labels") or {}
    return labels.get(LABEL_ROLE, ""), labels.get(LABEL_REVISION, "")


def is_running(pod: Body) -> bool:
    """Whether a container of the pod runs and the pod is not terminating."""
    status = pod.get("status") or {}
    started = any((c.get("state") or {}).get("running") for c in status.get("containerStatuses") or ())
    return started and "deletionTimestamp" not in pod["metadata"]


def vllm_args(pod_spec: Body) -> tuple[str, ...]:
    """Return what follows `vllm` on the engine's command line; empty if its command is another program."""
    container: Body = next((c for c in pod_spec.get("containers") or () if c.get("name") == ENGINE_CONTAINER), {})
    command = (*(container.get("command") or ()), *(container.get("args") or ()))
    return tuple(command[1:]) if command[:1] == ("vllm",) else ()


def rendered_args(deployment: Body) -> tuple[str, ...] | None:
    """Return vLLM's arguments in the template that the operator recorded on a Deployment."""
    try:
        template = json.loads((deployment["metadata"].get("annotations") or {})[ANNOTATION_TEMPLATE])
        return vllm_args(template["spec"]) or None
    except (KeyError, TypeError, ValueError):
        return None


def is_stalled(deployment: Body) -> bool:
    """Whether a Deployment has exceeded its progress deadline."""
    conditions = (deployment.get("status") or {}).get("conditions") or ()
    return any(c.get("reason") == "ProgressDeadlineExceeded" for c in conditions)


def lists_pods(role: Body) -> bool:
    """Whether a Role permits to list and watch pods."""

    def permits(rule: Body, verb: str) -> bool:
        return (
            bool({"", "*"} & set(rule.get("apiGroups") or ()))
            and bool({"pods", "*"} & set(rule.get("resources") or ()))
            and bool({verb, "*"} & set(rule.get("verbs") or ()))
        )

    rules = role.get("rules") or ()
    return all(any(permits(rule, verb) for rule in rules) for verb in ("list", "watch"))


def warnings_about(events: list[dict[str, Any]], name: str) -> list[WarningEvent]:
    """Return the warnings about the object or about objects whose name starts with its name, newest first."""
    found = []
    for event in sorted(events, key=_time, reverse=True):
        about = event.get("involvedObject") or {}
        subject = str(about.get("name", ""))
        if event.get("type") == "Warning" and (subject == name or subject.startswith(f"{name}-")):
            message = str(event.get("message") or "")
            found.append(WarningEvent(about.get("kind", ""), subject, event.get("reason", ""), message))
    return found


def _time(event: Body) -> str:
    series = event.get("series") or {}
    metadata = event.get("metadata") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return next((str(time) for time in times if time), str(metadata.get("creationTimestamp", "")))
