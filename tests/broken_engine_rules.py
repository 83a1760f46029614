"""Objects that break a rule about names, modes, the model, or the engines' flags and variables."""

from typing import Any, Final

from tests.pddeployments import GONE, Body


def overlay(**container: Any) -> Body:
    return {"spec": {"containers": [container]}}


def variables(*names: str) -> list[Body]:
    return [{"name": name, "value": ""} for name in names]


_PATH = "write an absolute path, for example /models/qwen"
_INNER_PATH = "write a path inside the volume, without / at the start or .. in it"
OBJECT = "write the name of an object: lower-case letters, digits, - and ., for example hub-token"
KEY = "write a key of a secret: letters, digits, -, _ and ., for example token"
_NAME = "write at most 41 lower-case letters, digits and -, with a letter first and no - at the end"
_SOURCE = "write either path or persistentVolumeClaim"
_TOKEN = "tokenSecretRef is for models from the Hugging Face Hub; leave out tokenSecretRef, or source"
_OWN_FLAG = (
    "PDX sets --kv-transfer-config, --host, --port, --model, --served-model-name, --tensor-parallel-size, -tp, "
    "--shutdown-timeout from the other fields of spec; leave it out"
)
_NO_FLAG = (
    "this version supports neither multi-node engines (--nnodes, --node-rank, --headless) nor flags from a file "
    "(--config); leave it out"
)
_RANK = (
    "the gateway addresses data-parallel ranks; write parallelism.data of the role, and leave out --data-parallel-size "
    "and related flags"
)
ENGINE = "PDX sets command and args of the container engine; leave them out"
DEVICES = (
    "an engine needs parallelism.tensor devices, times parallelism.pipeline and parallelism.data; write at least as "
    "many nvidia.com/gpu in resources.limits"
)
_SHARED_FLAG = (
    "prefill and decode must use the same --dtype, --kv-cache-dtype, --block-size, --revision, --quantization, -q, "
    "--hf-overrides, --attention-backend, --disable-hybrid-kv-cache-manager, --no-disable-hybrid-kv-cache-manager; "
    "write it in spec.engine, or leave it out"
)
_SHARED_VARIABLE = (
    "prefill and decode must use the same PYTHONHASHSEED, VLLM_KV_CACHE_LAYOUT, VLLM_SSM_CONV_STATE_LAYOUT, "
    "VLLM_MLA_DISABLE; write it in engine.env, or leave it out"
)
ANYWHERE = "engine.args, prefill.args, decode.args"
PIPELINE = (
    "NIXL supports one pipeline stage of decode engines; leave out parallelism.pipeline, and --pipeline-parallel-size "
    "in engine.args, decode.args"
)
_CONTEXT = f"NIXL push supports no decode context parallelism; leave out --decode-context-parallel-size in {ANYWHERE}"
_CHILD_KEYS = "keys that begin with pdx.dev/ or app.kubernetes.io/ are reserved for PDX; leave them out"
PAIRS: Final[Body] = {"model": {"name": "m"}, "prefill": {}, "decode": {}}

