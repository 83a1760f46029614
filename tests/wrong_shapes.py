"""Objects of the wrong shape, and fields that do not exist: the errors of the API server and of `parse`."""

import re
from typing import Any, Final

from tests.pddeployments import GONE

Wrong = tuple[str, object, str, str, str]
_WRITE: Final = {
    "integer": "; write a whole number",
    "number": "; write a number",
    "boolean": "; write true or false",
    "string": "; write a text, in quotes",
    "object": "; write a mapping",
    "integer,string": ": write an integer or a string",
}
_TYPES: Final = {
    bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object", type(None): "null"
}  # fmt: skip


def _missing(path: str, value: object, inner: str = "") -> Wrong:
    """A field that is needed and not there. `inner` is its path within the value."""
    return path, value, path + inner, "Required value", f"{path}{inner} is missing."


def _above(path: str, value: object, most: int, inner: str = "") -> Wrong:
    return _bounded(path, value, inner, f"less than or equal to {most}", f"{most} or less")


def _below(path: str, value: object, least: int, inner: str = "") -> Wrong:
    return _bounded(path, value, inner, f"greater than or equal to {least}", f"{least} or more")


def _bounded(path: str, value: object, inner: str, bound: str, instead: str) -> Wrong:
    field, number = path + inner, _member(value, inner)
    message = f"Invalid value: {number}: {field} in body should be {bound}"
    return path, value, field, message, f"{field} is {number}; write {instead}."


def _none_of(path: str, value: object, names: str, inner: str = "") -> Wrong:
    """A word that is none of the names."""
    field, word = path + inner, _member(value, inner)
    supported = ", ".join(f'"{name}"' for name in names.split(", "))
    message = f'Unsupported value: "{word}": supported values: {supported}'
    return path, value, field, message, f"{field} is {word!r}; write one of: {names}."


def _not(path: str, value: object, expected: str, inner: str = "") -> Wrong:
    """A value of another type than the expected one."""
    field, member = path + inner, _member(value, inner)
    given = _TYPES[type(member)]
    message = f'Invalid value: "{given}": {field} in body must be of type {expected}: "{given}"'
    text = {"boolean": str(member).lower(), "null": "null"}.get(given, repr(member))
    return path, value, field, message, f"{field} is {text}{_WRITE[expected]}."


def _member(value: Any, inner: str) -> Any:
    """What is at a path like `.a[0].b` within a value."""
    for name, index in re.findall(r"\.([^.\[]+)|\[(\d+)\]", inner):
        value = value[name or int(index)]
    return value


