"""The remedy for what schedulers, quotas, admission and kubelets write: a table of their messages."""

import tomllib
from pathlib import Path

import pytest

from pdx_api.names import Role
from pdx_operator.status.diagnosis import Diagnosis, diagnose
from tests.unit.operator.status.pods import NOW, pod, pool, waiting

MESSAGES = tomllib.loads((Path(__file__).parent / "messages.toml").read_text(encoding="utf-8"))
LEAST = 60
CASES = [
    pytest.param(kind, *row, *[""] * (4 - len(row)), id=source)
    for kind, rows in MESSAGES.items()
    for source, row in rows.items()
]


def _diagnosed(kind: str, text: str) -> Diagnosis:
    view = pod(
        role="decode", state=waiting("ImagePullBackOff", text), unschedulable=text if kind == "scheduler" else ""
    )
    failure = text if kind == "refusal" else ""
    decode = pool(Role.DECODE, failure=failure)
    found = diagnose([decode], None, [] if failure else [view], {}, now=NOW, may_use_surge=True)
    assert found is not None
    return found


def test_the_table_is_long_enough() -> None:
    assert len(CASES) >= LEAST


@pytest.mark.parametrize(("kind", "text", "reason", "remedy", "never"), CASES)
def test_each_message_gets_its_remedy(kind: str, text: str, reason: str, remedy: str, never: str) -> None:
    found = _diagnosed(kind, text)

    assert found.reason == reason, found.message
    assert found.failing == (reason != "Queued")
    for part in remedy.split(" & "):
        assert any(words in found.message for words in part.split(" | ")), found.message
    if never:
        assert never not in found.message.partition(");")[2] + ("" if ");" in found.message else found.message)


def test_without_a_rollout_nothing_is_said_of_surge() -> None:
    message = MESSAGES["scheduler"]["NVIDIA/k8s-device-plugin#430"][0]
    found = diagnose([pool()], None, [pod(unschedulable=message)], {}, now=NOW)
    assert found is not None
    assert "maxSurge" not in found.message


def test_the_name_of_a_refused_pod_is_not_in_the_message() -> None:
    for row in MESSAGES["refusal"].values():
        for name in ("abcde", "x2x9k"):
            assert name not in _diagnosed("refusal", row[0]).message
