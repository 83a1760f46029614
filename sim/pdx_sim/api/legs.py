"""The violations that a request shows by itself, before any KV moves."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from pdx_api.names import Role
from pdx_sim.api.paths import MESSAGES, RESPONSES
from pdx_sim.api.request import Call
from pdx_sim.core.counters import Violation
from pdx_sim.core.sequence import KVParams, Leg, push_id
from pdx_sim.settings import SimSettings, TransferMode
from pdx_sim.transfer.mooncake import NEEDED as MOONCAKE_NEEDED
from pdx_sim.transfer.pull import is_complete, kills_pull
from pdx_sim.transfer.push import kills_push

_FLAGS: Final = ("do_remote_decode", "do_remote_prefill")
_REMOTE: Final = ("remote_engine_id", "remote_block_ids", "remote_host", "remote_port")
_FROM_PREFILL: Final = (
    "remote_request_id",
    "tp_size",
    "dcp_size",
    "pp_size",
    "remote_num_tokens",
    "remote_blocks_expiry_time",
    "transfer_mode",
    "remote_prefill_cached_tokens",
    "remote_registration_generation",
    "prompt_token_ids",
)
_GATEWAYS_ID: Final = re.compile("resp_[0-9a-f]{17,}")
"""IDs that a gateway gives to responses."""
_CLIENTS_OWN: Final = frozenset(("kv_transfer_params", "ec_transfer_params"))
_READ: Final[dict[tuple[bool, Leg], frozenset[str]]] = {
    (False, Leg.PREFILL): frozenset((*_FLAGS, *_REMOTE)),
    (False, Leg.DECODE): frozenset((*_FLAGS, *_REMOTE, *_FROM_PREFILL)),
    (True, Leg.PREFILL): frozenset((*_FLAGS, "transfer_id")),
    (True, Leg.DECODE): frozenset((*_FLAGS, *MOONCAKE_NEEDED)),
}
"""The parameters that vLLM reads: (is the connector Mooncake, leg) -> names."""
_KILLS: Final[dict[TransferMode, Callable[[KVParams], bool]]] = {
    TransferMode.PULL: kills_pull,
    TransferMode.PUSH: kills_push,
}


def accepts(leg: Leg, settings: SimSettings) -> bool:
    """Whether an engine of this role uses the leg's parameters."""
    if leg is Leg.PLAIN or settings.kv_both:
        return True
    return settings.role is (Role.PREFILL if leg is Leg.PREFILL else Role.DECODE)


def has_id(path: str, body: Mapping[str, Any], header_id: str | None) -> bool:
    """Whether the sender has set the engine's ID of a request. /v1/responses does not read the header."""
    return body.get("request_id") is not None or (header_id is not None and path != RESPONSES)


def violations(call: Call, body: Mapping[str, Any], has_id: bool, settings: SimSettings) -> Iterator[Violation]:
    """Every violation that the request shows."""
    if _from_client(call.path, body):
        yield Violation.CLIENT_PARAMS
    params = body.get("kv_transfer_params")
    if params is None:
        return
    if not settings.connected:
        yield Violation.PARAMS_AT_AGGREGATED
    if settings.shares_storage:
        yield Violation.PARAMS_UNEXPECTED
        return
    if not isinstance(params, dict) or bool(params.get(_FLAGS[0])) == bool(params.get(_FLAGS[1])):
        yield Violation.PARAMS_MALFORMED
        return
    exact, mooncake = settings.exact_prefill_params, settings.mode is TransferMode.MOONCAKE
    if (exact is None or call.leg is not Leg.PREFILL) and not _READ[mooncake, call.leg].issuperset(params):
        yield Violation.PARAMS_UNEXPECTED
    if call.n > 1 or len(call.prompts) > 1:
        yield Violation.MANY_SEQUENCES
    if settings.mode is TransferMode.PUSH and not has_id:
        yield Violation.NO_REQUEST_ID
    yield from _prefill(call, settings) if call.leg is Leg.PREFILL else _decode(call, settings)


def _from_client(path: str, body: Mapping[str, Any]) -> bool:
    extra, own_id = body.get("vllm_xargs"), body.get("request_id")
    hidden = isinstance(extra, dict) and not _CLIENTS_OWN.isdisjoint(extra)
    named = own_id is not None and not (path == RESPONSES and _GATEWAYS_ID.fullmatch(str(own_id)))
    return hidden or body.get("ec_transfer_params") is not None or named


def _prefill(call: Call, settings: SimSettings) -> Iterator[Violation]:
    if settings.role is Role.DECODE and not settings.kv_both:
        yield Violation.PREFILL_LEG_AT_DECODE
    if call.stream:
        yield Violation.PREFILL_STREAMED
    if call.max_tokens != 1:
        yield Violation.PREFILL_TOKENS
    if settings.mode is TransferMode.MOONCAKE:
        yield from _mooncake_prefill(call, settings)
        return
    exact = settings.exact_prefill_params
    if exact is not None:
        wrong = call.params != exact
    else:
        wrong = any(name not in call.params or call.params[name] is not None for name in _REMOTE)
    if wrong:
        yield Violation.PREFILL_PARAMS


def _mooncake_prefill(call: Call, settings: SimSettings) -> Iterator[Violation]:
    if not call.params.get("transfer_id"):
        yield Violation.PREFILL_PARAMS
    if not call.ignore_eos and call.path != MESSAGES:  # which has no such member
        yield Violation.PREFILL_MAY_STOP
    if settings.role is Role.DECODE and not settings.kv_both:
        yield Violation.ENGINE_KILLED


def _decode(call: Call, settings: SimSettings) -> Iterator[Violation]:
    if settings.role is Role.PREFILL and not settings.kv_both:
        yield Violation.DECODE_LEG_AT_PREFILL
        if settings.mode is TransferMode.MOONCAKE:
            yield Violation.ENGINE_KILLED
        return
    if not settings.connected:
        return
    if settings.mode is TransferMode.MOONCAKE:
        if not all(call.params.get(name) for name in MOONCAKE_NEEDED):
            yield Violation.PARAMS_INCOMPLETE
        return
    if _KILLS[settings.mode](call.params):
        yield Violation.ENGINE_KILLED
    elif not is_complete(call.params):
        yield Violation.PARAMS_INCOMPLETE
    elif settings.mode is TransferMode.PUSH:
        prefill_id = str(call.params["remote_request_id"])
        own_id = call.request_id.removeprefix("resp_") if call.path == RESPONSES else call.request_id
        if prefill_id != own_id and push_id(prefill_id) != push_id(call.internal_id(0, "")):
            yield Violation.ID_MISMATCH