ERRORS: Final[list[Wrong]] = [
    _missing("spec", GONE),
    _missing("spec.model", GONE),
    _missing("spec.model.name", GONE),
    _missing("spec.model.name", None),
    ("spec.model.name", "", "spec.model.name",
     'Invalid value: "": spec.model.name in body should be at least 1 chars long',
     "spec.model.name is empty; write a value."),
    ("spec.model.name", "x" * 513, "spec.model.name", "Too long: may not be more than 512 bytes",
     "spec.model.name is too long; write at most 512 characters."),
    _below("spec.decode.replicas", -1, 0),
    _above("spec.decode.replicas", 1025, 1024),
    _not("spec.decode.replicas", "2", "integer"),
    _not("spec.decode.replicas", "many", "integer"),
    _not("spec.decode.replicas", 1.5, "integer"),
    _not("spec.decode.replicas", True, "integer"),
    _none_of("spec.mode", "Both", "Disaggregated, Aggregated"),
    _none_of("spec.kvTransfer.order", "Sideways", "PrefillFirst, DecodeFirst, Concurrent"),
    _none_of("spec.kvTransfer.onLoadFailure", "Retry", "Fail, Recompute"),
    _none_of("spec.engine.dtype", "fp8", "auto, bfloat16, float16, float32"),
    _none_of("spec.engine.imagePullPolicy", "Sometimes", "Always, IfNotPresent, Never"),
    ("spec.engine.image", "", "spec.engine.image",
     'Invalid value: "": spec.engine.image in body should be at least 1 chars long',
     "spec.engine.image is empty; write a value, or leave it out."),
    _above("spec.engine.drainSeconds", 3601, 3600),
    _below("spec.engine.maxModelLen", 0, 1),
    _above("spec.engine.blockSize", 2048, 1024),
    ("spec.engine.args", "--enforce-eager", "spec.engine.args",
     'Invalid value: "string": spec.engine.args in body must be of type array: "string"',
     "spec.engine.args is '--enforce-eager'; write a list, for example [--seed=1]."),
    ("spec.engine.args", [""], "spec.engine.args[0]",
     'Invalid value: "": spec.engine.args[0] in body should be at least 1 chars long',
     "spec.engine.args[0] is empty; write a value, or leave it out."),
    ("spec.engine.args", ["--x"] * 65, "spec.engine.args", "Too many: 65: must have at most 64 items",
     "spec.engine.args is too long; write at most 64 entries."),
    _not("spec.engine.args", [1], "string", "[0]"),
    _not("spec.engine.args", [None], "string", "[0]"),
    ("spec.engine.env", [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}], "spec.engine.env[1]",
     'Duplicate value: {"name":"A"}', "spec.engine.env: name A appears twice; write it once."),
    _not("spec.engine.env", [{"name": "A", "value": 1}], "string", "[0].value"),
    _above("spec.decode.parallelism", {"tensor": 17}, 16, ".tensor"),
    _below("spec.decode.parallelism", {"tensor": 0}, 1, ".tensor"),
    _not("spec.decode.chunkedPrefill", {"enabled": "yes"}, "boolean", ".enabled"),
    _below("spec.decode.chunkedPrefill", {"maxBatchedTokens": 0}, 1, ".maxBatchedTokens"),
    _not("spec.decode.resources", {"limits": {"cpu": 1.5}}, "integer,string", ".limits.cpu"),
    _not("spec.decode.resources", {"limits": []}, "object", ".limits"),
    _not("spec.kvTransfer.config", [], "object"),
    ("spec.kvTransfer.config", {str(i): i for i in range(65)}, "spec.kvTransfer.config",
     "Too many: 65: must have at most 64 items", "spec.kvTransfer.config is too long; write at most 64 entries."),
    _above("spec.gateway.replicas", 65, 64),
    _below("spec.gateway.workers", 0, 1),
    _not("spec.prefill.chunkedPrefill.enabled", "no", "boolean"),
    _none_of("spec.gateway.service", {"type": "ExternalName"}, "ClusterIP, NodePort, LoadBalancer", ".type"),
    _not("spec.gateway.service", {"annotations": {"a": 1}}, "string", ".annotations.a"),
    _missing("spec.decode.podTemplate", {"spec": {"containers": [{"image": "x"}]}}, ".spec.containers[0].name"),
    ("spec.decode.podTemplate", {"spec": {"containers": [{"name": "a"}, {"name": "a"}]}},
     "spec.decode.podTemplate.spec.containers[1]", 'Duplicate value: {"name":"a"}',
     "spec.decode.podTemplate.spec.containers: name a appears twice; write it once."),
    _not("spec.decode.podTemplate", "x", "object"),
    _missing("spec.model.source", {"persistentVolumeClaim": {}}, ".persistentVolumeClaim.claimName"),
    _missing("spec.model.cache", {}, ".persistentVolumeClaim"),
    _missing("spec.model.tokenSecretRef", {"key": "x"}, ".name"),
    _none_of("spec.routing.prefillPolicy", "Random",
             "ExpectedWait, LeastRequests, LeastITL, LeastLoad, PrefixAffinity, SessionAffinity"),
    _none_of("spec.routing.onPrefillFailure", "Ignore", "Retry, Local, Fail"),
    _above("spec.routing.retries", {"attempts": 11}, 10, ".attempts"),
    _above("spec.routing.retries", {"budgetPercent": 101}, 100, ".budgetPercent"),
    _below("spec.routing.deadlines", {"connectSeconds": 0}, 1, ".connectSeconds"),
    _not("spec.routing.deadlines", {"totalSeconds": "1h"}, "integer", ".totalSeconds"),
    _not("spec.routing.queue", {"maxBufferedBytes": 1.5}, "integer,string", ".maxBufferedBytes"),
    _below("spec.routing.outlierDetection", {"consecutiveErrors": 0}, 1, ".consecutiveErrors"),
    _missing("spec.gateway.auth", {}, ".secretRef"),
    ("spec.kvTransfer.config", {"kv_lease_duration": "30"}, "spec.kvTransfer.config.kv_lease_duration",
     'Invalid value: "string": spec.kvTransfer.config.kv_lease_duration in body must be of type integer: "string"',
     "spec.kvTransfer.config: kv_lease_duration is '30'; write whole seconds from 1 to 86400."),
    ("spec.kvTransfer.config", {"mooncake_protocol": "nvlink"}, "spec.kvTransfer.config.mooncake_protocol",
     'Unsupported value: "nvlink": supported values: "tcp", "rdma"',
     "spec.kvTransfer.config: mooncake_protocol is 'nvlink'; write tcp or rdma."),
    ("spec.kvTransfer.config", {"master_server_address": "http://pool:50051"},
     "spec.kvTransfer.config.master_server_address",
     'Invalid value: "http://pool:50051": spec.kvTransfer.config.master_server_address in body should match '
     "'^[^ :/]{1,253}:[0-9]{1,5}$'",
     "spec.kvTransfer.config: master_server_address is 'http://pool:50051'; write host:port, for example "
     "mooncake.llm:50051."),
    _not("spec.rollout.maxSurge", 0.5, "integer,string"),
    _not("spec.rollout.maxSurge", True, "integer,string"),
    _not("spec.observability.scrapeFrom", [{"podSelector": {"matchLabels": {"a": 1}}}],
         "string", "[0].podSelector.matchLabels.a"),
    _above("spec.observability.tracing", {"endpoint": "http://collector:4318", "ratio": 1.5}, 1, ".ratio"),
    _not("spec.observability.tracing", {"endpoint": "http://collector:4318", "ratio": "0.1"}, "number", ".ratio"),
    _not("spec.decode", [], "object"),
    _not("spec.decode", 5, "object"),
    ("metadata.name", GONE, "metadata.name", "Required value: name or generateName is required",
     "metadata.name is missing."),
    ("spec.observability.scrapeFrom",
     [{"podSelector": {"matchLabels": {"a": "x" * 64}}}], "spec.observability.scrapeFrom[0].podSelector.matchLabels.a",
     "Too long: may not be more than 63 bytes",
     "spec.observability.scrapeFrom[0].podSelector.matchLabels.a is too long; write at most 63 characters."),
]  # fmt: skip
"""What has the wrong shape: path, value, the field and the message of the API server, and the sentence of `parse`."""

