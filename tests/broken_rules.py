"""Objects that break a rule, each with its sentence."""

from typing import Final

from pdx_api.connectors import CONNECTORS
from pdx_api.connectors.custom import FamilyName
from tests.broken_engine_rules import (
    ANYWHERE,
    DEVICES,
    ENGINE,
    ENGINE_RULES,
    KEY,
    OBJECT,
    PAIRS,
    PIPELINE,
    overlay,
    variables,
)
from tests.pddeployments import Body, custom

_REQUIREMENT = "In and NotIn need values, Exists and DoesNotExist have none; write values with In or NotIn only"
_VARIABLE = "write a variable's name: letters, digits and _, no digit first"
_QUANTITY = "write a quantity, for example 2, 500m or 16Gi"
_COUNT = "write a number from 0 to 1024, or a percentage, for example 25%"
_LABEL = "write a label's value: at most 63 letters, digits, -, _ and ., with a letter or digit at both ends"
_LABEL_KEY = "write keys as name or domain/name, for example app or example.org/app"
_NOTE = "write keys as name or domain/name, for example example.org/note"
_RESOURCE = "write resources as name or domain/name, for example cpu or nvidia.com/gpu"
_OWN_KEYS = "keys that begin with pdx.dev/ are reserved for PDX; leave them out"
_ENGINE_PORTS = "PDX sets these ports of the container engine: http, bootstrap, side-channel; leave them out"
_GATEWAY = "PDX sets command and args of the container gateway; leave them out"
_SERVICE = "PDX sets command and args of the container service; leave them out"
_GATEWAY_PORTS = "PDX sets these ports of the container gateway: http, admin; leave them out"
_REQUEST = "a request exceeds its limit; write requests of at most the limits"
_PAIR = "these engines cannot pair; write parallelism.tensor of prefill and decode so that one divides the other"
_CHUNKS = (
    "without chunks one step of spec.decode holds a whole prompt; write chunkedPrefill.maxBatchedTokens of at least "
    "engine.maxModelLen, or leave it out"
)
_SIZE = "write an amount of memory from 1Ki to 1Ti, for example 256Mi"
_HANDOFF = "a hand-off ends with the first event; write handoffSeconds of at most firstEventSeconds"
_TOTAL = (
    "no wait is longer than the whole request; write connectSeconds, prefillSeconds, firstEventSeconds, idleSeconds "
    "of at most totalSeconds"
)
_BUDGET = "without a retry budget no request is retried; write budgetPercent or minRetries above 0, or attempts: 1"
_WAIT = "no wait is longer than the whole request; write queue.maxWaitSeconds of at most deadlines.totalSeconds"
_ATTEMPTS = (
    "a retry needs a second attempt; write routing.retries.attempts of at least 2, or routing.onPrefillFailure: Fail"
)
_SPLIT = "no prompt would be split; write routing.disaggregateAboveTokens below engine.maxModelLen"
_BODIES = (
    "the largest body would never be accepted; write gateway.limits.maxBodySize of at most "
    "routing.queue.maxBufferedBytes"
)
_LEASE = (
    "prefill would free KV that decode may still read; write kvTransfer.config.kv_lease_duration above "
    "routing.deadlines.handoffSeconds, or leave it out"
)
_ENGINE_KEY = "engines read their key from engine.apiKeySecretRef; leave out VLLM_API_KEY and --api-key"
_CONNECTOR = f"this connector does not exist; write one of: {', '.join(CONNECTORS)}"
_STORAGE = (
    "connector SharedStorage needs a volume that all engines share; write "
    "storage: {persistentVolumeClaim: {claimName: kv}}"
)
_WHOLE = (
    "connector SharedStorage supports only whole prompts on one device; leave out parallelism.tensor and "
    "chunkedPrefill.maxBatchedTokens of spec."
)
_SHARED: Final[Body] = {"connector": "SharedStorage", "storage": {"persistentVolumeClaim": {"claimName": "kv"}}}
_STORE: Final[Body] = {"connector": "MooncakeStore"}
_SCRAPE = "an entry without labels would admit every pod; write podSelector or namespaceSelector"
_NO_CUSTOM = "connector Custom needs a description; write custom: {className: ..., modulePath: ...}"
_CUSTOM_OF_OTHERS = "custom describes connector Custom; write connector: Custom, or leave out custom"
_CUSTOM_ORDER = "connector Custom does not allow this order; write one of: PrefillFirst"
_CUSTOM_CODE = "code is imported by the name of its module; write modulePath, or leave out code"
_CUSTOM_POOL = "in a pool requests carry no parameters; leave out prefillParams, or write family: Pull"
_CUSTOM_SAVED_AFTER = (
    "only a pool saves KV after the prefill engine's answer; leave out savedAfterMilliseconds, or write family: Pool"
)
_CUSTOM_FAMILY = (
    f"write one of: {', '.join(FamilyName)}; a push connector would need code in PDX that reads the prefill engine's "
    "identity"
)
_CLASS = "write the name of a Python class, for example FolderConnector"
_MODULE = "write a module as Python imports it, for example my_package.connector"
_WITH_ADAPTER = {"name": "m", "adapters": [{"name": "a", "path": "/a"}]}
_LORA = (
    "PDX sets --enable-lora, --lora-modules, --max-lora-rank, --max-loras from model.adapters and model.lora; "
    "leave them out of args"
)
_ORIGIN = "write an origin as SCHEME://HOST[:PORT] in lower case, for example https://chat.example.com, or *"
_TRACES_FLAG = "PDX sets --otlp-traces-endpoint from observability.tracing; leave it out of args"
_RECEIVER = "write the URL of an OTLP receiver over HTTP, for example http://collector.observability:4318"
_GRPC = "4317 is the port of OTLP over gRPC; write the receiver's port for OTLP over HTTP, usually 4318"
_TRACED = {"tracing": {"endpoint": "http://collector:4318"}}
_NO_GATEWAY = "there is no gateway with gateway.enabled: false; leave out gateway.tls and gateway.httpRoute"
_ONE_DEVICE = "SharedStorage supports only one device; leave out "
_RANKS = (
    "MooncakeStore saves the KV of each rank separately; write the same parallelism.tensor for prefill and decode, or "
    "kvTransfer.config.store_tp_size that is a multiple of both"
)

