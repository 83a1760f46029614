"""The settings of one simulated engine."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final, get_origin, get_type_hints

from pdx_api.connectors import choose, family_of
from pdx_api.connectors.families import Family, KVParams, Pool, Pull, Push
from pdx_api.connectors.mooncake import CONNECTOR as MOONCAKE
from pdx_api.connectors.nixl import CONNECTOR as NIXL
from pdx_api.names import Order, Role
from pdx_api.vllm.versions import abilities, minor

_NIXL: Final = NIXL.name
_MOONCAKE: Final = MOONCAKE.name


class OnLoadFailure(StrEnum):
    """What D does when KV does not arrive (vLLM's kv_load_failure_policy)."""

    FAIL = "Fail"
    RECOMPUTE = "Recompute"


class TransferMode(StrEnum):
    """How KV moves between peers."""

    PULL = "pull"
    """D reads from P (`NixlConnector`)."""
    PUSH = "push"
    """P writes to D (`NixlPushConnector`)."""
    MOONCAKE = "mooncake"
    """P writes to D, which finds P through P's bootstrap (`MooncakeConnector`)."""


_MOST: Final = sys.float_info.max
# A number's type is annotated with its least and its greatest value, and a flag of `pdx sim` with its help.
_Count = Annotated[int, (1, _MOST)]
_Amount = Annotated[int, (0, _MOST)]
_Seconds = Annotated[float, (0.0, _MOST)]
_Rate = Annotated[float, (0.0, _MOST)]
_Port = Annotated[int, (0, 65535)]


def _written(bound: float) -> str:
    """Return a bound with every digit of a whole number."""
    return str(int(bound)) if bound == int(bound) else f"{bound:g}"


def _possible(value: float, least: float, most: float) -> str:
    """Return the end of a sentence about a value outside its bounds."""
    if most != _MOST:
        return f"a number from {least:g} to {_written(most)}"
    return f"{'' if value <= most else 'a finite number, '}{least:g} or more"


class OutOfBoundsError(ValueError):
    """A setting is outside its bounds. `possible` describes the values that it may have."""

    def __init__(self, field: str, value: float, possible: str) -> None:
        super().__init__(f"{field} is {value}; write {possible}")
        self.field = field
        self.value = value
        self.possible = possible


@dataclass(frozen=True, slots=True)
class SimSettings:
    """Every setting with its default, unit and consequence."""

    role: Role = Role.AGGREGATED
    """The legs that the engine accepts; a leg of the other role is a violation. Aggregated has no KV connector."""
    kv_both: bool = False
    """Accepts legs of both roles, whatever `role` is (vLLM's kv_role kv_both)."""
    order: Order = Order.PREFILL_FIRST
    """With NIXL, PrefillFirst is pull and the other orders are push."""
    connector: str = _NIXL
    """The KV connector. The protocols of NIXL and Mooncake are simulated exactly. Every other connector hands over as
    its family does: pull as NIXL's pull, with the connector's parameters; pool through `storage`. No other push is
    simulated."""
    protocol: str = ""
    """The protocol of connector Custom (`connectors.custom`). A P leg with other parameters is a violation."""
    storage: Annotated[str, "directory that the engines share, for connectors of the family pool"] = ""
    """The directory that engines of a pool share. It also simulates the pool of a connector's side service; then only
    prompts that are completely written are found."""
    model: Annotated[str, "name that clients request"] = "sim"
    """Name of the served model, which clients send. Engines of another model refuse the KV handshake."""
    api_key: Annotated[str, "key that requests to /v1 must have"] = ""
    """The key that requests to /v1 must carry as `Authorization: Bearer` (vLLM's --api-key); empty: none."""
    host: str = "127.0.0.1"
    """Address of the HTTP API."""
    port: _Port = 0
    """Port of the HTTP API. 0: a free port, which a restart keeps."""
    side_channel_host: str = "127.0.0.1"
    """Address of the side channel. The engine binds it and sends it to peers."""
    side_channel_port: _Port = 0
    """Port of the side channel; with Mooncake, of P's bootstrap. 0: a free port, which a restart keeps."""
    version: str = "0.32.0"
    """vLLM's version, as /version answers it. Engines of another version refuse the KV handshake, and each has what
    this version has (`pdx_api.vllm.versions`)."""
    bidirectional: bool = False
    """D's answers have hand-off parameters, as with vLLM's `bidirectional_kv_xfer`. (D keeps no KV for them.)"""
    max_model_len: Annotated[_Count, "longest prompt plus answer, in tokens"] = 4096
    answer_tokens: Annotated[_Amount, "tokens after which an answer ends by itself; 0: never"] = 0
    """Tokens after which an answer ends by itself (finish_reason stop); ignore_eos overrules it. 0: never."""
    reasoning_tokens: Annotated[
        _Amount, "tokens at the beginning of each answer that are its reasoning, which a request may hide"
    ] = 0
    prefill_base_seconds: Annotated[_Seconds, "fixed time of each prefill"] = 0.0
    prefill_token_seconds: Annotated[_Seconds, "additional time per prompt token of a prefill"] = 20e-6
    prefill_chunk: Annotated[_Count, "prompt tokens in one prefill step"] = 512
    """Tokens in one prefill step. A prefill whose client has disconnected stops at the end of its step."""
    decode_token_seconds: Annotated[_Seconds, "time per generated token"] = 1e-3
    transfer_seconds: Annotated[_Seconds, "time to move the KV of one request"] = 0.0
    """Seconds to move the KV of one request between engines, in addition to its time on the links."""
    side_channel_seconds: _Seconds = 0.0
    """Seconds by which each message on the side channel is delayed."""
    side_channel_timeout: _Seconds = 5.0
    """Seconds until a peer that does not answer on the side channel counts as dead."""
    jitter: Annotated[float, (0.0, 1.0), "random variation of each time, as a share from 0 to 1"] = 0.0
    seed: Annotated[int, "seed of all random choices"] = 0
    prefill_slots: Annotated[_Count, "concurrent prefills"] = 4
    """Prefills computed at a time; more wait. The step loop has no such limit."""
    max_running: Annotated[_Count, "concurrent sequences"] = 256
    """Sequences computed at a time (--max-num-seqs); more wait. vLLM's default for both roles, with less than 70 GiB of
    GPU memory; it is 1024 on H100, H200 and larger (`profiles.default_max_num_seqs`)."""
    step_seconds: Annotated[_Seconds, "time of a step; 0: no step loop, each sequence has its own times"] = 0.0
    """Seconds of a step by itself. 0: no step loop, every sequence has the times above, whatever else runs. Otherwise
    all sequences compute in common steps (`core.scheduler`), and the times of prefill and decode above do not count."""
    step_sequence_seconds: Annotated[_Seconds, "additional time of a step per running sequence"] = 0.0
    step_token_seconds: Annotated[_Seconds, "additional time of a step per prompt token"] = 0.0
    max_num_batched_tokens: Annotated[_Count, "maximum number of tokens in a step"] = 2048
    """Tokens that a step computes at most (--max-num-batched-tokens); running sequences go first."""
    long_prefill_token_threshold: Annotated[
        _Amount, "maximum number of tokens of one prefill in a step; 0: no limit"
    ] = 0
    """Tokens of one prefill in a step at most, unless it is the only request (--long-prefill-token-threshold). 0: no
    limit."""
    prefill_schedule_interval: Annotated[_Count, "steps from one with prompts to the next, while sequences decode"] = 1
    """While sequences decode, the step loop computes prompts in every step of this number only
    (--prefill-schedule-interval). Ignored before vLLM 0.33, as there without data parallelism."""
    engine_gigabytes_per_second: Annotated[
        _Rate, "rate of the engine's link, which all its KV transfers share; 0: unlimited"
    ] = 0.0
    pair_gigabytes_per_second: Annotated[_Rate, "rate of the link to one peer; 0: unlimited"] = 0.0
    kv_bytes_per_token: Annotated[_Count, "bytes of one token's KV"] = 128 << 10
    """Bytes of one token's KV: by default those of a model of 8 billion parameters with grouped-query attention in 16
    bits."""
    num_blocks: Annotated[int, (1, 2**31 - 1), "KV blocks"] = 16384
    """Number of KV blocks. A request waits while too few are free."""
    block_size: Annotated[_Count, "tokens in a KV block"] = 16
    enable_prefix_caching: bool = False
    """Keeps the KV of prompts for later prompts with the same beginning (--enable-prefix-caching, vLLM's default).
    Prompts are found in the step loop only."""
    lease_seconds: Annotated[float, (0.001, _MOST), "time for which a prefill engine keeps finished blocks"] = 30.0
    """Seconds that P pins finished blocks (kv_lease_duration). After a heartbeat from D, two thirds of that remain."""
    decoder_ttl_seconds: _Seconds = 480.0
    """Seconds that D keeps the blocks of a request that was cancelled before its KV was pushed."""
    on_load_failure: OnLoadFailure = OnLoadFailure.FAIL
    """Fail: a request whose KV does not arrive ends with an error. Recompute: D prefills by itself."""
    keepalive_seconds: _Seconds = 5.0
    """Seconds until an idle client connection is closed (uvicorn's default)."""
    shutdown_seconds: Annotated[_Seconds, "time that open requests have after a stop"] = 0.0
    """Seconds that a stop waits for open requests and pinned KV (--shutdown-timeout). 0 aborts them at once."""
    sse_keep_alive_interval: Annotated[_Amount, "seconds after which an idle stream sends a comment; 0: never"] = 0
    prompt_tokens_details: bool = True
    """Reports in `usage` how many prompt tokens were not computed here (--enable-prompt-tokens-details)."""
    record: _Amount = 256
    """Number of recent requests that are kept for tests."""

    def __post_init__(self) -> None:
        for field, (least, most) in BOUNDS.items():
            value = getattr(self, field)
            if not least <= value <= most:
                raise OutOfBoundsError(field, value, _possible(value, least, most))
        choose(self.connector, self.order, self.protocol)
        if isinstance(self._family, Push) and self.connector not in (_NIXL, _MOONCAKE):
            raise ValueError(f"the push protocol of connector {self.connector} is not simulated")
        if self.shares_storage and not self.storage:
            raise ValueError(f"connector {self.connector} needs a directory that engines share; set storage")
        if self.num_blocks * self.block_size < self.max_model_len:
            raise ValueError("num_blocks * block_size must hold max_model_len tokens")
        listen, side_channel = (self.host, self.port), (self.side_channel_host, self.side_channel_port)
        if self.connected and self.port and listen == side_channel:
            raise ValueError(f"HTTP API and side channel are both on {self.host}:{self.port}; name two addresses")

    @property
    def mode(self) -> TransferMode:
        """How KV moves in this order."""
        if self.connector == _MOONCAKE:
            return TransferMode.MOONCAKE
        return TransferMode.PULL if self.order is Order.PREFILL_FIRST else TransferMode.PUSH

    @property
    def shares_storage(self) -> bool:
        """Whether KV moves through a shared directory."""
        return self.connected and isinstance(self._family, Pool)

    @property
    def pool_has_server(self) -> bool:
        """Whether a side service keeps the pool."""
        return bool(choose(self.connector, self.order)[0].services)

    @property
    def saves_in_background(self) -> bool:
        """Whether P may answer before the KV that it saves can be found."""
        family = self._family
        return isinstance(family, Pool) and family.saved_after > 0

    @property
    def _family(self) -> Family:
        return family_of(self.connector, self.order, self.protocol)

    @property
    def exact_prefill_params(self) -> KVParams | None:
        """The exact parameters of P legs, for a pull connector other than NIXL."""
        family = self._family
        return family.prefill_params if self.connector != _NIXL and isinstance(family, Pull) else None

    @property
    def transfer_metrics(self) -> str:
        """How the names of the connector's metrics begin; empty: it has none."""
        if self.connector == _MOONCAKE:
            return "mooncake" if abilities(minor(self.version)).mooncake_metrics else ""
        return "nixl" if self.connector == _NIXL else ""

    @property
    def connected(self) -> bool:
        """Whether the engine has a KV connector."""
        return self.kv_both or self.role is not Role.AGGREGATED


_HINTS: Final = {
    name: hint.__metadata__
    for name, hint in get_type_hints(SimSettings, include_extras=True).items()
    if get_origin(hint) is Annotated
}
BOUNDS: Final[Mapping[str, tuple[float, float]]] = {
    name: each for name, hint in _HINTS.items() for each in hint if isinstance(each, tuple)
}
"""Field of SimSettings -> its least and its greatest value, both finite."""
OPTIONS: Final[Mapping[str, str]] = {
    name: each for name, hint in _HINTS.items() for each in hint if isinstance(each, str)
}
"""Field of SimSettings that is a flag of `pdx sim` -> its help."""