NONEXISTENT: Final[list[tuple[str, object, str, str]]] = [
    ("spec.modell", {}, "spec.modell", "spec.modell does not exist; did you mean model?"),
    ("spec.decode.replica", 1, "spec.decode.replica", "spec.decode.replica does not exist; did you mean replicas?"),
    ("spec.kvTransfer.zzz", 1, "spec.kvTransfer.zzz",
     "spec.kvTransfer.zzz does not exist; write one of: connector, order, onLoadFailure, verification, storage, "
     "poolSize, config, custom, podTemplate."),
    ("spec.routing.deadline", {}, "spec.routing.deadline",
     "spec.routing.deadline does not exist; did you mean deadlines?"),
    ("spec.gateway.auth", {"secretName": "x", "secretRef": {"name": "x"}}, "spec.gateway.auth.secretName",
     "spec.gateway.auth.secretName does not exist; did you mean secretRef?"),
    ("spec.engine.env", {"A": "1"}, "spec.engine.env.A",
     "spec.engine.env is {A: '1'}; write a list, for example [{name: HF_HUB_OFFLINE, value: '1'}]."),
    ("spec.decode.resources.claims", [], "spec.decode.resources.claims",
     "spec.decode.resources.claims does not exist; did you mean limits?"),
    ("spec.decode.podTemplate", {"metadata": {"name": "x"}}, "spec.decode.podTemplate.metadata.name",
     "spec.decode.podTemplate.metadata.name does not exist; write one of: labels, annotations."),
    ("spec.decode.podTemplate", {"template": {}}, "spec.decode.podTemplate.template",
     "spec.decode.podTemplate.template does not exist; write one of: metadata, spec."),
    ("spec.model.source", {"huggingFace": {}}, "spec.model.source.huggingFace",
     "spec.model.source.huggingFace does not exist; write one of: path, persistentVolumeClaim."),
]  # fmt: skip
"""What does not exist: path, value, the field that the API server names, and the sentence of `parse`."""
