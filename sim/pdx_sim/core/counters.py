"""The counters and gauges of a simulated engine, and vLLM's metrics made of them."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

from pdx_sim.settings import SimSettings


class Violation(StrEnum):
    """Requests that a correct gateway never sends."""

    PREFILL_STREAMED = "prefill_streamed"
    """A P leg with stream: chunks carry no parameters."""
    PREFILL_TOKENS = "prefill_tokens"
    """A P leg whose max_tokens is not 1."""
    PREFILL_PARAMS = "prefill_params"
    """A P leg with a remote_* key that is missing or not null."""
    PREFILL_MAY_STOP = "prefill_may_stop"
    """A Mooncake P leg without ignore_eos: if it ends by itself, it hands nothing over, and D waits in vain."""
    PREFILL_LEG_AT_DECODE = "prefill_leg_at_decode"
    DECODE_LEG_AT_PREFILL = "decode_leg_at_prefill"
    PARAMS_AT_AGGREGATED = "params_at_aggregated"
    """kv_transfer_params at an engine without a connector."""
    PARAMS_MALFORMED = "params_malformed"
    """kv_transfer_params that are no object, or that name neither leg or both."""
    PARAMS_UNEXPECTED = "params_unexpected"
    """kv_transfer_params with a key that no connector reads."""
    PARAMS_INCOMPLETE = "params_incomplete"
    """A D leg without P's address (pull: engine id, host, port, request id): vLLM lets it wait for ever."""
    CLIENT_PARAMS = "client_params"
    """Transfer parameters that come from a client: ec_transfer_params, vllm_xargs, request_id in the body."""
    MANY_SEQUENCES = "many_sequences"
    """A P or D leg with n > 1 or several prompts."""
    ENGINE_KILLED = "engine_killed"
    """A D leg whose parameters kill vLLM's EngineCore."""
    READ_TWICE = "read_twice"
    """A pull of blocks that have been pulled or released."""
    READ_LATE = "read_late"
    """A pull of blocks whose lease has ended."""
    READ_MISSING = "read_missing"
    """A pull of blocks that this start of P never had."""
    READ_EARLY = "read_early"
    """A read of KV that another engine is still writing to a shared directory: kills vLLM's EngineCore."""
    FOREIGN_KV = "foreign_kv"
    """A D leg of more than one token over KV of another prompt."""
    NO_REQUEST_ID = "no_request_id"
    """A push leg without X-Request-Id: no other leg can share its push id."""
    ID_REUSED = "id_reused"
    """A push D leg of more than one token under a used push id; a Mooncake P leg whose transfer id is pinned."""
    ID_MISMATCH = "id_mismatch"
    """A push D leg whose remote_request_id names neither its own X-Request-Id nor P's internal id."""
    PUSH_MISMATCH = "push_mismatch"
    """A push P leg with fewer blocks than the D leg that waits under its id."""


