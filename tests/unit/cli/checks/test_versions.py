"""Checks of vLLM's versions."""

from copy import deepcopy
from typing import Any

import pytest

from pdx_api.names import Role
from pdx_api.spec.parse import parse
from pdx_api.vllm.assumptions import OPEN, Difference
from pdx_cli.checks.findings import Finding, Severity
from tests.doctor_observations import BODY, engine, found

CAUSES = ("VersionMisstated", "VersionUnchecked", "VersionDiffers", "RustFrontend")


def notes(runs: str, **spec: Any) -> list[Finding]:
    """The findings about versions in a pair of this version."""
    body = deepcopy(BODY)
    body["spec"]["engine"] = spec
    pair = tuple(engine(role, version=runs) for role in (Role.PREFILL, Role.DECODE))
    findings = found(engines=pair, deployment=parse(body))
    return [each for each in findings if each.cause in CAUSES]


@pytest.mark.parametrize("version", ["0.31.0", "0.32.0"])
def test_a_checked_version_has_no_finding(version: str) -> None:
    assert notes(version, version=version) == []


def test_an_unchecked_version_is_noted() -> None:
    note, *_ = notes("0.34.1", version="0.34.1")
    assert (note.severity, note.cause) == (Severity.NOTE, "VersionUnchecked")
    assert "qwen-decode-a-1 and qwen-prefill-a-1: vLLM 0.34 is not among the versions" in note.sentence


@pytest.mark.parametrize("version", ["0.28.0", "0.27.0"])
def test_open_differences_are_noted(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of 0.28 for 0.27, too, which counts as 0.28."""
    known = [Difference("0.28", name, None, f"{OPEN} the answer is short.") for name in ("text a", "text b")]
    monkeypatch.setattr("pdx_cli.checks.versions.differences", lambda: known)
    found_of = [each.sentence for each in notes(version, version=version) if each.cause == "VersionDiffers"]
    short = f"vLLM {version[:4]} differs from what PDX expects. the answer is short."
    assert [sentence.partition(": ")[2] for sentence in found_of] == [short]
    assert [each for each in notes("0.29.0", version="0.29.0") if each.cause == "VersionDiffers"] == []


@pytest.mark.parametrize(
    ("spec", "severity", "start"),
    [
        ({"version": "0.31.0"}, Severity.WRONG, "The object states vLLM 0.31"),
        ({}, Severity.NOTE, "The tag of its image states vLLM 0.32"),
    ],
)
def test_a_version_that_the_object_misstates(spec: dict[str, str], severity: Severity, start: str) -> None:
    """A tag need not be that of vLLM, so it alone is not wrong."""
    finding = next(each for each in notes("0.30.0", **spec) if each.cause == "VersionMisstated")
    assert finding.severity is severity
    assert finding.sentence.startswith(f"{start}, the prefill engine qwen-prefill-a-1 runs 0.30.0")


@pytest.mark.parametrize("image", ["example.com/server:7.1", "nvcr.io/nvidia/vllm:25.09-py3"])
def test_an_image_without_a_version_states_none(image: str) -> None:
    assert notes("0.31.0", image=image) == []


@pytest.mark.parametrize(("value", "causes"), [("1", ["RustFrontend"]), ("0", [])])
def test_the_server_in_rust_is_noted(value: str, causes: list[str]) -> None:
    variables = [{"name": "VLLM_USE_RUST_FRONTEND", "value": value}]
    assert [each.cause for each in notes("0.32.0", env=variables)] == causes
