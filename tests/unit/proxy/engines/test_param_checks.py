"""A P's parameters go to a D only if no value in them can end the D's EngineCore."""

import json
from typing import Any, Final

import msgspec
import pytest

from pdx_api.connectors import CONNECTORS
from pdx_api.connectors.families import Identity
from pdx_api.names import Order, Role
from pdx_proxy.config.settings import Address, EndpointSpec
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.engines.transfer_params import params_to_relay, transfer_params
from pdx_proxy.http.upstream.answer import Answer
from pdx_proxy.http.upstream.failures import BadAnswer
from pdx_proxy.payload.apis import APIS

VLLM: Final[dict[str, Any]] = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[0, 7, 8], []],
    "remote_engine_id": "8f2c-dp0",
    "remote_request_id": "cmpl-1-0",
    "remote_host": "fd00::1",
    "remote_port": 5600,
    "tp_size": 2,
    "dcp_size": 1,
    "pp_size": 1,
    "remote_num_tokens": 40,
    "remote_blocks_expiry_time": None,
    "transfer_mode": "pull",
    "remote_prefill_cached_tokens": 0,
    "remote_registration_generation": 0,
}
"""What NIXL's P answers in vLLM 0.32."""
OLDER: Final = (
    "dcp_size",
    "remote_blocks_expiry_time",
    "transfer_mode",
    "remote_prefill_cached_tokens",
    "remote_registration_generation",
)
NIXL: Final = Endpoint(EndpointSpec(Address("p", 1), Role.PREFILL, order=Order.PREFILL_FIRST))
CUSTOM: Final = Endpoint(
    EndpointSpec(Address("p", 1), Role.PREFILL, connector="Custom", protocol=CONNECTORS["Custom"].protocol)  # type: ignore[attr-defined]
)


def read(params: Any, endpoint: Endpoint = NIXL, path: str = "/v1/completions") -> dict[str, Any] | None:
    answer = Answer()
    answer.status, answer.complete = 200, True
    text = params if isinstance(params, str) else json.dumps(params)
    members = '"choices":[{"finish_reason":"length"}],"stop_reason":"x","usage":{"output_tokens":1}'
    kind = {"/v1/messages": "message"}.get(path, "x")
    answer.add(
        f'{{"object":"response","type":"{kind}",{members},"kv_transfer_params":{text}}}'.encode(
            "utf-8", "surrogatepass"
        )
    )
    relayed = _relayed(endpoint, answer, APIS[path])
    params = transfer_params(endpoint, answer, APIS[path])
    assert relayed == params
    return dict(params) if params is not None else None


def _relayed(endpoint: Endpoint, answer: Answer, api: Any) -> Any:
    """What D gets; the failure of P if there is one, so that both readers have to agree."""
    try:
        found = params_to_relay(endpoint, answer, api)
    except BadAnswer:
        with pytest.raises(BadAnswer):
            transfer_params(endpoint, answer, api)
        raise
    return json.loads(bytes(found)) if isinstance(found, msgspec.Raw) else found


def test_of_a_long_error_nothing_is_relayed() -> None:
    """Its beginning is no JSON."""
    answer = Answer()
    answer.status = 500
    answer.headers.append((b"content-type", b"application/json"))
    answer.add(b'{"error": {"message": "')
    with pytest.raises(BadAnswer) as raised:
        transfer_params(NIXL, answer)
    assert (raised.value.status, raised.value.body) == (500, b"")


def test_what_vllm_answers_is_relayed_as_bytes() -> None:
    answer = Answer()
    answer.status, answer.complete = 200, True
    text = json.dumps(VLLM, indent=1)
    answer.add(f'{{"choices":[{{"finish_reason":"length"}}],"kv_transfer_params":{text}}}'.encode())
    found = params_to_relay(NIXL, answer, APIS["/v1/completions"])
    assert isinstance(found, msgspec.Raw)
    assert bytes(found).decode() == text


@pytest.mark.parametrize("path", APIS)
@pytest.mark.parametrize(
    "params",
    [
        VLLM,
        {name: value for name, value in VLLM.items() if name not in OLDER},
        VLLM | {"remote_blocks_expiry_time": 12.5, "remote_block_ids": [[], [2**31 - 1]]},
        VLLM | {"tp_size": None, "remote_num_tokens": 0},
        VLLM | {"new": {"member": [{"of": "a"}, "newer vLLM"]}, "another": ["x"]},
    ],
)
def test_what_vllm_answers_goes_on_unchanged(params: dict[str, Any], path: str) -> None:
    assert read(params, path=path) == params


