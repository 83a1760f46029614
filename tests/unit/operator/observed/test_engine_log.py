"""The line with the cause in the end of an engine's log."""

import importlib.util
import re
from pathlib import Path
from typing import cast

import pytest

from pdx_api.vllm.assumptions import expected
from pdx_operator.observed import engine_log
from pdx_operator.observed.engine_log import CUT, MATCHED, read

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


def test_a_nixl_that_vllm_033_refuses() -> None:
    """No installed package has its text."""
    least = expected("0.33")["call check_nixl_version"]
    line = f"RuntimeError: NIXL >= {least} is required, but nixl==1.4.1 is installed"
    excerpt = read(f"{PREFIX}{line}\n{END}\n")
    assert excerpt.failure is not None
    assert (excerpt.failure.reason, excerpt.line) == ("NIXLTooOld", line)


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
        pytest.param("ValueError: token hf_abcdefghij1234 is bad", "ValueError: token [removed] is bad", id="a token"),
        pytest.param("ValueError: no https://u:pw@h/x", "ValueError: no https://[removed]h/x", id="an address"),
        pytest.param("ValueError: Bearer abc-123!x refused", "ValueError: [removed] refused", id="a header"),
        pytest.param("ValueError: curl -u a:b1c2d3 failed", "ValueError: curl -u [removed] failed", id="a command"),
    ],
)
def test_the_line_that_is_quoted(log: str, line: str) -> None:
    assert read(log).line == line


def test_a_long_line_is_cut() -> None:
    assert len(read("x" * 5000).line) == CUT


class _Recorder:
    """A pattern that records the texts in which it is looked for."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def search(self, text: str) -> None:
        self.texts.append(text)


@pytest.mark.parametrize(
    "line", ["Model architectures " * 1700, "\x1b[" * 8000, "\x1b[31m" * 8000, "a" * 32_000, "(a pid=1) " * 3000]
)
def test_at_most_a_thousand_characters_of_a_line_are_matched(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = _Recorder()
    failure = engine_log.Failure("R", cast("re.Pattern[str]", recorder), "")
    monkeypatch.setattr(engine_log, "FAILURES", (failure,))
    engine_log.excerpt_of(f"{line}\nthe end")
    assert max(map(len, recorder.texts)) <= MATCHED
    assert "the end" in recorder.texts


def test_only_the_last_lines_are_matched(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = _Recorder()
    monkeypatch.setattr(engine_log, "FAILURES", (engine_log.Failure("R", cast("re.Pattern[str]", recorder), ""),))
    engine_log.excerpt_of("a\n" * 50_000)
    assert len(recorder.texts) == 3000


def test_a_log_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = [f"RuntimeError: cause {number}" for number in range(300)]
    calls: list[str] = []

    def excerpt_of(log: str) -> engine_log.Excerpt:
        calls.append(log)
        return engine_log.Excerpt(log)

    monkeypatch.setattr(engine_log, "excerpt_of", excerpt_of)
    for _ in range(3):
        assert [read(log).line for log in logs] == logs
    assert calls == logs


def test_the_logs_that_are_remembered_are_bounded() -> None:
    for number in range(5000):
        read(f"log {number}")
    assert len(engine_log._causes) == 4096
