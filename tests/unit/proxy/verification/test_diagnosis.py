"""The likely cause of a failed transfer probe."""

import json
from dataclasses import replace

import pytest

from pdx_api.connectors import CONNECTORS
from pdx_api.connectors.families import Identity, Pool, Pull
from pdx_api.verification import Cause
from pdx_proxy.verification.diagnosis import Evidence, Facts, announced_host, likely_cause, read_facts
from pdx_proxy.verification.record import Result

PULL = Pull({})
MODELS = b'{"data": [{"id": "served", "root": "org/model"}]}'
METRICS = b'x\nvllm:cache_config_info{block_hash="a",block_size="16",cache_dtype="auto",engine="0"} 1.0\n'


def counters(prompts: float, queries: float | None) -> bytes:
    """Metrics of an engine with two data-parallel ranks, of which only the second has worked."""
    page = f'vllm:prompt_tokens_total{{engine="0"}} 0.0\nvllm:prompt_tokens_total{{engine="1"}} {prompts}\n'
    name = "vllm:external_prefix_cache_queries"
    if queries is not None:
        page += f'{name}_total{{engine="0"}} 0.0\n{name}_total{{engine="1"}} {queries}\n'
        page += f'{name}_created{{engine="1"}} 1.7e9\n'
    return page.encode()


@pytest.mark.parametrize(
    ("page", "connector"),
    [
        (counters(300.0, 300.0), True),
        (counters(1.5e6, 12.0), True),
        (counters(300.0, 0.0), False),
        (counters(0.0, 0.0), None),
        (counters(300.0, None), None),
        (METRICS, None),
    ],
)
def test_whether_an_engine_has_a_connector(page: bytes, connector: bool | None) -> None:
    assert read_facts(b"", b"", page).connector is connector


def test_the_pages_of_an_engine_are_read() -> None:
    assert read_facts(b'{"version": "0.32.0"}', MODELS, METRICS) == Facts("0.32.0", "org/model", 16)
    assert read_facts(b"", b"{}", b"<html>") == Facts()


@pytest.mark.parametrize("text", ["9." * 257, "0.32.0\r\nX: y", "\u001b[31m", "\u2028", "\u0000", "\u202e"])
def test_a_text_that_no_log_may_show_is_none(text: str) -> None:
    version, models = json.dumps({"version": text}), json.dumps({"data": [{"root": text}]})
    assert read_facts(version.encode(), models.encode(), METRICS) == Facts(block_size=16)


SELF = Facts("1", "m", 16)
OWN = "10.0.0.0"


@pytest.mark.parametrize(
    ("evidence", "cause"),
    [
        (Evidence(Result.FAILED, no_params=True), Cause.NO_CONNECTOR),
        (Evidence(Result.RECOMPUTED, SELF, replace(SELF, connector=False), OWN), Cause.NO_CONNECTOR),
        (Evidence(Result.FAILED, replace(SELF, connector=False), SELF), Cause.NO_CONNECTOR),
        (Evidence(Result.RECOMPUTED, replace(SELF, connector=True), replace(SELF, connector=True), OWN), Cause.PORTS),
        (Evidence(Result.RECOMPUTED, SELF, replace(SELF, version="2"), OWN), Cause.VERSION),
        (Evidence(Result.RECOMPUTED, SELF, replace(SELF, model="n"), OWN), Cause.MODEL),
        (Evidence(Result.RECOMPUTED, SELF, replace(SELF, block_size=32), OWN), Cause.BLOCK_SIZE),
        (Evidence(Result.WRONG_TEXT, SELF, SELF, OWN), Cause.WRONG_KV),
        (Evidence(Result.RECOMPUTED, SELF, SELF, "10.9.9.9"), Cause.SIDE_CHANNEL_HOST),
        (Evidence(Result.RECOMPUTED, SELF, SELF, "a-name"), Cause.PORTS),
        (Evidence(Result.FAILED, SELF, SELF, OWN), Cause.PORTS),
        (Evidence(Result.FAILED), Cause.PORTS),
        (Evidence(Result.FAILED, SELF, SELF, answered=True), Cause.HANDOFF),
        (Evidence(Result.FAILED, SELF, Facts()), Cause.PORTS),
    ],
)
def test_the_likely_cause(evidence: Evidence, cause: Cause) -> None:
    assert likely_cause(PULL, OWN, evidence) is cause


def test_versions_that_pair_are_no_cause() -> None:
    patch = Evidence(Result.RECOMPUTED, replace(SELF, version="0.32.0"), replace(SELF, version="0.32.1"), OWN)
    assert likely_cause(PULL, OWN, patch, CONNECTORS["NIXL"].wire) is Cause.VERSION
    assert likely_cause(PULL, OWN, patch, CONNECTORS["Mooncake"].wire) is Cause.PORTS
    assert likely_cause(PULL, OWN, patch, CONNECTORS["LMCache"].wire) is Cause.PORTS


def test_which_engine_runs_without_a_connector() -> None:
    off = Facts(connector=False)
    assert Evidence(Result.RECOMPUTED, SELF, off).unconnected == "the decode engine runs without a KV connector"
    assert Evidence(Result.FAILED, no_params=True).unconnected == "the prefill engine runs without a KV connector"
    assert (
        Evidence(Result.RECOMPUTED, off, off).unconnected
        == "the prefill engine and the decode engine run without a KV connector"
    )
    assert Evidence(Result.RECOMPUTED, Facts(connector=True), SELF).unconnected == ""


def test_a_pool_that_both_cannot_reach() -> None:
    assert likely_cause(Pool(), OWN, Evidence(Result.RECOMPUTED, SELF, SELF)) is Cause.POOL


def test_the_announced_host() -> None:
    params = {"remote_host": "10.9.9.9"}
    assert announced_host(PULL, None, params) == "10.9.9.9"
    assert announced_host(PULL, None, {}) is None
    assert announced_host(Pull({}, host_param="peer"), None, params) is None
    assert announced_host(Pool(), None, params) is None
    assert announced_host(PULL, Identity("e", "10.1.1.1", 1), params) == "10.1.1.1"
