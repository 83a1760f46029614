"""The layout of one run: names, addresses and command lines."""

import json
import os
import sys
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from pdx_api.names import Order, Role
from pdx_cli.inputs.document import load
from pdx_cli.local.engines import EngineKind
from pdx_cli.local.layout import Layout, environment, lay_out

CUSTOM = Path(__file__).parents[4] / "examples" / "connectors" / "custom.yaml"
TINY = Path(__file__).parents[4] / "examples" / "tiny-cpu.yaml"


def _layout(kind: EngineKind, *assignments: str) -> Layout:
    ports = count(9000)
    deployment = load(TINY, assignments)
    give = partial(_give, ports)
    return lay_out(deployment, kind, port=8080, admin=8081, storage="/run/kv", allocate=give)


def _give(ports: Iterator[int], number: int) -> list[int]:
    return [next(ports) for _ in range(number)]


def test_every_engine_has_its_own_ports() -> None:
    layout = _layout(EngineKind.VLLM, "spec.prefill.replicas=2")
    assert [engine.name for engine in layout.engines] == ["prefill-0", "prefill-1", "decode-0"]
    side_channels = [int(engine.env["VLLM_NIXL_SIDE_CHANNEL_PORT"]) for engine in layout.engines]
    used = [engine.port for engine in layout.engines] + side_channels
    assert len(set(used)) == 6
    assert {engine.env["VLLM_NIXL_SIDE_CHANNEL_HOST"] for engine in layout.engines} == {"127.0.0.1"}


@pytest.mark.parametrize(("stated", "simulated"), [("0.30.1", "0.30.0"), ("0.34", "0.33.0")])
def test_simulated_engines_have_the_stated_version(stated: str, simulated: str) -> None:
    for engine in _layout(EngineKind.SIM, f"spec.engine.version='{stated}'").engines:
        assert engine.argv[engine.argv.index("--vllm-version") + 1] == simulated


def test_engines_have_the_ports_of_their_side_services() -> None:
    layout = _layout(EngineKind.VLLM, "spec.kvTransfer={connector: LMCache, poolSize: 2Gi}")
    (server,) = layout.services
    argv = " ".join(server.argv)
    assert argv.startswith("lmcache server --host 127.0.0.1 --port 9000 --http-host 127.0.0.1 --http-port 9001")
    assert argv.endswith("--l1-size-gb 2")
    assert (server.name, server.url, server.health) == ("lmcache", "http://127.0.0.1:9001", "/healthcheck")
    for engine in layout.engines:
        assert '"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": 9000' in " ".join(engine.argv)
        assert engine.port > 9002
    simulated = _layout(EngineKind.SIM, "spec.kvTransfer={connector: LMCache}")
    assert simulated.services == ()
    assert all("--connector LMCache" in " ".join(engine.argv) for engine in simulated.engines)


def test_each_engine_has_its_own_server() -> None:
    layout = _layout(EngineKind.VLLM, "spec.kvTransfer={connector: LMCacheP2P}", "spec.prefill.replicas=2")
    names = ["peers", "lmcache-prefill-0", "lmcache-prefill-1", "lmcache-decode-0"]
    assert [program.name for program in layout.services] == names
    coordinator, *servers = layout.services
    requests = [server.argv[server.argv.index("--port") + 1] for server in servers]
    for engine, server, port in zip(layout.engines, servers, requests, strict=True):
        assert f'"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": {port},' in " ".join(engine.argv)
        assert f"--coordinator-url {coordinator.url} " in " ".join(server.argv)
    assert len({*requests, *(program.port for program in (*layout.services, *layout.engines))}) == 10


@pytest.mark.parametrize("connector", ["LMCache", "LMCacheP2P", "MooncakeStore"])
def test_side_services_have_the_engines_environment(connector: str) -> None:
    assignments = ["spec.engine.env=[{name: UCX_TLS, value: tcp}]", f"spec.kvTransfer={{connector: {connector}}}"]
    services = _layout(EngineKind.VLLM, *assignments).services
    assert services
    assert all(service.env == {"UCX_TLS": "tcp"} for service in services)


def test_each_engine_has_its_own_files() -> None:
    layout = _layout(EngineKind.VLLM, "spec.kvTransfer={connector: MooncakeStore}", "spec.prefill.replicas=2")
    (master,) = layout.services
    assert " ".join(master.argv).startswith("mooncake_master ")
    paths = [engine.env["MOONCAKE_CONFIG_PATH"] for engine in layout.engines]
    assert len(set(paths)) == 3
    sockets = set()
    for engine, path in zip(layout.engines, paths, strict=True):
        assert json.loads(engine.files[path])["master_server_address"] == "127.0.0.1:9000"
        transfer = json.loads(engine.argv[engine.argv.index("--kv-transfer-config") + 1])
        sockets.add(transfer["kv_connector_extra_config"]["lookup_rpc_port"])
        assert transfer["kv_load_failure_policy"] == "recompute"
    assert len(sockets) == 3


