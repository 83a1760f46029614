"""From pods to one sentence about the cause."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from pdx_api.names import LABEL_REVISION, LABEL_ROLE, LABEL_SERVICE
from pdx_operator.observed import engine_log
from pdx_operator.observed.workloads import ObservedGateway, PodView, observe_pool, pod_view
from pdx_operator.status.diagnosis import ContainerLog, Diagnosis, diagnose, logs_to_read
from tests.unit.operator.status.pods import CRASH, IMAGE, NO_GPU, NOW, diagnosis_of, ended, pod, pool, running, waiting


@pytest.mark.parametrize(
    ("view", "reason", "message"),
    [
        pytest.param(
            pod(
                state=waiting(
                    "ErrImagePull",
                    f'failed to pull and unpack image "docker.io/{IMAGE}": failed to resolve reference '
                    f'"docker.io/{IMAGE}": docker.io/{IMAGE}: not found',
                )
            ),
            "ImagePullFailed",
            f"the prefill engine: the image {IMAGE} cannot be pulled: not found; correct the name, or set "
            "imagePullSecrets in podTemplate if the registry requires credentials",
            id="no such image",
        ),
        pytest.param(
            pod(
                state=waiting(
                    "ImagePullBackOff",
                    f'Back-off pulling image "{IMAGE}": ErrImagePull: pull access denied, no basic auth',
                )
            ),
            "ImagePullFailed",
            f"the prefill engine: the image {IMAGE} cannot be pulled: pull access denied, no basic auth; correct the "
            "image's name, or, if it is private, set imagePullSecrets in podTemplate",
            id="private image",
        ),
        pytest.param(
            pod(state=waiting("InvalidImageName")),
            "InvalidImageName",
            f"the prefill engine: {IMAGE!r} is not a valid image name; correct it",
            id="name of an image",
        ),
        pytest.param(
            pod(unschedulable=NO_GPU),
            "Unschedulable",
            "the prefill engine: no node has a free nvidia.com/gpu (0/3 nodes are available: 3 Insufficient "
            "nvidia.com/gpu); free one or add a node",
            id="no GPU",
        ),
        pytest.param(
            pod(unschedulable="0/2 nodes are available: 1 Insufficient memory, 1 Insufficient nvidia.com/gpu."),
            "Unschedulable",
            "the prefill engine: no node has a free nvidia.com/gpu (0/2 nodes are available: 1 Insufficient memory, "
            "1 Insufficient nvidia.com/gpu); free one or add a node",
            id="a device before memory",
        ),
        pytest.param(
            pod(unschedulable="0/1 nodes are available: 1 node(s) had untolerated taint {gpu: yes}."),
            "Unschedulable",
            "the prefill engine: no node may take it (0/1 nodes are available: 1 node(s) had untolerated taint "
            "{gpu: yes}); if the nodes with the taint are meant for it, add their toleration to "
            "spec.prefill.podTemplate",
            id="taint",
        ),
        pytest.param(
            pod(unschedulable='0/1 nodes are available: persistentvolumeclaim "models" not found. preemption: x'),
            "VolumeNotFound",
            'the prefill engine: its volume does not exist (0/1 nodes are available: persistentvolumeclaim "models" '
            "not found); create or correct the claim",
            id="claim",
        ),
        pytest.param(
            pod(state=waiting("CreateContainerConfigError", 'secret "hf" not found')),
            "SecretNotFound",
            "the prefill engine: the Secret hf does not exist; create it in this namespace",
            id="secret",
        ),
        pytest.param(
            pod(state=waiting("CreateContainerConfigError", "couldn't find key token in Secret ns/hf")),
            "ConfigNotUsable",
            "the prefill engine: its container cannot be configured: couldn't find key token in Secret ns/hf; add the "
            "key token to the Secret hf, or correct the key in the spec (model.tokenSecretRef, engine.apiKeySecretRef, "
            "engine.env, podTemplate)",
            id="key of a secret",
        ),
        pytest.param(
            pod(state=ended('exec: "vllm": executable file not found in $PATH', 128, "StartError")),
            "ContainerCannotStart",
            'the prefill engine: its container cannot start: exec: "vllm": executable file not found in $PATH',
            id="no such program",
        ),
        pytest.param(
            pod(state=CRASH, last=ended("Traceback\nKeyError: 'rope'\n"), restarts=4),
            "Crashing",
            "the prefill engine: it ends with exit code 1, saying: KeyError: 'rope'",
            id="crash",
        ),
        pytest.param(
            pod(state=CRASH, last=ended("", 137, "OOMKilled"), restarts=1),
            "OutOfMemory",
            "the prefill engine: it exceeded its memory limit and was killed; raise "
            "spec.prefill.resources.limits.memory",
            id="memory",
        ),
        pytest.param(
            pod(phase="Failed", reason="Evicted", message="The node was low on resource: memory. Threshold"),
            "Evicted",
            "the prefill engine: its node does not run it (Evicted): The node was low on resource: memory",
            id="evicted",
        ),
        pytest.param(
            pod(state=waiting("ContainerCreating"), created="2026-05-04T11:25:00Z"),
            "ContainerNotCreated",
            "the prefill engine: its container has not been created for more than 30 minutes; kubectl describe pod "
            "pod-1 shows what is missing (an image that is being pulled, or a volume: with ReadWriteOnce another node "
            "may hold it, so use ReadWriteMany)",
            id="volume cannot be mounted",
        ),
    ],
)
def test_an_unready_pod_is_diagnosed(view: PodView, reason: str, message: str) -> None:
    assert diagnosis_of(view) == Diagnosis(reason, message)


@pytest.mark.parametrize(("since", "minutes"), [("11:57", 0), ("11:54", 5), ("11:46", 10), ("11:31", 20)])
def test_a_slow_pull_is_no_failure(since: str, minutes: int) -> None:
    found = diagnosis_of(pod(state=waiting("ContainerCreating"), created=f"2026-05-04T{since}:00Z"))
    if not minutes:
        assert found is None
    else:
        assert found is not None
        assert (found.reason, found.failing) == ("ContainerNotCreated", False)
        assert f"more than {minutes} minutes" in found.message


@pytest.mark.parametrize(
    "view",
    [
        pod(unschedulable="0/3 nodes are available: 3 node(s) had untolerated taint(s)."),
        pod(state=CRASH, last=ended(exit_code=137, reason="OOMKilled")),
    ],
    ids=["place", "memory"],
)
def test_advice_names_the_users_field(view: PodView) -> None:
    found = diagnosis_of(replace(view, role="aggregated"), fields={"aggregated": "decode"})
    assert found is not None
    assert "spec.decode." in found.message


@pytest.mark.parametrize(
    ("since", "message"),
    [
        ("2026-05-04T11:55:00Z", "the prefill engine: it is starting"),
        ("2026-05-04T11:41:00Z", "the prefill engine: it has been starting for more than 10 minutes"),
        ("2026-05-04T11:25:00Z", "the prefill engine: it has been starting for more than 30 minutes"),
    ],
)
def test_an_engine_that_loads_is_not_failing(since: str, message: str) -> None:
    assert diagnosis_of(pod(state=running(since))) == Diagnosis("Loading", message, failing=False, waits=True)


def test_a_crash_has_one_message_in_all_states() -> None:
    last = ended("ValueError: no")
    states = [
        diagnosis_of(pod(state=last)),
        diagnosis_of(pod(state=CRASH, last=last, restarts=1)),
        diagnosis_of(pod(state=running("2026-05-04T11:59:00Z"), last=last, restarts=2)),
    ]
    assert states[0] is not None
    assert states == [states[0]] * 3


def test_a_failed_pull_has_one_message_in_all_states() -> None:
    message = f"docker.io/{IMAGE}: not found"
    states = [
        diagnosis_of(pod(state=waiting("ErrImagePull", message))),
        diagnosis_of(
            pod(state=waiting("ImagePullBackOff", f'Back-off pulling image "{IMAGE}": ErrImagePull: {message}'))
        ),
    ]
    assert states[0] is not None
    assert states[0] == states[1]


def test_the_log_is_read_before_the_termination_message() -> None:
    log = "vllm: error: unrecognized arguments: --frobnicate\n"
    found = diagnosis_of(pod(state=CRASH, last=ended("see above")), logs={"pod-1": log})
    assert found == Diagnosis(
        "ArgumentRefused",
        "the prefill engine: vllm: error: unrecognized arguments: --frobnicate; correct args in spec.engine and in the "
        "role; this image's vLLM does not take them",
    )


def test_in_a_rollout_a_missing_device_may_be_taken_from_the_old_engines() -> None:
    found = diagnosis_of(pod(unschedulable=NO_GPU), may_use_surge=True)
    assert found is not None
    assert found.message.endswith("add a node, or set spec.rollout.maxSurge: 0 to replace engines in place")


def test_the_most_informative_cause_is_reported_with_its_count() -> None:
    gated = ended("OSError: You are trying to access a gated repo.")
    pods = [pod(1, unschedulable=NO_GPU), pod(2, state=CRASH, last=gated), pod(3, state=gated)]
    found = diagnosis_of(*pods, pod(4, state=running("2026-05-04T11:59:00Z")))
    assert found is not None
    assert (found.reason, found.message[:63]) == (
        "ModelGated",
        "2 of 4 prefill engines: OSError: You are trying to access a gat",
    )


def test_with_two_revisions_the_failing_one_is_named() -> None:
    pools = [pool(replicas=2), pool(replicas=2, revision="old")]
    found = diagnose(pools, None, [pod(unschedulable=NO_GPU)], {}, now=NOW)
    assert found is not None
    assert found.message.startswith("1 of 2 prefill engines of revision a: ")


@pytest.mark.parametrize(
    ("failure", "reason", "message"),
    [
        (
            'pods "x-7f-abc" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=1, used: '
            "requests.nvidia.com/gpu=4, limited: requests.nvidia.com/gpu=4",
            "QuotaExceeded",
            "2 of 3 prefill engines: the namespace's quota refuses its pod (exceeded quota: gpus, requested: "
            "requests.nvidia.com/gpu=1, used: requests.nvidia.com/gpu=4, limited: requests.nvidia.com/gpu=4); raise "
            "the quota or free something",
        ),
        (
            'pods "x-7f-abc" is forbidden: violates PodSecurity "restricted:latest": seccompProfile',
            "PodRefused",
            "2 of 3 prefill engines: the namespace's Pod Security level refuses its pod (violates PodSecurity "
            '"restricted:latest": seccompProfile); change securityContext in spec.prefill.podTemplate, or the '
            "namespace's label pod-security.kubernetes.io/enforce",
        ),
    ],
)
def test_rejected_pods_are_reported_by_their_deployment(failure: str, reason: str, message: str) -> None:
    state = observe_pool(
        {
            "metadata": {"name": "x-prefill-a", "labels": {LABEL_ROLE: "prefill", LABEL_REVISION: "a"}},
            "spec": {"replicas": 3},
            "status": {
                "replicas": 1,
                "conditions": [{"type": "ReplicaFailure", "status": "True", "message": failure}],
            },
        }
    )
    assert state is not None
    assert diagnose([state], None, [], {}, now=NOW) == Diagnosis(reason, message)


def test_a_gateway_is_called_a_gateway() -> None:
    found = diagnose(
        [], ObservedGateway(2, 0, True), [pod(role="gateway", state=CRASH, last=ended("boom"))], {}, now=NOW
    )
    assert found == Diagnosis("Crashing", "1 of 2 gateways: it ends with exit code 1, saying: boom")


def test_a_side_service_is_called_a_server() -> None:
    container = {"name": "lmcache", "image": IMAGE, "restartCount": 3, "state": CRASH, "lastState": ended("boom")}
    labels = {LABEL_SERVICE: "lmcache", LABEL_REVISION: "a"}
    status = {"containerStatuses": [container]}
    view = pod_view({"metadata": {"name": "s", "labels": labels}, "spec": {"nodeName": "n1"}, "status": status})
    found = diagnose([], None, [view], {}, now=NOW)
    assert found is not None
    assert found.message.startswith("the lmcache server: ")
    homeless = diagnose([], None, [replace(view, unschedulable="0/1 nodes are available")], {}, now=NOW)
    assert homeless is not None
    assert homeless.message.endswith("or nodeSelector and tolerations in spec.kvTransfer.podTemplate")


def test_a_sidecar_is_named() -> None:
    container = {"name": "lmcache", "image": IMAGE, "restartCount": 3, "state": CRASH, "lastState": ended("boom")}
    labels = {LABEL_ROLE: "prefill", LABEL_REVISION: "a"}
    status = {"initContainerStatuses": [container]}
    view = pod_view({"metadata": {"name": "s", "labels": labels}, "spec": {"nodeName": "n1"}, "status": status})
    found = diagnose([], None, [view], {}, now=NOW)
    assert found is not None
    assert found.message.startswith("the prefill engine: its sidecar lmcache ends with exit code 1")


def test_ready_and_terminating_pods_are_ignored() -> None:
    ready = pod_view({"metadata": {"name": "p"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}})
    ending = pod_view({"metadata": {"name": "p", "deletionTimestamp": "2026-05-04T11:59:30Z"}, "status": {}})
    assert diagnose([], None, [ready, ending], {}, now=NOW) is None


def test_one_log_of_each_role_is_read() -> None:
    crashed = [
        pod(n, role=role, state=CRASH, last=ended(), restarts=1) for n, role in enumerate(["decode"] * 3 + ["prefill"])
    ]
    first = pod(9, role="aggregated", state=ended())
    assert logs_to_read([*crashed, first]) == (
        ContainerLog("pod-0", "engine", True),
        ContainerLog("pod-3", "engine", True),
    )
    assert logs_to_read([first]) == (ContainerLog("pod-9", "engine", False),)


def test_a_finished_init_container_is_ignored() -> None:
    done = {"name": "init", "image": IMAGE, "ready": False, "state": ended(exit_code=0, reason="Completed")}
    assert pod(initContainerStatuses=[done]).containers == ()


def _run(seconds: int, *, exit_code: int = 143, reason: str = "Error", message: str = "") -> PodView:
    """An engine with 30 minutes to start and 10 to end, whose last run lasted so long."""
    ends = datetime.fromisoformat("2026-05-04T11:59:00Z")
    began = ends - timedelta(seconds=seconds)
    probe = {"failureThreshold": 360, "periodSeconds": 5}
    times = {"startedAt": began.isoformat(), "finishedAt": ends.isoformat()}
    last = {"terminated": {"exitCode": exit_code, "reason": reason, "message": message, **times}}
    status = {"name": "engine", "image": IMAGE, "ready": False, "restartCount": 1, "started": False}
    return pod_view(
        {
            "metadata": {"name": "pod-1", "labels": {LABEL_ROLE: "prefill", LABEL_REVISION: "a"}},
            "spec": {
                "nodeName": "n1",
                "containers": [{"name": "engine", "startupProbe": probe}],
                "terminationGracePeriodSeconds": 600,
            },
            "status": {
                "conditions": [{"type": "Ready", "status": "False"}],
                "containerStatuses": [{**status, "state": running("2026-05-04T11:59:01Z"), "lastState": last}],
            },
        }
    )


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (_run(1803), "StartupTimedOut"),
        (_run(1806, exit_code=0), "StartupTimedOut"),
        (_run(2402, exit_code=137), "StartupTimedOut"),
        (_run(2402), "Crashing"),
        (_run(2402, exit_code=137, reason="OOMKilled"), "OutOfMemory"),
        (_run(1803, exit_code=137, reason="OOMKilled"), "OutOfMemory"),
        (_run(600), "Crashing"),
        (_run(90_000, exit_code=137), "Crashing"),
    ],
)
def test_an_engine_that_does_not_start_in_time(run: PodView, reason: str) -> None:
    found = diagnose([pool()], None, [run], {}, now=NOW)
    assert found is not None
    assert found.reason == reason
    if reason == "StartupTimedOut":
        assert "did not start within 1800 seconds and was stopped; raise spec.engine.startupSeconds" in found.message


def _crashed(number: int, message: str, role: str = "prefill") -> PodView:
    state = waiting("CrashLoopBackOff", f"back-off 5m0s restarting failed container=engine pod=pod-{number}")
    return pod(number, role=role, state=state, last=ended(message), restarts=number)


@pytest.mark.parametrize(
    ("pods", "reads"),
    [
        ([_crashed(n, "RuntimeError: same") for n in range(300)], 1),
        ([_crashed(n, "RuntimeError: same", "prefill" if n % 2 else "decode") for n in range(300)], 2),
        ([_crashed(n, f"RuntimeError: {n % 3}") for n in range(300)], 3),
    ],
    ids=["one message", "two roles", "three messages"],
)
def test_one_pod_is_diagnosed_for_each_role_and_message(
    pods: list[PodView], reads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def read(log: str) -> engine_log.Excerpt:
        calls.append(log)
        return engine_log.Excerpt(log)

    monkeypatch.setattr(engine_log, "read", read)
    diagnosis = diagnosis_of(*pods)
    assert diagnosis is not None
    assert diagnosis.reason == "Crashing"
    assert len(calls) == reads


def test_pods_that_differ_in_more_than_time_are_diagnosed_each() -> None:
    pods = [_crashed(1, "RuntimeError: a"), pod(2, state=ended("RuntimeError: a", 137, "OOMKilled"))]
    assert diagnosis_of(*pods) == diagnosis_of(*reversed(pods))
    found = diagnosis_of(pods[1], pods[1], pods[0])
    assert found is not None
    assert (found.reason, found.message.split(":")[0]) == ("OutOfMemory", "2 of 3 prefill engines")
