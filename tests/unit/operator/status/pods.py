"""Pods that are not ready, the states of their containers, and their diagnosis."""

from datetime import datetime
from typing import Any

from pdx_api.names import LABEL_REVISION, LABEL_ROLE, Role
from pdx_operator.observed.workloads import ObservedPool, PodView, pod_view
from pdx_operator.status.diagnosis import Diagnosis, diagnose

NOW = datetime.fromisoformat("2026-05-04T12:00:00Z")
IMAGE = "vllm/vllm-openai:v0.32.0"
Body = dict[str, Any]


def pod(
    number: int = 1,
    *,
    role: str = "prefill",
    state: Body | None = None,
    last: Body | None = None,
    restarts: int = 0,
    unschedulable: str = "",
    created: str = "2026-05-04T11:59:00Z",
    **status: Any,
) -> PodView:
    conditions = [{"type": "Ready", "status": "False"}]
    if unschedulable:
        conditions.append({"type": "PodScheduled", "status": "False", "message": unschedulable})
    container = {"name": "engine", "image": IMAGE, "ready": False, "restartCount": restarts, "started": False}
    return pod_view(
        {
            "metadata": {
                "name": f"pod-{number}",
                "labels": {LABEL_ROLE: role} | ({} if role == "gateway" else {LABEL_REVISION: "a"}),
                "creationTimestamp": created,
            },
            "spec": {} if unschedulable else {"nodeName": "n1"},
            "status": {
                "phase": "Pending",
                "conditions": conditions,
                "containerStatuses": [container | {"state": state, "lastState": last or {}}] if state else [],
                **status,
            },
        }
    )


def waiting(reason: str, message: str = "") -> Body:
    return {"waiting": {"reason": reason, "message": message}}


def ended(message: str = "", exit_code: int = 1, reason: str = "Error") -> Body:
    return {"terminated": {"exitCode": exit_code, "reason": reason, "message": message}}


def running(since: str) -> Body:
    return {"running": {"startedAt": since}}


def pool(role: Role = Role.PREFILL, replicas: int = 1, revision: str = "a", **more: Any) -> ObservedPool:
    return ObservedPool(f"x-{role}-{revision}", role, revision, replicas, 0, True, **more)


def diagnosis_of(*pods: PodView, **more: Any) -> Diagnosis | None:
    return diagnose([pool(replicas=len(pods))], None, pods, more.pop("logs", {}), now=NOW, **more)


NO_GPU = (
    "0/3 nodes are available: 3 Insufficient nvidia.com/gpu. no new claims to deallocate, "
    "preemption: 0/3 nodes are available: 3 No preemption victims found for incoming pod."
)
CRASH = waiting("CrashLoopBackOff", "back-off 5m0s restarting failed container=engine")
