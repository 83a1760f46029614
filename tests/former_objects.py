"""PDDeployments with the names of PDX 0.1.0, and the same objects with the present names."""

from typing import Any, Final

Body = dict[str, Any]

FORMER: Final[Body] = {
    "apiVersion": "pdx.dev/v1alpha1",
    "kind": "PDDeployment",
    "metadata": {"name": "former"},
    "spec": {
        "model": {"name": "m"},
        "engine": {"shutdownSeconds": 90},
        "kvTransfer": {"connector": "Custom", "custom": {"className": "A", "family": "Serial"}},
        "prefill": {"replicas": 1, "parallelism": {"tensor": 2, "nodes": 1}},
        "decode": {"replicas": 1, "parallelism": {"nodes": 1}},
        "routing": {
            "canarySeconds": 20,
            "ejection": {"consecutiveFailures": 3},
            "retries": {"attempts": 2, "free": 5},
            "queue": {"maxRequests": 7, "maxMemory": "1Gi"},
        },
        "gateway": {"autoscaled": True, "replicas": 2, "workers": 2},
        "observability": {"scrapeFrom": [{"namespaceLabels": {"a": "b"}, "podLabels": {"c": "d"}}]},
    },
}
"""Every deprecated field."""

PRESENT: Final[Body] = {
    **FORMER,
    "spec": {
        "model": {"name": "m"},
        "engine": {"drainSeconds": 90},
        "kvTransfer": {
            "connector": "Custom",
            "custom": {"className": "A", "family": "Pull"},
            "verification": {"periodSeconds": 20},
        },
        "prefill": {"replicas": 1, "parallelism": {"tensor": 2}},
        "decode": {"replicas": 1},
        "routing": {
            "outlierDetection": {"consecutiveErrors": 3},
            "retries": {"attempts": 2, "minRetries": 5},
            "queue": {"maxRequests": 7, "maxBufferedBytes": "1Gi"},
        },
        "gateway": {"workers": 2},
        "observability": {
            "scrapeFrom": [
                {"namespaceSelector": {"matchLabels": {"a": "b"}}, "podSelector": {"matchLabels": {"c": "d"}}}
            ]
        },
    },
}
"""The same with present names."""
