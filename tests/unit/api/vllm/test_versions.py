"""Which version of vLLM a spec states, what it has, and which versions pair."""

import pytest

from pdx_api.connectors import CONNECTORS
from pdx_api.names import Role
from pdx_api.render.engines import engine_inputs, pairing_revision
from pdx_api.spec.parse import InvalidDeploymentError, parse
from pdx_api.vllm.versions import NEWEST, OLDEST, VERSIONS, abilities, minor, stated, warning
from tests.pddeployments import GOOD


@pytest.mark.parametrize(
    ("version", "image", "found"),
    [
        (None, "vllm/vllm-openai:v0.32.0", "0.32"),
        (None, "vllm/vllm-openai:v0.33.0-cu130", "0.33"),
        (None, "registry.example.com:5000/ai/vllm-efa:0.31", "0.31"),
        (None, "vllm/vllm-openai:v0.30.1@sha256:00", "0.30"),
        (None, "vllm-openai:v0.29.1rc", "0.29"),
        (None, "vllm/vllm-openai:latest", ""),
        (None, "vllm/vllm-openai", ""),
        (None, "registry.example.com:5000/vllm", ""),
        (None, "vllm/engine:v0.32.0", ""),
        (None, "example.com/llm-server:1.4.0", ""),
        (None, "nvcr.io/nvidia/vllm:25.09-py3", ""),
        (None, "lmcache/vllm-openai:v0.3.9", ""),
        (None, "ghcr.io/x/vllm-fork:1.4.2", ""),
        (None, "vllm/vllm-openai:v0.28.0", "0.28"),
        (None, "vllm/vllm-openai:v0.100.0", "0.100"),
        ("1.4.2", "ghcr.io/x/vllm-fork:1.4.2", "1.4"),
        ("0.33.0", "vllm/vllm-openai:v0.32.0", "0.33"),
        ("0.33.1.dev3+g12", "example.com/llm-server:1.4.0", "0.33"),
    ],
)
def test_the_version_is_the_field_or_the_tag(version: str | None, image: str, found: str) -> None:
    assert stated(version, image) == found


def test_an_unknown_version_is_treated_as_the_nearest_one() -> None:
    assert abilities("0.34") == abilities("1.0") == NEWEST
    assert abilities("0.27") == OLDEST
    assert abilities("") == VERSIONS["0.32"]
    assert warning("0.34") == (
        "vLLM 0.34 is not among the versions that PDX has checked (0.28, 0.29, 0.30, 0.31, 0.32, 0.33); PDX treats it "
        "as 0.33. Run `pdx check-vllm 0.34.0` to see what differs."
    )
    assert not warning("0.33")
    assert not warning("")


def test_a_text_that_is_no_version() -> None:
    assert minor("0.32.0") == minor("v0.32") == "0.32"
    assert not minor("main")
    assert not minor("0.32" + "x" * 10_000)


def test_the_field_replaces_no_engine() -> None:
    without = parse(GOOD).spec
    stating = parse(
        {**GOOD, "spec": {**GOOD["spec"], "engine": {**GOOD["spec"].get("engine", {}), "version": "0.32.0"}}}
    )
    assert pairing_revision(stating.spec) == pairing_revision(without)
    assert engine_inputs(stating.spec, Role.PREFILL) == engine_inputs(without, Role.PREFILL)


def test_what_a_newer_version_has_is_allowed() -> None:
    spec = {**GOOD["spec"], "kvTransfer": {"connector": "MooncakeStore", "config": {"store_tp_size": 2}}}
    parse({**GOOD, "spec": {**spec, "engine": {"version": "0.30.0"}}})
    with pytest.raises(InvalidDeploymentError, match=r"and 0\.29 have no store_tp_size"):
        parse({**GOOD, "spec": {**spec, "engine": {"version": "0.29.0"}}})


def test_what_versions_have_in_common() -> None:
    nixl, mooncake = CONNECTORS["NIXL"].wire, CONNECTORS["Mooncake"].wire
    assert len({nixl(version) for version in ("0.32.0", "0.32.1", "0.32.0+cpu", "0.33.0", "0.33.1.dev2")}) == 5
    assert mooncake("0.32.0") == mooncake("v0.32.4+cpu") != mooncake("0.33.0")
    assert len({nixl(version, any_patch=True) for version in ("0.32.0", "0.32.1", "0.32.0+cpu")}) == 1
    assert nixl("0.32.0", any_patch=True) != nixl("0.33.0", any_patch=True)
    assert nixl("") == mooncake("") == CONNECTORS["LMCache"].wire("0.32.0") == ""