RULES: Final[list[tuple[str, object, str, str]]] = [
    *ENGINE_RULES,
    *(
        ("spec.observability.tracing", {"endpoint": endpoint}, "spec.observability.tracing.endpoint", _RECEIVER)
        for endpoint in (
            "",
            "collector:4318",
            "grpc://collector:4318",
            "http://",
            "http://user:secret@collector:4318",
            "http://collector:4318/v1/traces?a=b",
            "http://collector:port",
            "http://collector 1:4318",
        )
    ),
    ("spec.observability.tracing", {"endpoint": "http://collector:4317"}, "spec.observability.tracing.endpoint",
     _GRPC),
    ("spec.observability.tracing", {"endpoint": "https://[fd00::1]:4317/x"}, "spec.observability.tracing.endpoint",
     _GRPC),
    ("spec", {**PAIRS, "observability": _TRACED, "engine": {"args": ["--otlp-traces-endpoint=http://a"]}}, "spec",
     _TRACES_FLAG),
    ("spec", {**PAIRS, "observability": _TRACED, "decode": {"args": ["--otlp_traces_endpoint", "http://a"]}}, "spec",
     _TRACES_FLAG),
    ("spec", {**PAIRS, "model": _WITH_ADAPTER, "decode": {"args": ["--max-lora-rank=32"]}}, "spec", _LORA),
    ("spec", {**PAIRS, "model": _WITH_ADAPTER, "engine": {"args": ["--lora_modules", "a=/b"]}}, "spec", _LORA),
    ("spec.gateway", {"enabled": False, "tls": {"secretRef": {"name": "t"}}}, "spec", _NO_GATEWAY),
    ("spec.gateway", {"enabled": False, "httpRoute": {"parentRefs": [{"name": "g"}]}}, "spec", _NO_GATEWAY),
    ("spec.gateway.httpRoute", {"parentRefs": [{"name": "g"}], "hostnames": ["A"]},
     "spec.gateway.httpRoute.hostnames[0]",
     "write a host name in lower case, for example llm.example.com or *.example.com"),
    *(("spec.gateway.cors", {"allowedOrigins": ["https://a.example", origin]}, "spec.gateway.cors.allowedOrigins[1]",
       _ORIGIN) for origin in ("https://a.example/", "a.example", "https://*.example", "HTTPS://a.example", "null")),
    ("spec", {**PAIRS, "kvTransfer": _SHARED, "prefill": {"args": ["--pipeline-parallel-size", "2"]}}, "spec",
     f"{_ONE_DEVICE}parallelism.pipeline, and --pipeline-parallel-size in {ANYWHERE}"),
    ("spec", {**PAIRS, "kvTransfer": _SHARED, "decode": {"args": ["-dcp", "2"]}}, "spec",
     f"{_ONE_DEVICE}--decode-context-parallel-size in {ANYWHERE}"),
    ("spec", {**PAIRS, "kvTransfer": _SHARED, "engine": {"args": ["--prefill-context-parallel-size=2"]}}, "spec",
     f"{_ONE_DEVICE}--prefill-context-parallel-size in {ANYWHERE}"),
    ("spec", {**PAIRS, "kvTransfer": _SHARED, "engine": {"args": ["--no-disable-hybrid-kv-cache-manager"]}}, "spec",
     "SharedStorage does not support hybrid KV caches, so vLLM disables their manager; leave out "
     f"--no-disable-hybrid-kv-cache-manager in {ANYWHERE}"),
    *(("spec", {**PAIRS, "kvTransfer": {"connector": connector},
                "engine": {"args": ["--no-disable-hybrid-kv-cache-manager"]}}, "spec",
       f"{connector} does not support hybrid KV caches, so vLLM disables their manager; leave out "
       f"--no-disable-hybrid-kv-cache-manager in {ANYWHERE}") for connector in ("LMCache", "LMCacheP2P")),
    ("spec", {**PAIRS, "kvTransfer": _STORE, "prefill": {"parallelism": {"tensor": 2}}}, "spec", _RANKS),
    ("spec", {**PAIRS, "kvTransfer": {**_STORE, "config": {"store_tp_size": 3}},
              "prefill": {"parallelism": {"tensor": 2}}}, "spec", _RANKS),
    ("spec", {**PAIRS, "kvTransfer": {**_STORE, "config": {"store_tp_size": 2}},
              "decode": {"parallelism": {"tensor": 4}}}, "spec", _RANKS),
    *(("spec", {**PAIRS, "kvTransfer": {**_STORE, "config": {"store_tp_size": 2}}, "engine": engine}, "spec",
       "vLLM 0.28 and 0.29 have no store_tp_size; leave out kvTransfer.config.store_tp_size, or use a newer vLLM")
      for engine in ({"version": "0.28.0"}, {"image": "vllm/vllm-openai:v0.29.1-cu130"},
                     {"image": "r.example.com:5000/ai/my-vllm:0.28@sha256:0"}, {"image": "a:1", "version": "0.29"})),
    *(("spec", {**PAIRS, part: {"args": ["-dcp", "2"]}, "engine": {"version": "0.28.1", **PAIRS.get("engine", {})}},
       "spec", "NIXL of vLLM 0.28 supports no decode context parallelism; leave out --decode-context-parallel-size in "
       f"{ANYWHERE}") for part in ("prefill", "decode")),
    *(("spec", {**PAIRS, "kvTransfer": {"order": order}, "engine": engine}, "spec",
       "with kvTransfer.order DecodeFirst or Concurrent, prefill engines of vLLM 0.30 keep each prompt's KV until its "
       "lease ends; write kvTransfer.order: PrefillFirst, or use another vLLM")
      for order in ("DecodeFirst", "Concurrent")
      for engine in ({"version": "0.30.1"}, {"image": "vllm/vllm-openai:v0.30.0"})),
    ("spec.kvTransfer", {"config": {"bidirectional_kv_xfer": True}}, "spec.kvTransfer",
     "decode engines would keep the KV of each answer for minutes, unread; leave out config.bidirectional_kv_xfer"),
    *(("spec.engine.version", version, "spec.engine.version", "write vLLM's version, for example 0.32.0")
      for version in ("", "0", "v0.32.0", "0.32/1", "latest", "0.32 ")),
    ("spec", {**PAIRS, "kvTransfer": _STORE, "decode": {"args": ["-pp", "2"]}}, "spec",
     "MooncakeStore needs the same ranks in both roles; leave out parallelism.pipeline, and --pipeline-parallel-size "
     "in prefill.args, decode.args"),
    ("spec.kvTransfer", {**_STORE, "order": "DecodeFirst"}, "spec.kvTransfer",
     "connector MooncakeStore does not allow this order; write one of: PrefillFirst"),
    ("spec.kvTransfer", {**_STORE, "config": {"mooncake_protocol": "rdma"}}, "spec.kvTransfer",
     "mooncake_protocol rdma needs devices; write config.device_name, for example mlx5_0, or mooncake_protocol: "
     "tcp"),
    ("spec.engine.env", variables("1A"), "spec.engine.env[0].name", _VARIABLE),
    ("spec.decode.env", variables("A", "B-C"), "spec.decode.env[1].name", _VARIABLE),
    ("spec.kvTransfer.connector", "Nope", "spec.kvTransfer.connector",
     _CONNECTOR),
    ("spec.kvTransfer.connector", "nixl", "spec.kvTransfer.connector",
     _CONNECTOR),
    ("spec.kvTransfer", {"connector": "SharedStorage"}, "spec.kvTransfer", _STORAGE),
    ("spec.kvTransfer", {**_SHARED, "order": "Concurrent"}, "spec.kvTransfer",
     "connector SharedStorage does not allow this order; write one of: PrefillFirst"),
    ("spec", {"model": {"name": "m"}, "kvTransfer": _SHARED, "decode": {}, "prefill": {"parallelism": {"tensor": 2}}},
     "spec", f"{_WHOLE}prefill"),
    ("spec", {"model": {"name": "m"}, "kvTransfer": _SHARED, "prefill": {},
              "decode": {"chunkedPrefill": {"maxBatchedTokens": 512}}}, "spec", f"{_WHOLE}decode"),
    ("spec.kvTransfer.poolSize", "1Ti1", "spec.kvTransfer.poolSize", _SIZE),
    ("spec.kvTransfer.storage", {"persistentVolumeClaim": {"claimName": "K"}},
     "spec.kvTransfer.storage.persistentVolumeClaim.claimName", OBJECT),
    ("spec.kvTransfer", {"connector": "Custom"}, "spec.kvTransfer", _NO_CUSTOM),
    ("spec.kvTransfer.custom", {"className": "MyConnector"}, "spec.kvTransfer", _CUSTOM_OF_OTHERS),
    ("spec.kvTransfer", {**custom(), "order": "DecodeFirst"}, "spec.kvTransfer", _CUSTOM_ORDER),
    ("spec.kvTransfer", {**custom(), "order": "Concurrent"}, "spec.kvTransfer", _CUSTOM_ORDER),
    ("spec.kvTransfer", custom(modulePath=None, code={"configMap": {"name": "c"}}), "spec.kvTransfer.custom",
     _CUSTOM_CODE),
    ("spec.kvTransfer", custom(family="Rendezvous"), "spec.kvTransfer.custom.family", _CUSTOM_FAMILY),
    ("spec.kvTransfer", custom(family="Pool", prefillParams={}), "spec.kvTransfer.custom", _CUSTOM_POOL),
    ("spec.kvTransfer", custom(savedAfterMilliseconds=5), "spec.kvTransfer.custom", _CUSTOM_SAVED_AFTER),
    ("spec.kvTransfer", custom(className="my.Connector"), "spec.kvTransfer.custom.className", _CLASS),
    ("spec.kvTransfer", custom(modulePath="my/connector.py"), "spec.kvTransfer.custom.modulePath", _MODULE),
    ("spec.kvTransfer", custom(code={"configMap": {"name": "My_Code"}}), "spec.kvTransfer.custom.code.configMap.name",
     OBJECT),
    ("spec.decode.resources", {"limits": {"cpu": "lots"}}, "spec.decode.resources.limits[cpu]", _QUANTITY),
    ("spec.decode.resources", {"limits": {"cpu": -1}}, "spec.decode.resources.limits[cpu]", _QUANTITY),
    ("spec.decode.resources", {"requests": {"memory": "16 GiB"}}, "spec.decode.resources.requests[memory]", _QUANTITY),
    ("spec.gateway.resources", {"requests": {"memory": "16GB"}}, "spec.gateway.resources.requests[memory]", _QUANTITY),
    ("spec.prefill.resources", {"requests": {"cpu": "1500m"}, "limits": {"cpu": 1}}, "spec.prefill.resources",
     _REQUEST),
    ("spec.gateway.resources", {"requests": {"memory": "1Gi"}, "limits": {"memory": "1G"}}, "spec.gateway.resources",
     _REQUEST),
    ("spec.decode", {"parallelism": {"tensor": 2}, "resources": {"limits": {"nvidia.com/gpu": 1}}}, "spec.decode",
     DEVICES),
    ("spec.prefill", {"parallelism": {"tensor": 2, "pipeline": 2}, "resources": {"limits": {"nvidia.com/gpu": 3}}},
     "spec.prefill", DEVICES),
    ("spec.decode.parallelism", {"pipeline": 2}, "spec", PIPELINE),
    ("spec.prefill", {"parallelism": {"pipeline": 2}, "args": ["-pp=2"]}, "spec",
     "PDX sets --pipeline-parallel-size from parallelism.pipeline; leave it out of args"),
    ("spec", {**PAIRS, "engine": {"args": ["--enable_expert_parallel"]}, "prefill": {"parallelism": {"expert": True}}},
     "spec", "PDX sets --enable-expert-parallel from parallelism.expert; leave it out of args"),
    ("spec.prefill", {"parallelism": {"tensor": 4}, "resources": {"limits": {"nvidia.com/gpu": "2"}}}, "spec.prefill",
     DEVICES),
    ("spec.observability.scrapeFrom",
     [{"podSelector": {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["x"]}]}}],
     "spec.observability.scrapeFrom[0].podSelector.matchExpressions[0]", _REQUIREMENT),
    ("spec.observability.scrapeFrom",
     [{"podSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}],
     "spec.observability.scrapeFrom[0].podSelector.matchExpressions[0]", _REQUIREMENT),
    ("spec.observability.scrapeFrom",
     [{"podSelector": {"matchExpressions": [{"key": "a/", "operator": "Exists"}]}}],
     "spec.observability.scrapeFrom[0].podSelector.matchExpressions[0].key", _LABEL_KEY),
    ("spec", {"model": {"name": "m"}, "prefill": {"parallelism": {"tensor": 2}},
              "decode": {"parallelism": {"tensor": 3}}}, "spec", _PAIR),
    ("spec", {"model": {"name": "m"}, "engine": {"maxModelLen": 4096}, "prefill": {},
              "decode": {"chunkedPrefill": {"enabled": False, "maxBatchedTokens": 2048}}}, "spec", _CHUNKS),
    ("spec.decode.podTemplate", overlay(name="engine", command=["bash"]), "spec.decode.podTemplate", ENGINE),
    ("spec.prefill.podTemplate", overlay(name="engine", args=[]), "spec.prefill.podTemplate", ENGINE),
    ("spec.decode.podTemplate", overlay(name="engine", ports=[{"name": "http", "containerPort": 1}]),
     "spec.decode.podTemplate", _ENGINE_PORTS),
    ("spec.aggregated.podTemplate", overlay(name="engine", ports=[{"name": "side-channel", "containerPort": 1}]),
     "spec.aggregated.podTemplate", _ENGINE_PORTS),
    ("spec.gateway.podTemplate", overlay(name="gateway", args=["--help"]), "spec.gateway.podTemplate", _GATEWAY),
    ("spec.gateway.podTemplate", overlay(name="gateway", ports=[{"name": "admin", "containerPort": 1}]),
     "spec.gateway.podTemplate", _GATEWAY_PORTS),
    ("spec.kvTransfer.podTemplate", overlay(name="service", args=[]), "spec.kvTransfer.podTemplate", _SERVICE),
    ("spec.decode.podTemplate", {"metadata": {"labels": {"pdx.dev/role": "prefill"}}},
     "spec.decode.podTemplate.metadata.labels", _OWN_KEYS),
    ("spec.gateway.podTemplate", {"metadata": {"annotations": {"pdx.dev/order": "x"}}},
     "spec.gateway.podTemplate.metadata.annotations", _OWN_KEYS),
    ("spec.decode.podTemplate", {"metadata": {"labels": {"team": "a b"}}},
     "spec.decode.podTemplate.metadata.labels[team]", _LABEL),
    ("spec.decode.podTemplate", {"metadata": {"annotations": {"a b": "c"}}},
     "spec.decode.podTemplate.metadata.annotations", _NOTE),
    ("spec.gateway.service", {"annotations": {"/x": ""}}, "spec.gateway.service.annotations", _NOTE),
    ("spec.observability.scrapeFrom", [{"podSelector": {"matchLabels": {"app/": "x"}}}],
     "spec.observability.scrapeFrom[0].podSelector.matchLabels", _LABEL_KEY),
    ("spec.decode.resources", {"limits": {"nvidia.com/gpu/x": 1}}, "spec.decode.resources.limits", _RESOURCE),
    ("spec.decode.resources", {"limits": {"x" * 318: 1}}, "spec.decode.resources.limits", _RESOURCE),
    ("spec.decode.disruption", {"maxUnavailable": "half"}, "spec.decode.disruption.maxUnavailable", _COUNT),
    ("spec.gateway.disruption", {"maxUnavailable": -1}, "spec.gateway.disruption.maxUnavailable", _COUNT),
    ("spec.rollout.maxSurge", "101%", "spec.rollout.maxSurge", _COUNT),
    ("spec.rollout.maxSurge", "1", "spec.rollout.maxSurge", _COUNT),
    ("spec.rollout.maxUnavailable", 1025, "spec.rollout.maxUnavailable", _COUNT),
    ("spec.rollout.maxUnavailable", "-5%", "spec.rollout.maxUnavailable", _COUNT),
    ("spec.routing.deadlines", {"handoffSeconds": 601}, "spec.routing.deadlines", _HANDOFF),
    ("spec.routing.deadlines", {"handoffSeconds": 30, "firstEventSeconds": 29}, "spec.routing.deadlines", _HANDOFF),
    ("spec.routing.deadlines", {"totalSeconds": 599}, "spec.routing.deadlines", _TOTAL),
    ("spec.routing.deadlines", {"connectSeconds": 3601}, "spec.routing.deadlines", _TOTAL),
    ("spec.routing.deadlines", {"prefillSeconds": 3601}, "spec.routing.deadlines", _TOTAL),
    ("spec.routing.deadlines", {"idleSeconds": 3601}, "spec.routing.deadlines", _TOTAL),
    ("spec.routing.retries", {"budgetPercent": 0, "minRetries": 0}, "spec.routing.retries", _BUDGET),
    ("spec.routing", {"queue": {"maxWaitSeconds": 601}, "deadlines": {"totalSeconds": 600}}, "spec.routing", _WAIT),
    ("spec.routing.retries", {"attempts": 1}, "spec", _ATTEMPTS),
    ("spec.routing", {"onPrefillFailure": "Local", "retries": {"attempts": 1}}, "spec", _ATTEMPTS),
    ("spec", {"model": {"name": "m"}, "prefill": {}, "decode": {}, "engine": {"maxModelLen": 4096},
              "routing": {"disaggregateAboveTokens": 4096}}, "spec", _SPLIT),
    ("spec.gateway.limits", {"maxBodySize": "512Mi"}, "spec", _BODIES),
    ("spec.routing.queue", {"maxBufferedBytes": 1048576}, "spec", _BODIES),
    ("spec.gateway.limits", {"maxBodySize": "lots"}, "spec.gateway.limits.maxBodySize", _SIZE),
    ("spec.gateway.limits", {"maxBodySize": "64MB"}, "spec.gateway.limits.maxBodySize", _SIZE),
    ("spec.gateway.limits", {"maxBodySize": -1}, "spec.gateway.limits.maxBodySize", _SIZE),
    ("spec.gateway.limits", {"maxBodySize": "1e6"}, "spec.gateway.limits.maxBodySize", _SIZE),
    ("spec.gateway.limits", {"maxBodySize": "0.5Ki"}, "spec.gateway.limits.maxBodySize", _SIZE),
    ("spec.routing.queue", {"maxBufferedBytes": "1.5Ti"}, "spec.routing.queue.maxBufferedBytes", _SIZE),
    ("spec.routing.queue", {"maxBufferedBytes": 1024**4 + 1}, "spec.routing.queue.maxBufferedBytes", _SIZE),
    ("spec.kvTransfer.config", {"kv_lease_duration": 25}, "spec", _LEASE),
    ("spec.kvTransfer", {"connector": "Mooncake", "config": {"mooncake_protocol": "rdma"}}, "spec.kvTransfer",
     "mooncake_protocol rdma needs devices; write config.device_name, for example mlx5_0, or mooncake_protocol: "
     "tcp"),
    ("spec.kvTransfer", {"connector": "Mooncake", "config": {"mooncake_protocol": "rdma", "device_name": ""}},
     "spec.kvTransfer",
     "mooncake_protocol rdma needs devices; write config.device_name, for example mlx5_0, or mooncake_protocol: "
     "tcp"),
    ("spec", {"model": {"name": "m"}, "prefill": {}, "decode": {}, "kvTransfer": {"config": {"kv_lease_duration": 60}},
              "routing": {"deadlines": {"handoffSeconds": 60}}}, "spec", _LEASE),
    ("spec.engine", {"apiKeySecretRef": {"name": "k"}, "env": variables("VLLM_API_KEY")}, "spec", _ENGINE_KEY),
    ("spec", {"model": {"name": "m"}, "prefill": {}, "decode": {"args": ["--api_key=x"]},
              "engine": {"apiKeySecretRef": {"name": "k"}}}, "spec", _ENGINE_KEY),
    ("spec.engine.apiKeySecretRef", {"name": "A_B"}, "spec.engine.apiKeySecretRef.name", OBJECT),
    ("spec.gateway.auth", {"secretRef": {"name": "k", "key": "a b"}}, "spec.gateway.auth.secretRef.key", KEY),
    ("spec.observability.scrapeFrom", [{}], "spec.observability.scrapeFrom[0]", _SCRAPE),
    ("spec.observability.scrapeFrom",
     [{"podSelector": {"matchLabels": {"a": "b"}}}, {"podSelector": {"matchLabels": {}}}],
     "spec.observability.scrapeFrom[1]", _SCRAPE),
    ("spec.observability.scrapeFrom", [{"podSelector": {"matchLabels": {"app": "-"}}}],
     "spec.observability.scrapeFrom[0].podSelector.matchLabels[app]", _LABEL),
]  # fmt: skip
"""Objects that break a rule: path, value, the field of the API server's error, and the sentence, as in `parse`."""
