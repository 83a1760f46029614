"""The renderer: revisions, inputs of a role, and flags."""

import json
from typing import Any

import pytest
from pydantic import create_model

from pdx_api.connectors.base import Site
from pdx_api.names import Mode, Role
from pdx_api.render.engines import engine_command, engine_inputs, max_sequences, pairing_revision, stated
from pdx_api.spec.kv_transfer import KVTransfer
from pdx_api.spec.model import Model
from pdx_api.spec.parse import parse
from pdx_api.spec.types import Engine, Pool, Spec

POOLS: dict[str, Any] = {"prefill": {"replicas": 2}, "decode": {"replicas": 1}}
GPU = {"limits": {"nvidia.com/gpu": 1}}


def _spec(**spec: Any) -> Spec:
    body = {"model": {"name": "Qwen/Qwen3-8B"}, **POOLS, **spec}
    metadata = {"name": "qwen"}
    return parse({"apiVersion": "pdx.dev/v1alpha1", "kind": "PDDeployment", "metadata": metadata, "spec": body}).spec


SITE = Site("10.0.0.1", {"side-channel": 5600, "kv": 5600})

FROZEN: dict[str, tuple[dict[str, Any], str]] = {
    "smallest": ({}, "d1309eb562"),
    "aggregated": ({"mode": "Aggregated"}, "98751541af"),
    "push": ({"kvTransfer": {"order": "Concurrent", "config": {"kv_lease_duration": 60, "x": None}}}, "139ba8c15a"),
    "volume": (
        {"model": {"name": "m", "source": {"persistentVolumeClaim": {"claimName": "weights", "path": "m"}}}},
        "6d3a634f80",
    ),
    "settings": (
        {
            "engine": {"dtype": "float16", "maxModelLen": 4096, "args": ["--x"], "env": [{"name": "A", "value": ""}]},
            "prefill": {"parallelism": {"tensor": 2}, "chunkedPrefill": {"maxBatchedTokens": 8192}},
            "decode": {"args": ["--max-num-seqs=8"], "env": [{"name": "B", "value": "1"}]},
        },
        "93a181fc74",
    ),
}


@pytest.mark.parametrize("name", FROZEN)
def test_a_spec_keeps_its_revision_for_ever(name: str) -> None:
    """Another hash here restarts every engine of every user at their next upgrade of the operator.

    A new field whose default is None, empty or off by absence keeps them; any other must be excluded from
    `pairing_revision` while it has its default.
    """
    spec, revision = FROZEN[name]
    assert pairing_revision(_spec(**spec)) == revision


@pytest.mark.parametrize(
    "part", [Model(name="m"), Engine(), KVTransfer(), Pool()], ids=lambda part: type(part).__name__
)
def test_a_later_field_changes_nothing_until_it_is_used(part: Any) -> None:
    fields: dict[str, Any] = {
        "later": (str | None, None),
        "later_list": (list[str], []),
        "later_part": (Engine | None, None),
    }
    newer = create_model("Newer", __base__=type(part), **fields)
    same = newer.model_validate(part.model_dump(by_alias=True))
    assert stated(same) == stated(part)
    assert stated(same.model_copy(update={"later": "used"})) != stated(part)


@pytest.mark.parametrize(
    "change",
    [
        {"prefill": {"replicas": 7}},
        {"decode": {"resources": GPU}},
        {"decode": {"disruption": {"maxUnavailable": "50%"}}},
        {"decode": {"podTemplate": {"spec": {"nodeSelector": {"a": "b"}}}}},
        {"engine": {"imagePullPolicy": "Always"}},
        {"engine": {"drainSeconds": 7}},
        {"model": {"name": "Qwen/Qwen3-8B", "tokenSecretRef": {"name": "hub"}}},
        {"model": {"name": "Qwen/Qwen3-8B", "cache": {"persistentVolumeClaim": {"claimName": "c"}}}},
        {"gateway": {"replicas": 3, "workers": 2}},
        {"gateway": {"auth": {"secretRef": {"name": "clients"}}, "limits": {"maxRequestsPerClient": 1}}},
        {"engine": {"apiKeySecretRef": {"name": "key"}}},
        {"routing": {"prefillPolicy": "LeastLoad", "retries": {"attempts": 5}, "queue": {"maxRequests": 0}}},
        {"routing": {"deadlines": {"prefillSeconds": 7, "firstEventSeconds": 60, "totalSeconds": 500}}},
        {"rollout": {"maxSurge": 0}},
        {"observability": {"scrapeFrom": [{"podSelector": {"matchLabels": {"app": "prometheus"}}}]}},
    ],
    ids=str,
)
def test_another_field_keeps_the_revision(change: dict[str, Any]) -> None:
    assert pairing_revision(_spec(**change)) == pairing_revision(_spec())


