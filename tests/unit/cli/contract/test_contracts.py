"""Each known version's extract differs from the assumptions only as the table of differences states."""

import json
from pathlib import Path

import pytest

from pdx_api.vllm.assumptions import assumptions, differences, expected
from pdx_api.vllm.versions import TESTED, VERSIONS, Abilities
from pdx_cli.contract.check import compare
from pdx_cli.contract.lookups import LOOKUPS
from tests.documents import ROOT

CONTRACTS = ROOT / "tests" / "contracts"


def values_of(version: str) -> dict[str, object]:
    """What `pdx check-vllm -o json` has read in a version's wheel."""
    extract = json.loads((CONTRACTS / f"{version}.json").read_text(encoding="utf-8"))
    assert extract["version"].startswith(f"{version}.")
    values: dict[str, object] = extract["values"]
    return values


def test_each_known_version_has_an_extract() -> None:
    assert sorted(path.stem for path in CONTRACTS.glob("*.json")) == sorted(VERSIONS)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_assumption_holds_or_is_a_known_difference(version: str) -> None:
    values = values_of(version)
    assert list(values) == [each.id for each in assumptions()]
    assert [str(each) for each in compare(values, expected(version))] == []


def test_every_difference_is_one() -> None:
    tested = expected(TESTED)
    assert not [each for each in differences() if each.value == tested[each.id]]
    assert not [each for each in differences() if each.version == TESTED]
    assert len({(each.version, each.id) for each in differences()}) == len(differences())


def test_rows_are_complete() -> None:
    assert len({each.id for each in assumptions()}) == len(assumptions())
    for each in assumptions():
        assert each.kind in LOOKUPS
        assert each.paths
        assert (ROOT / each.place).is_file(), each
    assert all(each.effect.endswith(".") for each in differences())


@pytest.mark.parametrize("version", VERSIONS)
def test_abilities_are_what_the_code_has(version: str) -> None:
    values = values_of(version)
    assert VERSIONS[version] == Abilities(
        version,
        ends_silently=version < TESTED,  # seen with real engines: no kind of row reads the order of statements
        reuses_tokens=version == TESTED,  # tests run its engines
        spaces_prompts=version > TESTED,  # read in the wheel of 0.33: rows compare no bodies of functions
        nixl=int(str(values["constant NIXL_CONNECTOR_VERSION"])),
        context_parallel=values["reads NixlConnectorMetadata._add_new_req:dcp_size"] is True,
        store_tensor=values["option store_tp_size"] is not None,
        frees_pushed=values["uses NixlPushConnectorWorker.get_transfer_results:_recving_metadata"] is None,
        answers_hits=values["text remote_prefill_cached_tokens"] is True,
        registers="registration" in str(values["answers NixlPullConnectorScheduler.request_finished"]),
        null_params="kv_transfer_params" in str(values["members ChatCompletionStreamResponse"]),
        nixl_least=str(values["call check_nixl_version"] or ""),
        mooncake_metrics=values["metric vllm:mooncake_xfer_time_seconds"] is not None,
        dead_text=str(
            values["constant EngineDeadError.CLIENT_MESSAGE"]
            or "EngineCore encountered an issue. See stack trace (above) for the root cause."
        ),
        pauses=values["text engine_paused"] is True,
    )


def test_contracts_are_small() -> None:
    assert all(path.stat().st_size < 32_000 for path in Path(CONTRACTS).glob("*.json"))
