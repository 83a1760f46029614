"""The settings of one simulated engine."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pdx_api.connectors import choose, family_of
from pdx_api.connectors.families import Family, KVParams, Pool, Pull, Push
from pdx_api.connectors.mooncake import CONNECTOR as MOONCAKE
from pdx_api.connectors.nixl import CONNECTOR as NIXL
from pdx_api.names import Order, Role

_NIXL: Final = NIXL.name
_MOONCAKE: Final = MOONCAKE.name


class OnLoadFailure(StrEnum):
    """What D does when KV does not arrive (vLLM's kv_load_failure_policy)."""

    FAIL = "Fail"
    RECOMPUTE = "Recompute"


class TransferMode(StrEnum):
    """Who moves the KV: D reads (`NixlConnector`) or P writes (`NixlPushConnector`)."""

    PULL = "pull"
    PUSH = "push"
    MEET = "meet"
    """P writes, and D asks P's bootstrap for the way to it (`MooncakeConnector`)."""


_MOST: Final = sys.float_info.max
_COUNT: Final = (1, _MOST)
_AMOUNT: Final = (0, _MOST)
_SECONDS: Final = (0.0, _MOST)
_PORT: Final = (0, 65535)

BOUNDS: Final[Mapping[str, tuple[float, float]]] = {
    "port": _PORT,
    "side_channel_port": _PORT,
    "max_model_len": _COUNT,
    "answer_tokens": _AMOUNT,
    "prefill_base_seconds": _SECONDS,
    "prefill_token_seconds": _SECONDS,
    "prefill_chunk": _COUNT,
    "decode_token_seconds": _SECONDS,
    "transfer_seconds": _SECONDS,
    "side_channel_seconds": _SECONDS,
    "side_channel_timeout": _SECONDS,
    "jitter": (0.0, 1.0),
    "prefill_slots": _COUNT,
    "max_running": _COUNT,
    "num_blocks": _COUNT,
    "block_size": _COUNT,
    "lease_seconds": (0.001, _MOST),
    "decoder_ttl_seconds": _SECONDS,
    "keepalive_seconds": _SECONDS,
    "shutdown_seconds": _SECONDS,
    "record": _AMOUNT,
}
"""Field of SimSettings -> its least and its greatest value. Only finite numbers lie between them."""


class OutOfBoundsError(ValueError):
    """A setting is outside its bounds: `field` is its name, `wrong` what is wrong with it."""

    def __init__(self, field: str, wrong: str) -> None:
        super().__init__(f"{field} {wrong}")
        self.field = field
        self.wrong = wrong


@dataclass(frozen=True, slots=True)
class SimSettings:
    """Every setting with its default, unit and consequence."""

    role: Role = Role.AGGREGATED
    """Which legs the engine accepts; a leg of the other role is a violation. Aggregated has no KV connector."""
    kv_both: bool = False
    """Accepts legs of both roles, whatever `role` says (vLLM's kv_role kv_both)."""
    order: Order = Order.PREFILL_FIRST
    """PrefillFirst speaks pull, the other orders push."""
    connector: str = _NIXL
    """The KV connector. NIXL and Mooncake are spoken word for word; every other hands over by its family: Serial as
    NIXL's pull does, with parameters of its own, and Pool through `storage`. No other Rendezvous is simulated."""
    protocol: str = ""
    """How Custom is spoken to (`connectors.custom`): a P leg with other parameters is a violation."""
    storage: str = ""
    """The directory that engines of a pool share. Where the connector has a service beside its engines, which keeps the
    pool, it stands for that, and only what is written to its end is found."""
    model: str = "sim"
    """The served model's name; clients ask for it, and engines of another model refuse the KV handshake."""
    api_key: str = ""
    """What requests to /v1 must carry as `Authorization: Bearer` (vLLM's --api-key); empty: nothing."""
    host: str = "127.0.0.1"
    """Address of the HTTP API."""
    port: int = 0
    """Port of the HTTP API; 0 takes a free one, which a restart keeps."""
    side_channel_host: str = "127.0.0.1"
    """Address of the side channel, both bound and told to peers."""
    side_channel_port: int = 0
    """Port of the side channel, with Mooncake of P's bootstrap; 0 takes a free one, which a restart keeps."""
    version: str = "0.32.0"
    """vLLM's version as told by /version; engines of another version refuse the KV handshake."""
    max_model_len: int = 4096
    """Longest prompt plus answer, in tokens."""
    answer_tokens: int = 0
    """Tokens after which an answer ends by itself (finish_reason stop); ignore_eos overrules it. 0: never."""
    prefill_base_seconds: float = 0.0
    """Seconds that each prefill takes beside its tokens."""
    prefill_token_seconds: float = 20e-6
    """Seconds for each prompt token of a prefill."""
    prefill_chunk: int = 512
    """Tokens in one prefill step: a prefill whose client has left stops at the end of its step."""
    decode_token_seconds: float = 1e-3
    """Seconds for each generated token of a sequence."""
    transfer_seconds: float = 0.0
    """Seconds to move the KV of one request between engines."""
    side_channel_seconds: float = 0.0
    """Seconds that each message on the side channel is late."""
    side_channel_timeout: float = 5.0
    """Seconds until a peer that does not answer on the side channel counts as dead."""
    jitter: float = 0.0
    """Share, 0 to 1, by which each simulated time varies up and down."""
    seed: int = 0
    """Seed of jitter and of faults with a probability."""
    prefill_slots: int = 4
    """Prefills computed at a time; more wait."""
    max_running: int = 256
    """Sequences computed at a time (--max-num-seqs); more wait."""
    num_blocks: int = 16384
    """KV blocks; a request waits while too few are free."""
    block_size: int = 16
    """Tokens in a KV block."""
    lease_seconds: float = 30.0
    """Seconds that P keeps finished blocks (kv_lease_duration); D's heartbeat extends it by two thirds of that."""
    decoder_ttl_seconds: float = 480.0
    """Seconds that D keeps the blocks of a request that has gone and whose KV was never pushed."""
    on_load_failure: OnLoadFailure = OnLoadFailure.FAIL
    """Fail: a request whose KV does not arrive ends with an error. Recompute: D prefills by itself."""
    keepalive_seconds: float = 5.0
    """Seconds until an idle client connection is closed (uvicorn's default)."""
    shutdown_seconds: float = 0.0
    """Seconds that a stop waits for open requests and parked KV (--shutdown-timeout); 0 aborts them at once."""
    prompt_tokens_details: bool = True
    """Says in `usage` how many prompt tokens were not computed here (--enable-prompt-tokens-details)."""
    record: int = 256
    """Last requests kept for tests to look at."""

    def __post_init__(self) -> None:
        for field, (least, most) in BOUNDS.items():
            value = getattr(self, field)
            if not least <= value <= most:
                possible = f"{least:g} or more" if most == _MOST else f"a number from {least:g} to {most:g}"
                raise OutOfBoundsError(field, f"is {value}; write {possible}")
        choose(self.connector, self.order, self.protocol)
        if isinstance(self._family, Push) and self.connector not in (_NIXL, _MOONCAKE):
            raise ValueError(f"the rendezvous of connector {self.connector} is not simulated")
        if self.shares_storage and not self.storage:
            raise ValueError(f"connector {self.connector} needs a directory that engines share")
        if self.num_blocks * self.block_size < self.max_model_len:
            raise ValueError("num_blocks * block_size must hold max_model_len tokens")
        listen, side_channel = (self.host, self.port), (self.side_channel_host, self.side_channel_port)
        if self.connected and self.port and listen == side_channel:
            raise ValueError(f"HTTP API and side channel are both on {self.host}:{self.port}; name two addresses")

    @property
    def mode(self) -> TransferMode:
        """How KV moves in this order."""
        if self.connector == _MOONCAKE:
            return TransferMode.MEET
        return TransferMode.PULL if self.order is Order.PREFILL_FIRST else TransferMode.PUSH

    @property
    def shares_storage(self) -> bool:
        """Whether KV moves through a shared directory."""
        return self.connected and isinstance(self._family, Pool)

    @property
    def pool_has_server(self) -> bool:
        """Whether what is shared is kept by a service beside the engines."""
        return bool(choose(self.connector, self.order)[0].services)

    @property
    def saves_behind(self) -> bool:
        """Whether P may answer before what it saves can be found."""
        family = self._family
        return isinstance(family, Pool) and family.saved_after > 0

    @property
    def _family(self) -> Family:
        return family_of(self.connector, self.order, self.protocol)

    @property
    def own_prefill_params(self) -> KVParams | None:
        """What P legs carry, all of it, where the connector is no NIXL."""
        family = self._family
        return family.prefill_params if self.connector != _NIXL and isinstance(family, Pull) else None

    @property
    def connected(self) -> bool:
        """Whether the engine has a KV connector."""
        return self.kv_both or self.role is not Role.AGGREGATED