@pytest.mark.parametrize(
    "change",
    [
        {"mode": "Aggregated"},
        {"model": {"name": "other"}},
        {"model": {"name": "Qwen/Qwen3-8B", "servedName": "qwen"}},
        {"model": {"name": "Qwen/Qwen3-8B", "revision": "main"}},
        {"model": {"name": "Qwen/Qwen3-8B", "source": {"path": "/m"}}},
        {"engine": {"image": "vllm:2"}},
        {"engine": {"dtype": "float16"}},
        {"engine": {"maxModelLen": 4096}},
        {"engine": {"kvCacheDtype": "fp8"}},
        {"engine": {"blockSize": 32}},
        {"engine": {"args": ["--enforce-eager"]}},
        {"engine": {"env": [{"name": "A", "value": "1"}]}},
        {"kvTransfer": {"order": "DecodeFirst"}},
        {"kvTransfer": {"config": {"kv_lease_duration": 60}}},
        {"kvTransfer": {"onLoadFailure": "Recompute"}},
        {"routing": {"deadlines": {"handoffSeconds": 26}}},
        {"prefill": {"replicas": 2, "parallelism": {"tensor": 2}}},
        {"prefill": {"replicas": 2, "parallelism": {"pipeline": 2}}},
        {"decode": {"parallelism": {"expert": True}}},
        {"prefill": {"replicas": 2, "args": ["--x"]}},
        {"decode": {"chunkedPrefill": {"enabled": False}}},
        {"decode": {"env": [{"name": "A", "value": "1"}]}},
    ],
    ids=str,
)
def test_a_pairing_field_changes_the_revision(change: dict[str, Any]) -> None:
    assert pairing_revision(_spec(**change)) != pairing_revision(_spec())


def test_the_default_order_and_the_same_order_written_out_are_one_revision() -> None:
    assert pairing_revision(_spec(kvTransfer={"order": "PrefillFirst"})) == pairing_revision(_spec())


def _lease(**spec: Any) -> object:
    site = Site(host="127.0.0.1", ports={"side-channel": 5600})
    args = engine_command(_spec(**spec), Role.PREFILL, site=site, listen="127.0.0.1", port=8000).args
    return json.loads(args[args.index("--kv-transfer-config") + 1])["kv_connector_extra_config"]["kv_lease_duration"]


def test_the_lease_is_longer_than_a_hand_off() -> None:
    assert _lease() == 30
    assert _lease(routing={"deadlines": {"handoffSeconds": 60}}) == 65
    assert _lease(kvTransfer={"config": {"kv_lease_duration": 40}}) == 40


def test_a_derived_lease_and_the_same_lease_in_config_are_one_revision() -> None:
    derived = _spec(routing={"deadlines": {"handoffSeconds": 60}})
    given = _spec(kvTransfer={"config": {"kv_lease_duration": 65}})
    both = _spec(routing={"deadlines": {"handoffSeconds": 40}}, kvTransfer={"config": {"kv_lease_duration": 65}})
    assert pairing_revision(derived) == pairing_revision(given) == pairing_revision(both)


@pytest.mark.parametrize(
    ("routing", "same"),
    [
        ({"prefillPolicy": "LeastLoad", "slowStartSeconds": 0, "onPrefillFailure": "Fail"}, True),
        ({"deadlines": {"prefillSeconds": 7, "firstEventSeconds": 60, "idleSeconds": 9, "totalSeconds": 70}}, True),
        ({"deadlines": {"handoffSeconds": 26}}, False),
    ],
)
def test_of_routing_only_hand_off_seconds_is_an_input(routing: dict[str, Any], same: bool) -> None:
    for role in (Role.PREFILL, Role.DECODE):
        assert (engine_inputs(_spec(routing=routing), role) == engine_inputs(_spec(), role)) is same
    aggregated = _spec(mode="Aggregated", routing=routing)
    assert engine_inputs(aggregated, Role.AGGREGATED) == engine_inputs(_spec(mode="Aggregated"), Role.AGGREGATED)


def test_kv_transfer_is_no_input_of_an_aggregated_pool() -> None:
    aggregated = {"mode": "Aggregated", "aggregated": {}}
    with_order = _spec(**aggregated, kvTransfer={"order": "DecodeFirst"})
    assert pairing_revision(with_order) == pairing_revision(_spec(**aggregated))
    assert engine_inputs(with_order, Role.AGGREGATED) == engine_inputs(_spec(**aggregated), Role.AGGREGATED)


