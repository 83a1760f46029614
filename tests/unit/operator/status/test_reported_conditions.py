"""The conditions that follow from what gateways report: transfer probes, and versions of vLLM."""

from typing import Any

import pytest

from pdx_api.names import Mode
from pdx_api.spec.types import PDDeployment
from pdx_api.verification import Broken, Cause, Finding, Verdict
from pdx_operator.observed.transfer_report import TransferReport
from pdx_operator.status.conditions import build, transitions
from tests.unit.operator.status.built_facts import LATER, NOW, PAIR, A, deployment, facts, outcomes, pool

ALL_WELL = TransferReport(Finding(Verdict.VERIFIED, pairs=4, possible=4))
COVERED = TransferReport(Finding(Verdict.VERIFIED, pairs=8, possible=64))
BLOCKED = Broken("p-0", "d-1", "the decode engine has computed a whole prompt by itself", Cause.PORTS)
NOTHING_MOVES = TransferReport(Finding(Verdict.BROKEN, possible=4, broken=(BLOCKED,), broken_pairs=2))
NOT_VERIFIED = TransferReport(
    Finding(Verdict.UNKNOWN, "x", broken=(Broken("p", "d", "D does not say", Cause.NOT_REPORTED),))
)


@pytest.mark.parametrize(
    ("transfer", "expected", "text"),
    [
        (TransferReport(), ("Unknown", "NotVerifiedYet"), "no gateway has reported a transfer probe yet"),
        (TransferReport(unreachable=True), ("Unknown", "GatewayUnreachable"), "the admin port of any gateway"),
        (TransferReport(Finding(Verdict.UNKNOWN, "no pair")), ("Unknown", "NotVerifiedYet"), "no pair"),
        (NOT_VERIFIED, ("Unknown", "NotReported"), "--enable-prompt-tokens-details"),
        (ALL_WELL, ("True", "Verified"), "in 4 pairs of prefill and decode engines (all pairs); probed every 40 s"),
        (COVERED, ("True", "Verified"), "in 8 pairs of prefill and decode engines (which include every engine)"),
        (
            NOTHING_MOVES,
            ("False", "PortsBlocked"),
            "(2 of 4 pairs): p-0 to d-1: the decode engine has computed a",
        ),
    ],
)
def test_the_result_of_transfer_probes(transfer: TransferReport, expected: tuple[str, str], text: str) -> None:
    status = build(facts(*PAIR, transfer=transfer), {}, NOW)
    assert outcomes(status)["KVTransferVerified"] == expected
    assert text in status["conditions"][-1]["message"]
    assert build(facts(*PAIR, transfer=transfer), status, LATER) == status, "an equal report changes nothing"


@pytest.mark.parametrize(
    ("of", "reason"),
    [
        (deployment(mode="Aggregated"), "Aggregated"),
        (deployment(kvTransfer={"verification": {"periodSeconds": 0}}), "Disabled"),
    ],
)
def test_without_transfer_probes_nothing_is_verified(of: PDDeployment, reason: str) -> None:
    before = build(facts(*PAIR, transfer=ALL_WELL), {}, NOW)
    after = build(facts(of=of), before, LATER)
    assert outcomes(after)["KVTransferVerified"] == ("Unknown", reason)
    back = build(facts(*PAIR), after, LATER)
    assert outcomes(back)["KVTransferVerified"] == ("Unknown", "NotVerifiedYet")


@pytest.mark.parametrize("transfer", [ALL_WELL, NOTHING_MOVES])
def test_a_restarted_operator_keeps_the_last_result(transfer: TransferReport) -> None:
    before = build(facts(*PAIR, transfer=transfer), {}, NOW)
    assert build(facts(*PAIR), before, LATER) == before


def test_a_broken_and_a_repaired_transfer_are_events() -> None:
    well, broken = (build(facts(*PAIR, transfer=transfer), {}, NOW) for transfer in (ALL_WELL, NOTHING_MOVES))
    assert [(t.reason, t.warning) for t in transitions(well, broken)] == [("PortsBlocked", True)]
    assert [(t.reason, t.warning) for t in transitions(broken, well)] == [("KVTransferRestored", False)]
    assert transitions(build(facts(*PAIR), {}, NOW), well) == []


NO_HASH = {"connector": "NIXL", "config": {"enforce_handshake_compat": False}}


@pytest.mark.parametrize(
    ("spec", "versions", "notes"),
    [
        ({}, ("0.33.0", "0.33.1"), ["run vLLM 0.33.0 and 0.33.1: only", "run vLLM 0.33, but the tag"]),
        ({"kvTransfer": NO_HASH}, ("0.32.0", "0.32.0+cpu"), []),
        ({"kvTransfer": NO_HASH}, ("0.32.0", "0.33.0"), ["engines run vLLM 0.32 and 0.33: only engines of one"]),
        ({"kvTransfer": {"connector": "LMCache"}}, ("0.32.0", "0.33.0"), ["engines run vLLM 0.32 and 0.33"]),
        ({"mode": "Aggregated"}, ("0.32.0", "0.33.0"), ["engines run vLLM 0.32 and 0.33"]),
    ],
)
def test_only_versions_that_keep_engines_apart_are_said_to(spec: Any, versions: Any, notes: list[str]) -> None:
    report = TransferReport(Finding(Verdict.VERIFIED, pairs=1, possible=1, versions=versions))
    of = deployment(**spec)
    pools = PAIR if of.spec.mode is Mode.DISAGGREGATED else (pool(A, "a", 2, 2),)
    status = build(facts(*pools, of=of, transfer=report), {}, NOW)
    (text,) = (one["message"] for one in status["conditions"] if one["type"] == "Ready")
    found = text.split("; ")[1:]
    assert all(any(note in each for each in found) for note in notes), text
    assert ("only engines of one version pair" in text) is any("only" in note for note in notes)
    assert bool(found) is bool(notes)


def test_an_unchecked_version_of_vllm_is_in_ready() -> None:
    of = deployment(engine={"version": "0.34.0"})
    (ready,) = (one for one in build(facts(*PAIR, of=of), {}, NOW)["conditions"] if one["type"] == "Ready")
    assert (ready["status"], ready["reason"]) == ("True", "AsSpecified")
    assert ready["message"].startswith("all engines and gateway pods are ready; vLLM 0.34 is not among the versions")


@pytest.mark.parametrize(
    ("engine", "versions", "note"),
    [
        ({}, ("0.32.1",), ""),
        ({}, (), ""),
        ({}, ("0.31.0",), "engines run vLLM 0.31, but the tag of the image states 0.32; correct spec.engine.version"),
        ({"version": "0.33"}, ("0.32.0",), "engines run vLLM 0.32, but spec.engine.version is 0.33; correct "),
        ({}, ("0.32.0", "0.33.0"), "engines run vLLM 0.32 and 0.33: only engines of one version pair"),
        ({}, ("0.32.0", "0.32.1"), "engines run vLLM 0.32.0 and 0.32.1: only engines of one version pair"),
        ({"version": "0.33"}, ("mine",), ""),
    ],
)
def test_the_version_that_engines_report_is_in_ready(engine: dict[str, str], versions: Any, note: str) -> None:
    report = TransferReport(Finding(Verdict.VERIFIED, pairs=1, possible=1, versions=versions))
    status = build(facts(*PAIR, of=deployment(engine=engine), transfer=report), {}, NOW)
    (ready,) = (one for one in status["conditions"] if one["type"] == "Ready")
    assert ready["status"] == "True"
    begin = "all engines and gateway pods are ready"
    assert ready["message"].startswith(f"{begin}; {note}") if note else ready["message"] == begin
