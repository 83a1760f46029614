"""Finds the line in the end of an engine's log that names the cause, and a remedy for listed failures.

vLLM ends with "See root cause above", so the last line is rarely the cause. Tenants choose what their pods log, so the
work for one log is bounded, and a log that has been read is not read again.
"""

import hashlib
import re
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from pdx_api.secret_shapes import without_shapes

CUT: Final = 300
"""Characters of a log line that are quoted."""
MATCHED: Final = 1000
"""Characters of a log line in which a cause is looked for."""
_LINES: Final = 3000
"""Lines at the end of a log in which a cause is looked for."""
_KEPT: Final = 4096
"""Logs whose cause is kept."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure that its log line identifies."""

    reason: str
    pattern: re.Pattern[str]
    advice: str


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The cause that a log names."""

    line: str
    """The line with the cause, without colours and prefixes; empty if the log is empty."""
    failure: Failure | None = None
    is_error: bool = False
    """Whether the line reports an error; otherwise it is only the last one."""


def _failure(reason: str, pattern: str, advice: str) -> Failure:
    return Failure(reason, re.compile(pattern), advice)


FAILURES: Final = (
    # transformers 5.13 utils/hub.py, huggingface_hub 1.x utils/_http.py
    _failure(
        "ModelGated",
        r"trying to access a gated repo|Cannot access gated repo|is a gated repository",
        "accept the model's terms on the Hub, and name a Secret with a token that may read it in "
        "spec.model.tokenSecretRef",
    ),
    _failure(
        "ModelNotFound",
        r"is not a local folder and is not a valid model identifier|Repository Not Found for url",
        "correct spec.model.name; if the model is private, name a Secret with a token in spec.model.tokenSecretRef",
    ),
    # vllm transformers_utils/config.py, huggingface_hub utils/_validators.py: a path that does not exist
    _failure(
        "ModelNotFound",
        r"Invalid repository ID or local directory specified|Repo id must be|Repo id must use",
        "there is no model at that path in the engine; correct spec.model.source",
    ),
    _failure(
        "ModelRevisionNotFound",
        r"is not a valid git identifier|Revision Not Found for url",
        "correct spec.model.revision",
    ),
    _failure(
        "HubUnreachable",
        r"We couldn't connect to '|outgoing traffic has been disabled",
        "let the engines reach the Hub, or serve from a volume with spec.model.source; with HF_HUB_OFFLINE, put the "
        "model in the engine's cache",
    ),
    # vllm model_executor/model_loader/default_loader.py
    _failure(
        "ModelIncomplete",
        r"Cannot find any model weights with",
        "put the whole model, weights included, where spec.model points",
    ),
    # vllm model_executor/models/registry.py, transformers models/auto/configuration_auto.py
    _failure(
        "ModelUnsupported",
        r"Model architectures .* are not supported|does not recognize this architecture",
        "name an image with a vLLM that supports the model in spec.engine.image",
    ),
    # transformers dynamic_module_utils.py
    _failure(
        "CodeNotTrusted",
        r"trust_remote_code=True",
        "if you trust the model's code, add --trust-remote-code to spec.engine.args",
    ),
    # vllm v1/core/kv_cache_utils.py
    _failure(
        "KVCacheTooSmall",
        r"No available memory for the cache blocks|larger than the available KV cache memory",
        "lower spec.engine.maxModelLen, raise --gpu-memory-utilization in spec.engine.args, or give each engine more "
        "devices",
    ),
    # vllm v1/worker/utils.py, v1/worker/cpu_worker.py
    _failure(
        "DeviceInUse",
        r"is less than desired (GPU|CPU) memory utilization",
        "something else uses the device's memory: free it, or lower --gpu-memory-utilization in spec.engine.args",
    ),
    # torch's c10 CUDACachingAllocator; vllm v1/worker/gpu_model_runner.py
    _failure(
        "DeviceOutOfMemory",
        r"(CUDA|HIP|XPU) out of memory|OutOfMemoryError",
        "the model does not fit: give each engine more devices (parallelism.tensor), or lower spec.engine.maxModelLen",
    ),
    # vllm config/device.py, utils/torch_utils.py, the dynamic linker
    _failure(
        "DeviceNotFound",
        r"Failed to infer device type|No CUDA GPUs are available|libcuda\.so\.1: cannot open",
        "the engine finds no device: request one in its resources.limits, for example nvidia.com/gpu: 1",
    ),
    # argparse
    _failure(
        "ArgumentRefused",
        r"error: unrecognized arguments|error: argument |error: ambiguous option",
        "correct args in spec.engine and in the role; this image's vLLM does not take them",
    ),
    # vllm config/model.py
    _failure("MaxModelLenTooLarge", r"than the derived max_model_len", "lower spec.engine.maxModelLen"),
    _failure(
        "ParallelismRefused",
        r"must be divisible by tensor parallel size",
        "choose a parallelism.tensor that divides the model's attention heads",
    ),
    # vllm 0.33 distributed/nixl_utils.py (`check_nixl_version`)
    _failure(
        "NIXLTooOld",
        r"NIXL >= \S+ is required, but",
        "the image's package nixl is older than its vLLM requires: name another image in spec.engine.image, or install "
        "nixl in it",
    ),
    # vllm distributed/nixl_utils.py, distributed/kv_transfer/kv_connector/factory.py
    _failure(
        "ConnectorMissing",
        r"NIXL is not available|Unsupported connector type",
        "name an image that holds the connector in spec.engine.image",
    ),
    # OSError of errno ENOSPC
    _failure(
        "DiskFull",
        r"No space left on device",
        "give the model a volume that holds it with spec.model.cache.persistentVolumeClaim",
    ),
)

_COLOURS: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_PREFIX: Final = re.compile(
    r"^(\([\w ]+ pid=\d+\) *)?((DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d (\[[^\]]*\] *)+)?"
)
_ERROR: Final = re.compile(r"^([\w.]+(Error|Exception|Interrupt|Exit)\b|\w.*\berror: )")
_NO_CAUSE: Final = ("See root cause above", "Failed core proc(s)", "leaked semaphore", "warnings.warn(")
"""What vLLM and Python still print after the cause."""


_causes: OrderedDict[bytes, Excerpt] = OrderedDict()
"""The causes of the logs that were read last, by a hash of the log."""


def read(log: str) -> Excerpt:
    """The line with the cause: a listed failure, else the last error, else the last line."""
    key = hashlib.blake2b(log.encode(errors="surrogatepass"), digest_size=16).digest()
    cause = _causes.pop(key, None) or excerpt_of(log)
    _causes[key] = cause
    if len(_causes) > _KEPT:
        _causes.popitem(last=False)
    return cause


def excerpt_of(log: str) -> Excerpt:
    """Read a log that has not been read before."""
    lines = [line for line in map(_clean, log.splitlines()[-_LINES:]) if line]
    for failure in FAILURES:
        line = next((line for line in reversed(lines) if failure.pattern.search(line)), None)
        if line is not None:
            return Excerpt(_cut(line), failure, is_error=True)
    causes = [line for line in lines if not any(text in line for text in _NO_CAUSE)]
    errors = [line for line in causes if _ERROR.match(line)]
    return Excerpt(_cut((errors or causes or lines or [""])[-1]), is_error=bool(errors))


def _clean(line: str) -> str:
    plain = _CONTROLS.sub("", _COLOURS.sub("", line[: 2 * MATCHED])).strip()
    return _PREFIX.sub("", plain).strip()[:MATCHED]


def _cut(line: str) -> str:
    """The line as everybody with `view` may see it in the status."""
    line = without_shapes(line)
    return line if len(line) <= CUT else line[: CUT - 1] + "…"