ENGINE_RULES: Final[list[tuple[str, object, str, str]]] = [
    ("metadata.name", "x" * 42, "metadata.name", _NAME),
    ("metadata.name", "1qwen", "metadata.name", _NAME),
    ("metadata.name", "qwen.8b", "metadata.name", _NAME),
    ("spec.prefill", GONE, "spec", "mode Disaggregated needs spec.prefill; write prefill: {replicas: 1}"),
    ("spec.decode", GONE, "spec", "mode Disaggregated needs spec.decode; write decode: {replicas: 1}"),
    ("spec.prefill", None, "spec", "mode Disaggregated needs spec.prefill; write prefill: {replicas: 1}"),
    ("spec", {"model": {"name": "m"}, "mode": "Aggregated"}, "spec",
     "mode Aggregated needs spec.aggregated; write aggregated: {replicas: 1}"),
    ("spec", {"model": {"name": "m"}, "mode": "Aggregated", "prefill": {}}, "spec",
     "mode Aggregated needs spec.aggregated; write aggregated: {replicas: 1}"),
    ("spec.model.source", {}, "spec.model.source", _SOURCE),
    ("spec.model.source", {"path": "/m", "persistentVolumeClaim": {"claimName": "c"}}, "spec.model.source", _SOURCE),
    ("spec.model.source", {"path": "models/qwen"}, "spec.model.source.path", _PATH),
    ("spec.model.source", {"persistentVolumeClaim": {"claimName": "Models"}},
     "spec.model.source.persistentVolumeClaim.claimName", OBJECT),
    ("spec.model.source", {"persistentVolumeClaim": {"claimName": "c", "path": "/qwen"}},
     "spec.model.source.persistentVolumeClaim.path", _INNER_PATH),
    ("spec.model.source", {"persistentVolumeClaim": {"claimName": "c", "path": "a/../../b"}},
     "spec.model.source.persistentVolumeClaim.path", _INNER_PATH),
    ("spec.model", {"name": "m", "source": {"path": "/m"}, "tokenSecretRef": {"name": "t"}}, "spec.model", _TOKEN),
    ("spec.model.tokenSecretRef", {"name": "Hub_Token"}, "spec.model.tokenSecretRef.name", OBJECT),
    ("spec.model.tokenSecretRef", {"name": "hub", "key": "a token"}, "spec.model.tokenSecretRef.key", KEY),
    ("spec.model.cache", {"persistentVolumeClaim": {"claimName": "-"}},
     "spec.model.cache.persistentVolumeClaim.claimName", OBJECT),
    ("spec.engine.args", ["--port=1"], "spec.engine.args[0]", _OWN_FLAG),
    ("spec.engine.args", ["--enforce-eager", "--host", "::"], "spec.engine.args[1]", _OWN_FLAG),
    ("spec.engine.args", ["--kv_transfer_config", "{}"], "spec.engine.args[0]", _OWN_FLAG),
    ("spec.prefill.args", ["--kv-transfer-config.kv_role=x"], "spec.prefill.args[0]", _OWN_FLAG),
    ("spec.decode.args", ["--tensor-parallel", "2"], "spec.decode.args[0]", _OWN_FLAG),
    ("spec.aggregated.args", ["-tp=2"], "spec.aggregated.args[0]", _OWN_FLAG),
    ("spec.decode.args", ["--shutdown_timeout=1"], "spec.decode.args[0]", _OWN_FLAG),
    ("spec.engine.args", ["--served-model-name=x"], "spec.engine.args[0]", _OWN_FLAG),
    ("spec.prefill.args", ["--nnodes=2"], "spec.prefill.args[0]", _NO_FLAG),
    ("spec.engine.args", ["-r", "1"], "spec.engine.args[0]", _NO_FLAG),
    ("spec.engine.args", ["--config", "/etc/vllm.yaml"], "spec.engine.args[0]", _NO_FLAG),
    ("spec.decode.env", [{"name": "A", "value": ""}, {"name": "PYTHONHASHSEED", "value": "1"}], "spec.decode.env[1]",
     _SHARED_VARIABLE),
    ("spec.prefill.env", variables("VLLM_KV_CACHE_LAYOUT"), "spec.prefill.env[0]", _SHARED_VARIABLE),
    ("spec.prefill.args", ["--dtype=float16"], "spec.prefill.args[0]", _SHARED_FLAG),
    ("spec.decode.args", ["--enforce-eager", "--block_size", "32"], "spec.decode.args[1]", _SHARED_FLAG),
    ("spec.decode.args", ["--kv-cache-dtype", "fp8"], "spec.decode.args[0]", _SHARED_FLAG),
    ("spec.prefill.args", ["-q", "fp8"], "spec.prefill.args[0]", _SHARED_FLAG),
    ("spec.decode.args", ["--no-disable-hybrid-kv-cache-manager"], "spec.decode.args[0]", _SHARED_FLAG),
    ("spec.decode.args", ["--pipeline-parallel-size=2"], "spec", PIPELINE),
    ("spec.engine.args", ["-pp", "2"], "spec", PIPELINE),
    ("spec.decode.args", ["--prefill_context_parallel_size", "2"], "spec",
     "NIXL supports no prefill context parallelism of decode engines; leave out --prefill-context-parallel-size in "
     "engine.args, decode.args"),
    ("spec", {**PAIRS, "kvTransfer": {"order": "Concurrent"}, "engine": {"args": ["-dcp=2"]}}, "spec", _CONTEXT),
    ("spec", {**PAIRS, "kvTransfer": {"order": "DecodeFirst"},
              "prefill": {"args": ["--decode-context-parallel-size", "2"]}}, "spec", _CONTEXT),
    ("spec.prefill.args", ["--data-parallel-size=8"], "spec.prefill.args[0]", _RANK),
    ("spec.engine.args", ["-dp", "2"], "spec.engine.args[0]", _RANK),
    ("spec.decode.args", ["--data_parallel_size_local=2"], "spec.decode.args[0]", _RANK),
    ("spec.decode.args", ["--data-parallel-backend=ray"], "spec.decode.args[0]", _RANK),
    ("spec.decode", {"parallelism": {"tensor": 2, "data": 2}, "resources": {"limits": {"nvidia.com/gpu": 3}}},
     "spec.decode", DEVICES),
    ("spec.prefill", {"parallelism": {"tensor": 2, "pipeline": 2, "data": 2},
                      "resources": {"limits": {"nvidia.com/gpu": 7}}}, "spec.prefill", DEVICES),
    ("spec.engine.env", [{"name": "A"}], "spec.engine.env[0]", "write either value or valueFrom"),
    ("spec.engine.env", [{"name": "A", "value": "1", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
     "spec.engine.env[0]", "write either value or valueFrom"),
    ("spec.engine.env", [{"name": "A", "valueFrom": {}}], "spec.engine.env[0].valueFrom",
     "write one of secretKeyRef, configMapKeyRef, fieldRef and resourceFieldRef"),
    ("spec.engine.env", [{"name": "PYTHONPATH", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
     "spec.engine.env[0]", "PDX adds directories to PYTHONPATH; write its value"),
    ("spec.labels", {"pdx.dev/role": "x"}, "spec.labels", _CHILD_KEYS),
    ("spec.annotations", {"app.kubernetes.io/name": "x"}, "spec.annotations", _CHILD_KEYS),
    ("spec.engine.podTemplate", overlay(name="engine", args=["x"]), "spec.engine.podTemplate", ENGINE),
    ("spec.engine.rdma", {"resource": "rdma hca"}, "spec.engine.rdma.resource",
     "write the name of a resource, for example rdma/hca"),
    ("spec.model", {"name": "m", "adapters": [{"name": "m", "path": "/a"}]}, "spec.model",
     "an adapter has the name of the model; write another name"),
    ("spec.model", {"name": "m", "adapters": [{"name": "a b", "path": "/a"}]}, "spec.model.adapters[0].name",
     "write an adapter's name: letters, digits, -, _, ., : and /, for example sql-v2"),
    ("spec.model", {"name": "m", "lora": {"maxRank": 8}}, "spec.model",
     "lora describes adapters; write model.adapters, or leave lora out"),
]  # fmt: skip
"""The first part of `broken_rules.RULES`."""