@dataclass(slots=True)
class Counts:
    """Counters, and gauges, whose names end in `_now`. A restart keeps the counters."""

    finished: Counter[str] = field(default_factory=Counter)
    """Sequences by finish reason."""
    requests: Counter[str] = field(default_factory=Counter)
    """HTTP requests by path."""
    legs: Counter[str] = field(default_factory=Counter)
    """Accepted generation requests by leg."""
    violations: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    """Faults that fired, by kind."""
    connections: int = 0
    """HTTP connections accepted."""
    restarts: int = 0
    refused: int = 0
    """Generation requests refused by validation, or by a fault with a 4xx or 503."""
    unauthorized: int = 0
    """Requests without the engine's API key."""
    aborted: int = 0
    """Sequences whose client disconnected before their end."""
    prefills_finished: int = 0
    """P legs whose KV was pinned for a D."""
    prefills_aborted: int = 0
    """P legs whose client disconnected before their end."""
    pulled: int = 0
    """Pinned prefills that a D has read."""
    pushed: int = 0
    """Pinned prefills that were written to a D."""
    released: int = 0
    """Pinned prefills that a notice from D has freed."""
    expired: int = 0
    """Pinned prefills whose lease ended (vllm:nixl_num_kv_expired_reqs)."""
    pinned_lost: int = 0
    """Pinned prefills that were lost with the engine's process."""
    push_failures: int = 0
    """Writes that failed."""
    handshakes: int = 0
    """Handshakes granted to peers."""
    handshakes_refused: int = 0
    heartbeats: int = 0
    """Leases extended by a D."""
    notices_lost: int = 0
    """Refused D legs whose release notice was not sent, because there was no handshake."""
    transfers_failed: int = 0
    """Reads and writes of KV that failed, counted by the engine that moved the KV."""
    load_failures: int = 0
    """D legs whose KV did not arrive."""
    recomputed: int = 0
    """D legs that were prefilled here after a load failure."""
    prompt_tokens_local: int = 0
    prompt_tokens_external: int = 0
    prompt_tokens_found: int = 0
    """Prompt tokens that were in the engine's own prefix cache."""
    prompt_tokens_queried: int = 0
    """Prompt tokens that were looked up in the connector."""
    generation_tokens: int = 0
    orphan_tokens: int = 0
    """Tokens generated after the client disconnected."""
    orphan_prefill_tokens: int = 0
    """Prompt tokens computed after the client disconnected."""
    longest_orphan_seconds: float = 0.0
    """Longest time from a disconnect until the engine stopped the sequence."""
    preemptions: int = 0
    """Sequences that freed their blocks for others and computed again (step loop only)."""
    decode_blocks_lost: int = 0
    """Stranded blocks that were freed after decoder_ttl_seconds without a push."""
    running_now: int = 0
    waiting_now: int = 0
    held_back_now: int = 0
    """Sequences that wait because the engine is paused."""
    loading_now: int = 0
    """Waiting sequences that wait for KV."""
    blocks_held_now: int = 0
    blocks_pinned_now: int = 0
    """Held blocks of pinned prefills."""
    registered_now: int = 0
    """Push, Mooncake: D legs that wait for a prefill of this P, also those that only release its KV."""
    blocks_stranded_now: int = 0
    """Held blocks of D legs that were cancelled before their push."""

    def violate(self, violation: Violation) -> None:
        """Count a violation."""
        self.violations[violation.value] += 1

    def reset_gauges(self) -> None:
        """Zero the gauges: an engine that has ended holds nothing."""
        for each in fields(self):
            if each.name.endswith("_now"):
                setattr(self, each.name, 0)

    def as_json(self) -> dict[str, Any]:
        """For /sim/state."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: dict(value) if isinstance(value, Counter) else value for name, value in values.items()}


def metrics_text(counts: Counts, settings: SimSettings) -> str:
    """vLLM's counters and gauges that operator, gateway and dashboards read, in Prometheus' text format."""
    computed, external, found = counts.prompt_tokens_local, counts.prompt_tokens_external, counts.prompt_tokens_found
    plain = {
        "kv_cache_usage_perc": counts.blocks_held_now / settings.num_blocks,
        "num_requests_running": counts.running_now,
        "num_requests_waiting": counts.waiting_now + counts.held_back_now,
        **_of_transfers(counts, settings.transfer_metrics),
        "num_preemptions_total": counts.preemptions,
        "generation_tokens_total": counts.generation_tokens,
        "prompt_tokens_total": computed + external + found,
        "prefix_cache_queries_total": computed + external + found,
        "prefix_cache_hits_total": found,
        "external_prefix_cache_queries_total": counts.prompt_tokens_queried,
        "external_prefix_cache_hits_total": external,
    }
    sources = {"local_compute": computed, "local_cache_hit": found, "external_kv_transfer": external}
    capacity = counts.waiting_now + counts.held_back_now - counts.loading_now
    waiting = {"capacity": capacity, "deferred": counts.loading_now}
    reasons = {reason: counts.finished[reason] for reason in ("stop", "length", "abort", "error", "repetition")}
    own = f'engine="0",model_name="{settings.model}"'
    lines = [line for name, value in plain.items() for line in _family(name, {own: value})]
    for name, label, values in (
        ("prompt_tokens_by_source_total", "source", sources),
        ("num_requests_waiting_by_reason", "reason", waiting),
        ("request_success_total", "finished_reason", reasons),
    ):
        lines += _family(name, {f'{own},{label}="{key}"': value for key, value in values.items()})
    blocks, size = settings.num_blocks, settings.block_size
    cache = f'block_size="{size}",engine="0",kv_cache_size_tokens="{blocks * size}",num_gpu_blocks="{blocks}"'
    lines += _family("cache_config_info", {cache: 1})
    return "\n".join(lines) + "\n"


def _of_transfers(counts: Counts, connector: str) -> dict[str, float]:
    """vLLM's metrics of a connector (nixl/stats.py, and from 0.33 on mooncake/stats.py)."""
    if not connector:
        return {}
    own = {"nixl": ("failed_notifications", counts.notices_lost), "mooncake": ("failed_recvs", counts.load_failures)}
    name, value = own[connector]
    return {
        f"{connector}_num_kv_expired_reqs_total": counts.expired,
        f"{connector}_num_failed_transfers_total": counts.transfers_failed,
        f"{connector}_num_{name}_total": value,
    }


def _family(name: str, values: Mapping[str, float]) -> list[str]:
    kind = "counter" if name.endswith("_total") else "gauge"
    return [
        f"# TYPE vllm:{name} {kind}",
        *(f"vllm:{name}{{{labels}}} {float(value)}" for labels, value in values.items()),
    ]