def test_inputs_of_a_role_do_not_contain_its_replicas() -> None:
    before = _spec()
    after = _spec(prefill={"replicas": 9}, decode={"resources": GPU})
    assert engine_inputs(after, Role.PREFILL) == engine_inputs(before, Role.PREFILL)
    assert engine_inputs(after, Role.DECODE) != engine_inputs(before, Role.DECODE)


TRACED = {"tracing": {"endpoint": "http://collector:4318", "ratio": 0.5}}


def test_without_tracing_nothing_changes() -> None:
    plain, same = _spec(), _spec(observability={"scrapeFrom": [{"podSelector": {"matchLabels": {"a": "b"}}}]})
    for role in (Role.PREFILL, Role.DECODE):
        assert engine_inputs(same, role) == engine_inputs(plain, role)
        assert "traces" not in engine_inputs(plain, role)
        command = engine_command(plain, role, site=SITE, listen="0.0.0.0", port=8000)
        assert not [arg for arg in command.args if "otlp" in arg]
        assert not [name for name, _ in command.env if name.startswith("OTEL")]


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
def test_tracing_sets_vllms_flag_and_a_service_name_of_each_role(role: Role) -> None:
    spec = _spec(observability=TRACED, engine={"env": [{"name": "OTEL_TRACES_SAMPLER", "value": "always_on"}]})
    command = engine_command(spec, role, site=SITE, listen="0.0.0.0", port=8000)
    args, env = list(command.args), dict(command.env)
    assert args[args.index("--otlp-traces-endpoint") + 1] == "http://collector:4318/v1/traces"
    assert env["OTEL_SERVICE_NAME"] == f"pdx-{role}"
    assert env["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"] == "http/protobuf"
    assert env["OTEL_TRACES_SAMPLER"] == "always_on", "the user's variable counts"


def test_the_endpoint_is_an_input_of_engines_but_no_reason_not_to_pair() -> None:
    plain, traced = _spec(), _spec(observability=TRACED)
    other = _spec(observability={"tracing": {"endpoint": "http://collector:4318", "ratio": 0}})
    assert pairing_revision(traced) == pairing_revision(plain)
    for role in (Role.PREFILL, Role.DECODE):
        assert engine_inputs(traced, role) != engine_inputs(plain, role)
        assert engine_inputs(other, role) == engine_inputs(traced, role), "the ratio concerns the gateway only"


def test_a_null_in_an_overlay_is_an_input() -> None:
    """It deletes what PDX renders."""
    overlay = {"podTemplate": {"spec": {"securityContext": {"runAsUser": None}}}}
    assert engine_inputs(_spec(decode=overlay), Role.DECODE) != engine_inputs(_spec(), Role.DECODE)


@pytest.mark.parametrize(("seconds", "flags"), [(0, []), (30, ["--shutdown-timeout", "30"])])
@pytest.mark.parametrize("mode", Mode)
def test_shutdown_seconds_become_a_flag(mode: Mode, seconds: int, flags: list[str]) -> None:
    role = Role.DECODE if mode is Mode.DISAGGREGATED else Role.AGGREGATED
    site = Site(host="127.0.0.1", ports={"side-channel": 5600})
    command = engine_command(_spec(mode=mode), role, site=site, listen="127.0.0.1", port=8000, shutdown_seconds=seconds)
    assert [arg for arg in command.args if arg in ("--shutdown-timeout", "30")] == flags


def _prefill_args(**parallelism: Any) -> str:
    site = Site(host="127.0.0.1", ports={"side-channel": 5600})
    spec = _spec(prefill={"parallelism": parallelism})
    return " ".join(engine_command(spec, Role.PREFILL, site=site, listen="127.0.0.1", port=8000).args)


def test_the_devices_of_an_engine_are_flags() -> None:
    flags = "--tensor-parallel-size 4 --pipeline-parallel-size 2 --enable-expert-parallel"
    assert flags in _prefill_args(tensor=4, pipeline=2, expert=True)
    assert "parallel" not in _prefill_args(pipeline=1, expert=False)


@pytest.mark.parametrize(
    ("engine", "decode", "known"),
    [
        ([], [], 0),
        (["--max-num-seqs=8"], [], 8),
        (["--max_num_seqs", "8"], ["--max-num-seqs", "16"], 16),
        ([], ["--max-num-seqs=many"], 0),
        (["--max-num-seqs=8"], ["--max-num-seqs"], 0),
    ],
)
def test_what_an_engine_runs_at_a_time_is_the_last_flag_of_its_args(
    engine: list[str], decode: list[str], known: int
) -> None:
    spec = _spec(engine={"args": engine}, decode={"args": decode})
    assert max_sequences(spec, Role.DECODE) == known