def test_the_gateway_has_the_identity_ports() -> None:
    layout = _layout(EngineKind.VLLM, "spec.kvTransfer={connector: Mooncake}", "spec.prefill.replicas=2")
    ports = [engine.env["VLLM_MOONCAKE_BOOTSTRAP_PORT"] for engine in layout.of(Role.PREFILL)]
    assert len(set(ports)) == 2
    assert f"--identity-ports {' '.join(ports)} " in " ".join(layout.gateway.argv)
    assert "--identity-ports" not in _layout(EngineKind.VLLM).gateway.argv


def test_the_gateway_gets_what_engines_run_at_a_time() -> None:
    layout = _layout(EngineKind.VLLM, "spec.engine.args=[--max-num-seqs=8]")
    assert "--prefill-max-num-seqs 8 --decode-max-num-seqs 8 " in " ".join(layout.gateway.argv)
    assert "--decode-max-num-seqs" not in _layout(EngineKind.VLLM).gateway.argv


def test_the_gateway_pairs_patch_releases_if_the_engines_do() -> None:
    given = "spec.kvTransfer={connector: NIXL, config: {enforce_handshake_compat: %s}}"
    assert "--any-patch-release" in _layout(EngineKind.VLLM, given % "false").gateway.argv
    assert "--any-patch-release" not in _layout(EngineKind.VLLM, given % "true").gateway.argv


def test_vllm_listens_on_the_loopback_address_only() -> None:
    for engine in _layout(EngineKind.VLLM).engines:
        assert engine.argv[:2] == ("vllm", "serve")
        assert engine.argv[engine.argv.index("--host") + 1] == "127.0.0.1"
        assert engine.argv[engine.argv.index("--port") + 1] == str(engine.port)


@pytest.mark.parametrize("order", Order)
def test_the_gateway_has_engines_and_order(order: Order) -> None:
    layout = _layout(EngineKind.SIM, f"spec.kvTransfer.order={order}", "spec.gateway.workers=3")
    argv = " ".join(layout.gateway.argv)
    prefill, decode = layout.engines
    assert f"--prefill {prefill.url} --decode {decode.url} --connector NIXL --order {order}" in argv
    assert "--listen 127.0.0.1:8080 --admin 127.0.0.1:8081" in argv
    assert "--workers 3" in argv
    for engine in layout.engines:
        assert f"--role {engine.role} --model tiny --max-model-len 4096" in " ".join(engine.argv)
        assert f"--connector NIXL --order {order} --side-channel 127.0.0.1:" in " ".join(engine.argv)


def test_custom_connector() -> None:
    ports = count(9000)
    deployment = load(CUSTOM, [])
    layout = lay_out(
        deployment,
        EngineKind.VLLM,
        port=8080,
        admin=8081,
        storage="/run/kv",
        allocate=lambda n: [next(ports) for _ in range(n)],
    )
    assert f"--connector Custom --order PrefillFirst --protocol {deployment.spec.protocol} " in " ".join(
        layout.gateway.argv
    )
    for engine in layout.engines:
        assert engine.env["PYTHONPATH"] == str(CUSTOM.parent / "write-your-own")


def test_aggregated_has_one_pool_and_no_connector() -> None:
    layout = _layout(EngineKind.SIM, "spec.mode=Aggregated")
    assert [engine.name for engine in layout.engines] == ["aggregated-0", "aggregated-1"]
    assert layout.of(Role.AGGREGATED) == layout.engines
    for argv in (layout.gateway.argv, *(engine.argv for engine in layout.engines)):
        assert "--connector" not in argv
        assert "--order" not in argv
    assert f"--aggregated {layout.engines[0].url} {layout.engines[1].url}" in " ".join(layout.gateway.argv)


def test_an_engine_is_found_by_its_address() -> None:
    layout = _layout(EngineKind.SIM)
    assert layout.name_of(layout.engines[1].address) == "decode-0"
    assert layout.name_of("127.0.0.1:1") is None


def test_environment_of_a_child() -> None:
    base = {"PATH": "/usr/bin", "HOME": "/h", "PYTHONPATH": "/x", "PYTHONWARNINGS": "error"}
    env = environment(base, {"HOME": "/engine", "PYTHONHASHSEED": "0"})
    assert env["PATH"].split(os.pathsep) == [str(Path(sys.executable).parent), "/usr/bin"]
    assert env["HOME"] == "/engine"
    assert env["PYTHONHASHSEED"] == "0"
    assert "PYTHONPATH" not in env
    assert "PYTHONWARNINGS" not in env


def test_routing_reaches_gateway_and_engines() -> None:
    layout = _layout(EngineKind.SIM, "spec.routing.deadlines.handoffSeconds=40", "spec.gateway.limits.maxBodySize=1Mi")
    assert layout.gateway.argv[-2:] == ("--handoff-seconds=40", "--max-body-size=1048576")
    for engine in layout.engines:
        assert engine.argv[-2:] == ("--lease-seconds", "45")


def test_simulated_engines_have_vllms_settings() -> None:
    assignments = ["spec.engine.blockSize=32", "spec.kvTransfer.onLoadFailure=Recompute"]
    for engine in _layout(EngineKind.SIM, *assignments, "spec.kvTransfer.config={kv_lease_duration: 70}").engines:
        found = dict(zip(engine.argv, engine.argv[1:], strict=False))
        assert (found["--block-size"], found["--on-load-failure"]) == ("32", "Recompute")
        assert found["--lease-seconds"] == "70"
