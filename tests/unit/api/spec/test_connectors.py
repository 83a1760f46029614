"""The families of the connectors, and what they add to an engine."""

from typing import Any

import pytest

from pdx_api.connectors import CONNECTORS, choose
from pdx_api.connectors.base import Site
from pdx_api.connectors.families import AtBootstrap, InPrefillAnswer, Pull, Push
from pdx_api.names import Order, Role


def test_choose() -> None:
    nixl = CONNECTORS["NIXL"]
    assert choose("NIXL", None) == (nixl, Order.PREFILL_FIRST)
    assert [choose("NIXL", order)[1] for order in Order] == list(Order)
    with pytest.raises(ValueError, match=r"connector 'X' does not exist; write one of: NIXL, "):
        choose("X", None)


def test_families_of_nixl() -> None:
    nixl = CONNECTORS["NIXL"]
    assert isinstance(nixl.family(Order.PREFILL_FIRST), Pull)
    for order in (Order.DECODE_FIRST, Order.CONCURRENT):
        family = nixl.family(order)
        assert isinstance(family, Push)
        assert isinstance(family.identity, InPrefillAnswer)
        identity = family.identity.read({"remote_engine_id": "e", "remote_host": "h", "remote_port": "7", "tp_size": 2})
        assert (identity.port, identity.tensor_parallel, identity.pipeline_parallel) == (7, 2, 1)
        params = family.decode_params("id", identity)
        assert (params["remote_request_id"], params["remote_engine_id"], params["tp_size"]) == ("id", "e", 2)
        for broken in ({}, {"remote_engine_id": "e", "remote_host": "h", "remote_port": None}):
            with pytest.raises((KeyError, TypeError, ValueError)):
                family.identity.read(broken)


def test_family_of_mooncake() -> None:
    mooncake = CONNECTORS["Mooncake"]
    assert choose("Mooncake", None)[1] is Order.CONCURRENT
    family = mooncake.family(Order.PREFILL_FIRST)
    assert isinstance(family, Push)
    assert isinstance(family.identity, AtBootstrap)
    worker = {"0": {"0": "tcp://10.0.0.1:1", "1": "tcp://10.0.0.1:2"}, "1": {"0": "tcp://10.0.0.1:3"}}
    registered = {"0": {"engine_id": "a", "worker_addr": worker}, "1": {"engine_id": "b", "worker_addr": worker}}
    identity = family.identity.read(registered, "fd00::1", 8998, 1)
    assert (identity.engine_id, identity.tensor_parallel, identity.pipeline_parallel) == ("b", 2, 2)
    params = family.decode_params("id", identity)
    assert params["remote_bootstrap_addr"] == "http://[fd00::1]:8998"
    assert params["transfer_id"] == family.prefill_params("id")["transfer_id"] == "id"
    answers: list[Any] = [{}, [], {"1": {"engine_id": "b"}}, {"1": {"engine_id": "b", "worker_addr": {}}}]
    for broken in answers:
        with pytest.raises((LookupError, TypeError, ValueError)):
            family.identity.read(broken, "h", 1, 1)


def test_wiring_of_mooncake() -> None:
    wiring = CONNECTORS["Mooncake"].engine(Role.DECODE, Order.CONCURRENT, Site("h", {"bootstrap": 7}), {"a": 1})
    assert wiring.kv_transfer_config == {
        "kv_connector": "MooncakeConnector",
        "kv_role": "kv_consumer",
        "kv_connector_extra_config": {"mooncake_protocol": "tcp", "a": 1},
    }
    assert wiring.env == {"VLLM_MOONCAKE_BOOTSTRAP_PORT": "7"}
