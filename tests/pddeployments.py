"""Valid PDDeployments, for `parse` in unit tests and for the API server in cluster tests.

Invalid ones are in broken_rules and wrong_shapes.
"""

import copy
from typing import Any, Final

Body = dict[str, Any]

GONE: Final = object()
"""As a value: the field is removed."""

GOOD: Final[Body] = {
    "apiVersion": "pdx.dev/v1alpha1",
    "kind": "PDDeployment",
    "metadata": {"name": "qwen"},
    "spec": {"model": {"name": "Qwen/Qwen3-8B"}, "prefill": {"replicas": 2}, "decode": {"replicas": 1}},
}

FULL: Final[Body] = {
    **GOOD,
    "spec": {
        "mode": "Disaggregated",
        "model": {
            "name": "Qwen/Qwen3-8B",
            "servedName": "qwen",
            "revision": "main",
            "tokenSecretRef": {"name": "hub", "key": "token"},
            "cache": {"persistentVolumeClaim": {"claimName": "hub-cache"}},
        },
        "engine": {
            "image": "vllm/vllm-openai:v0.32.0",
            "imagePullPolicy": "IfNotPresent",
            "dtype": "bfloat16",
            "maxModelLen": 32768,
            "kvCacheDtype": "auto",
            "blockSize": 16,
            "args": ["--enforce-eager", "--seed=1", "--model-impl", "vllm"],
            "env": [{"name": "VLLM_LOGGING_LEVEL", "value": "INFO"}, {"name": "A", "value": "$(B)"}],
            "drainSeconds": 30,
            "apiKeySecretRef": {"name": "engine-key", "key": "vllm"},
        },
        "kvTransfer": {
            "connector": "NIXL",
            "order": "DecodeFirst",
            "onLoadFailure": "Recompute",
            "verification": {"periodSeconds": 60},
            "config": {"kv_lease_duration": 30, "deep": {"list": [1, "two", None]}},
            "podTemplate": {"spec": {"nodeSelector": {"kv": "here"}, "containers": [{"name": "service", "env": []}]}},
        },
        "prefill": {
            "replicas": 2,
            "resources": {
                "requests": {"cpu": "500m", "memory": "16Gi"},
                "limits": {"cpu": 4, "memory": "1e11", "nvidia.com/gpu": 2, "rdma/hca": "1"},
            },
            "parallelism": {"tensor": 2, "pipeline": 1, "expert": True},
            "chunkedPrefill": {"enabled": False, "maxBatchedTokens": 32768},
            "args": ["--gpu-memory-utilization", "0.9"],
            "env": [{"name": "UCX_TLS", "value": "rc,cuda"}],
            "podTemplate": {
                "metadata": {"labels": {"team": "llm"}, "annotations": {"example.org/note": "a b"}},
                "spec": {
                    "nodeSelector": {"gpu": "h100"},
                    "tolerations": [{"key": "gpu", "operator": "Exists"}],
                    "imagePullSecrets": [{"name": "registry"}],
                    "containers": [
                        {"name": "engine", "image": "engine:test", "ports": [{"name": "debug", "containerPort": 9999}]},
                        {"name": "sidecar", "image": "sidecar:1", "command": ["sleep"], "args": ["1"]},
                    ],
                },
            },
            "disruption": {"maxUnavailable": "25%"},
        },
        "decode": {"replicas": 0, "resources": {"limits": {"nvidia.com/gpu": 1}}},
        "aggregated": {"replicas": 3},
        "routing": {
            "prefillPolicy": "PrefixAffinity",
            "decodePolicy": "SessionAffinity",
            "disaggregateAboveTokens": 512,
            "onPrefillFailure": "Local",
            "retries": {"attempts": 2, "budgetPercent": 10, "minRetries": 0},
            "deadlines": {
                "connectSeconds": 1,
                "prefillSeconds": 120,
                "handoffSeconds": 20,
                "firstEventSeconds": 240,
                "idleSeconds": 60,
                "totalSeconds": 1800,
            },
            "queue": {"maxRequests": 0, "maxWaitSeconds": 0, "maxInFlightPerDecode": 300, "maxBufferedBytes": "1.5Gi"},
            "outlierDetection": {"consecutiveErrors": 2},
            "slowStartSeconds": 0,
        },
        "slo": {"ttftMilliseconds": 2000, "tpotMilliseconds": 50},
        "gateway": {
            "replicas": 3,
            "workers": 4,
            "image": "gateway:test",
            "resources": {"requests": {"cpu": 1}},
            "limits": {"maxBodySize": 33554432, "maxRequestsPerClient": 16},
            "auth": {"secretRef": {"name": "clients", "key": "hashed"}},
            "service": {"type": "LoadBalancer", "annotations": {"example.org/internal": "true"}},
            "podTemplate": {"spec": {"priorityClassName": "high", "containers": [{"name": "gateway", "env": []}]}},
            "disruption": {"maxUnavailable": 0},
        },
        "rollout": {"maxSurge": 0, "maxUnavailable": "50%"},
        "observability": {
            "scrapeFrom": [
                {
                    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}},
                    "podSelector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["prometheus"]}]},
                }
            ],
            "tracing": {"endpoint": "http://collector.observability:4318", "ratio": 0.25},
        },
    },
}
"""Every field except model.source, which excludes others."""


def changed(path: str, value: object) -> Body:
    """GOOD with one field set or removed."""
    body = copy.deepcopy(GOOD)
    *steps, last = path.split(".")
    inner = body
    for step in steps:
        inner = inner.setdefault(step, {})
    if value is GONE:
        del inner[last]
    else:
        inner[last] = value
    return body


def custom(**fields: object) -> Body:
    """A kvTransfer with connector Custom."""
    return {"connector": "Custom", "custom": {"className": "MyConnector", "modulePath": "my.connector", **fields}}


_WITHOUT_DEFAULT: Final[tuple[tuple[str | int, ...], ...]] = (
    ("paused",),
    ("labels",),
    ("annotations",),
    ("model", "adapters"),
    ("engine", "drainSeconds"),
    ("kvTransfer", "verification"),
    ("gateway", "enabled"),
    ("routing", "queue", "maxInFlightPerDecode"),
    ("routing", "queue", "maxInFlightPerPrefill"),
    ("routing", "queue", "maxBufferedBytes"),
    ("routing", "outlierDetection"),
    ("routing", "outlierDetection", "stalledSeconds"),
    ("routing", "retries", "minRetries"),
    ("slo",),
    ("observability", "scrapeFrom", 0, "namespaceSelector", "matchLabels"),
    ("observability", "scrapeFrom", 0, "namespaceSelector", "matchExpressions"),
    ("observability", "scrapeFrom", 0, "podSelector", "matchLabels"),
    ("observability", "scrapeFrom", 0, "podSelector", "matchExpressions"),
    ("gateway", "limits", "trustedProxies"),
    ("gateway", "cors"),
)
"""Fields for which the CRD has no default."""


def _at(part: Any, step: str | int) -> Any:
    if isinstance(step, int):
        return part[step] if step < len(part) else {}
    return part.get(step, {})


def as_stored(spec: Any, stored: Any) -> Any:
    """A spec with all defaults, without the fields that have no default in the CRD and that `stored` does not set."""
    found = copy.deepcopy(spec)
    for *groups, name in _WITHOUT_DEFAULT:
        part, other = found, stored
        for group in groups:
            part, other = _at(part, group), _at(other, group)
        if name not in other:
            part.pop(name, None)
    return found