@pytest.mark.parametrize("text", ["", ',"kv_transfer_params":null'])
def test_an_answer_without_parameters_has_nothing_to_hand_over(text: str) -> None:
    """vLLM leaves out members of messages that have no value."""
    answer = Answer()
    answer.status, answer.complete = 200, True
    answer.add(f'{{"type":"message","stop_reason":"max_tokens"{text}}}'.encode())
    assert _relayed(NIXL, answer, APIS["/v1/messages"]) is None
    assert transfer_params(NIXL, answer, APIS["/v1/messages"]) is None


ODD: Final[dict[str, tuple[Any, ...]]] = {
    "do_remote_prefill": (None, False, 1, "true"),
    "do_remote_decode": (None, True, 0, {}),
    "remote_block_ids": (
        *(None, [], [[]], [[], []], [1], 5, "x", {"a": [1]}, [["1"]], [[1.5]], [[None]], [[True]]),
        *([[-1]], [[2**31]], [[2**70]], [[1], 2], [[[1]]], [[1]] * 300),
    ),
    "remote_engine_id": (None, "", 5, [], {}, "e" * 513, "\u202e"),
    "remote_request_id": (None, "", True, 1.5, "r" * 10_000),
    "remote_host": (None, "", 0, ["h"], "h" * 1000, "\xe4"),
    "remote_port": (None, 0, -1, 65_536, True, 1.0, "1", 10**30),
    "tp_size": (0, -1, True, 1.5, "2", [], 10**6),
    "pp_size": (0, {}, 10**30),
    "dcp_size": (0, "1"),
    "remote_num_tokens": (-1, "x", [], 2**31, True),
    "remote_registration_generation": (-1, "x", [], 0.5),
    "remote_blocks_expiry_time": ("x", [], True, {}),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, some in ODD.items() for value in some])
@pytest.mark.parametrize("more", [{}, {"new": {"nested": ["x"]}}])
def test_an_odd_member_is_a_failure_of_p(name: str, value: Any, more: dict[str, Any]) -> None:
    with pytest.raises(BadAnswer, match="kv_transfer_params that no decode engine may read"):
        read(VLLM | more | {name: value})


@pytest.mark.parametrize("name", [name for name, some in ODD.items() if None in some])
def test_so_is_one_that_is_missing(name: str) -> None:
    with pytest.raises(BadAnswer, match=f"no {name}"):
        read({key: value for key, value in VLLM.items() if key != name})


@pytest.mark.parametrize("params", [{}, "[]", '"x"', "5", "true"])
def test_so_are_parameters_of_another_type(params: Any) -> None:
    with pytest.raises(BadAnswer):
        read(params)


LARGE: Final = (
    {"a": "e" * (15 << 20)},
    {"a": [list(range(400_000))]},
    {"a": {"b": ["x" * 9] * 200_000}},
    '{"a":' + "[" * 17 + "]" * 17 + "}",
    '{"a":' + '{"a":' * 500 + "1" + "}" * 501,
    '{"a":' + "[" * 100_000 + "]" * 100_000 + "}",
)


@pytest.mark.parametrize("params", LARGE, ids=range(len(LARGE)))
@pytest.mark.parametrize("endpoint", [NIXL, CUSTOM])
def test_a_users_connector_is_bounded_in_size_and_depth(params: Any, endpoint: Endpoint) -> None:
    with pytest.raises(BadAnswer):
        read(params, endpoint)


@pytest.mark.parametrize("params", [{}, {"any": [{"of": [[["x"]]]}, None, -(2**40)]}, {"blocks": [1, 2]}])
def test_and_else_its_own(params: dict[str, Any]) -> None:
    assert read(params, CUSTOM) == params


@pytest.mark.parametrize(
    "fields",
    [
        {"engine_id": ""},
        {"engine_id": "e" * 600},
        {"host": "a\nb"},
        {"port": 0},
        {"port": 70_000},
        {"tensor_parallel": -1},
        {"pipeline_parallel": 10**9},
    ],
)
def test_an_identity_of_a_push_is_checked_too(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"no ID|a number"):
        Identity(**{"engine_id": "e", "host": "h", "port": 1, **fields})
