"""The line with the cause in the end of an engine's log."""

import importlib.util
from pathlib import Path

import pytest

from pdx_operator.observed.engine_log import CUT, read

PREFIX = "(EngineCore pid=312) ERROR 05-04 12:00:01 [core.py:1510] "
END = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}"

# Files of the packages that contain the messages.
SOURCES = [
    ("transformers", "utils/hub.py", "You are trying to access a gated repo.", "ModelGated"),
    ("huggingface_hub", "utils/_http.py", "Cannot access gated repo for url", "ModelGated"),
    ("transformers", "utils/hub.py", "is not a local folder and is not a valid model identifier", "ModelNotFound"),
    ("vllm", "transformers_utils/config.py", "Invalid repository ID or local directory specified", "ModelNotFound"),
    ("huggingface_hub", "utils/_validators.py", "Repo id must be in the form", "ModelNotFound"),
    ("transformers", "utils/hub.py", "is not a valid git identifier", "ModelRevisionNotFound"),
    ("transformers", "utils/hub.py", "We couldn't connect to '", "HubUnreachable"),
    ("vllm", "model_executor/model_loader/default_loader.py", "Cannot find any model weights with", "ModelIncomplete"),
    ("transformers", "models/auto/configuration_auto.py", "does not recognize this architecture", "ModelUnsupported"),
    ("transformers", "dynamic_module_utils.py", "trust_remote_code=True", "CodeNotTrusted"),
    ("vllm", "v1/core/kv_cache_utils.py", "No available memory for the cache blocks", "KVCacheTooSmall"),
    ("vllm", "v1/worker/utils.py", "is less than desired GPU memory utilization", "DeviceInUse"),
    ("vllm", "v1/worker/gpu_model_runner.py", "CUDA out of memory", "DeviceOutOfMemory"),
    ("vllm", "config/device.py", "Failed to infer device type", "DeviceNotFound"),
    ("vllm", "config/model.py", "than the derived max_model_len", "MaxModelLenTooLarge"),
    ("vllm", "config/model.py", "must be divisible by tensor parallel size", "ParallelismRefused"),
    ("vllm", "distributed/kv_transfer/kv_connector/factory.py", "Unsupported connector type", "ConnectorMissing"),
]


@pytest.mark.parametrize(("package", "path", "text", "reason"), SOURCES)
def test_a_listed_failure_wins_over_the_last_error(package: str, path: str, text: str, reason: str) -> None:
    excerpt = read(f"loading\n{PREFIX}Traceback\n{PREFIX}ValueError: so {text} it is\n{END}\n")
    assert excerpt.failure is not None
    assert (excerpt.failure.reason, excerpt.line) == (reason, f"ValueError: so {text} it is")


@pytest.mark.parametrize(("package", "path", "text", "reason"), SOURCES)
def test_patterns_occur_in_the_installed_packages(package: str, path: str, text: str, reason: str) -> None:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not installed")
    assert text in Path(spec.origin).with_name("x").parent.joinpath(path).read_text()


@pytest.mark.parametrize(
    ("log", "line"),
    [
        pytest.param("", "", id="empty"),
        pytest.param("\x1b[31mred\x1b[0m \x07bell\n", "red bell", id="colours and controls"),
        pytest.param(f"{PREFIX}KeyError: 'x'\n{END}\n", "KeyError: 'x'", id="root cause above"),
        pytest.param("ValueError: a\nbye\n", "ValueError: a", id="the last error, not the last line"),
        pytest.param("ValueError: a\nTypeError: b\n", "TypeError: b", id="the last of two errors"),
        pytest.param(f"{END}\n", END, id="nothing better"),
        pytest.param("ValueError: token hf_abcdefghij12 is bad", "ValueError: token hf_… is bad", id="a token"),
    ],
)
def test_the_line_that_is_quoted(log: str, line: str) -> None:
    assert read(log).line == line


def test_a_long_line_is_cut() -> None:
    assert len(read("x" * 5000).line) == CUT
