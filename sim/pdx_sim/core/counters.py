"""What a simulated engine counts: events since its first start, and what it holds now."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any


class Violation(StrEnum):
    """What a correct gateway never does to an engine."""

    PREFILL_STREAMED = "prefill_streamed"
    """A P leg with stream: its parameters cannot be read from chunks."""
    PREFILL_TOKENS = "prefill_tokens"
    """A P leg that asks for more or less than one token."""
    PREFILL_PARAMS = "prefill_params"
    """A P leg whose remote_* keys are missing or not null."""
    PREFILL_MAY_STOP = "prefill_may_stop"
    """A Mooncake P leg without ignore_eos: one that ends by itself hands nothing over, and D waits in vain."""
    PREFILL_LEG_AT_DECODE = "prefill_leg_at_decode"
    DECODE_LEG_AT_PREFILL = "decode_leg_at_prefill"
    PARAMS_AT_AGGREGATED = "params_at_aggregated"
    """kv_transfer_params at an engine without a connector."""
    PARAMS_MALFORMED = "params_malformed"
    """kv_transfer_params that are no object, or ask for neither or both of the legs."""
    PARAMS_UNKNOWN = "params_unknown"
    """kv_transfer_params with a key that no connector reads."""
    PARAMS_INCOMPLETE = "params_incomplete"
    """A D leg without what leads it to P (pull: engine id, host, port, request id): vLLM parks it for ever."""
    CLIENT_PARAMS = "client_params"
    """Parameters of a transfer where only a client puts them: ec_transfer_params, vllm_xargs, body request_id."""
    MANY_SEQUENCES = "many_sequences"
    """A P or D leg with n > 1 or several prompts."""
    ENGINE_KILLED = "engine_killed"
    """A D leg whose parameters kill vLLM's EngineCore."""
    READ_TWICE = "read_twice"
    """A pull of blocks that were pulled or released before."""
    READ_LATE = "read_late"
    """A pull of blocks whose lease has ended."""
    READ_UNKNOWN = "read_unknown"
    """A pull of blocks that this start of P never had."""
    READ_EARLY = "read_early"
    """A look at KV in a shared directory that another engine is still writing: kills vLLM's EngineCore."""
    FOREIGN_KV = "foreign_kv"
    """A D leg of more than one token over KV of another prompt."""
    NO_REQUEST_ID = "no_request_id"
    """A push leg without X-Request-Id: it can meet nobody."""
    ID_REUSED = "id_reused"
    """A push D leg of more than one token under an id that has met; a Mooncake P leg under one that is parked."""
    ID_MISMATCH = "id_mismatch"
    """A push D leg whose remote_request_id names neither its own X-Request-Id nor P's internal id."""
    PUSH_MISMATCH = "push_mismatch"
    """A push P leg with fewer blocks than the D leg that waits under its id."""


@dataclass(slots=True)
class Counts:
    """Live numbers. Those that end in `_now` are gauges, all others only grow; a restart keeps them."""

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
    """Requests without the key that the engine asks for."""
    aborted: int = 0
    """Sequences whose client hung up before their end."""
    prefills_finished: int = 0
    """P legs whose KV was parked for a D."""
    prefills_aborted: int = 0
    """P legs whose client hung up before their end."""
    pulled: int = 0
    """Parked prefills that a D has read."""
    pushed: int = 0
    """Parked prefills written to a D."""
    released: int = 0
    """Parked prefills freed by a notice from D."""
    expired: int = 0
    """Parked prefills whose lease ended (vllm:nixl_num_kv_expired_reqs)."""
    parked_lost: int = 0
    """Parked prefills lost with the engine's process."""
    push_failures: int = 0
    """Writes that D did not take."""
    handshakes: int = 0
    """Handshakes granted to peers."""
    handshakes_refused: int = 0
    heartbeats: int = 0
    """Leases extended by a D."""
    notices_lost: int = 0
    """Refused D legs whose notice had no handshake to travel on."""
    transfers_failed: int = 0
    """Reads and writes of KV that were tried and failed, on the side that moved."""
    load_failures: int = 0
    """D legs whose KV did not arrive."""
    recomputed: int = 0
    """D legs prefilled here after a load failure."""
    prompt_tokens_local: int = 0
    prompt_tokens_external: int = 0
    prompt_tokens_queried: int = 0
    """Prompt tokens that the connector, if there is one, was asked for."""
    generation_tokens: int = 0
    orphan_tokens: int = 0
    """Tokens generated after the client had hung up."""
    orphan_prefill_tokens: int = 0
    """Prompt tokens computed after the client had hung up."""
    longest_orphan_seconds: float = 0.0
    """Longest time from a hang-up until the engine stopped working on it."""
    decode_blocks_lost: int = 0
    """Blocks of D given up after decoder_ttl_seconds without a push."""
    running_now: int = 0
    waiting_now: int = 0
    loading_now: int = 0
    """Those of the waiting that wait for KV."""
    blocks_held_now: int = 0
    blocks_parked_now: int = 0
    """Held blocks of finished prefills that wait for a D."""
    registered_now: int = 0
    """Push, Mooncake: D legs that wait at this P for its prefill, also those that only give it up."""
    blocks_stranded_now: int = 0
    """Held blocks of D legs that have gone and whose push has not come."""

    def violate(self, violation: Violation) -> None:
        """Count a violation."""
        self.violations[violation.value] += 1

    def forget(self) -> None:
        """Zero the gauges: an engine that has ended holds nothing."""
        for each in fields(self):
            if each.name.endswith("_now"):
                setattr(self, each.name, 0)

    def as_json(self) -> dict[str, Any]:
        """For /sim/state."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: dict(value) if isinstance(value, Counter) else value for name, value in values.items()}


def metrics_text(counts: Counts, model: str, num_blocks: int) -> str:
    """vLLM's counters and gauges that operators, gateways and dashboards read, in Prometheus' text format."""
    computed, external = counts.prompt_tokens_local, counts.prompt_tokens_external
    plain = {
        "kv_cache_usage_perc": counts.blocks_held_now / num_blocks,
        "num_requests_running": counts.running_now,
        "num_requests_waiting": counts.waiting_now,
        "nixl_num_kv_expired_reqs_total": counts.expired,
        "nixl_num_failed_transfers_total": counts.transfers_failed,
        "nixl_num_failed_notifications_total": counts.notices_lost,
        "num_preemptions_total": 0,
        "generation_tokens_total": counts.generation_tokens,
        "prompt_tokens_total": computed + external,
        "external_prefix_cache_queries_total": counts.prompt_tokens_queried,
        "external_prefix_cache_hits_total": external,
    }
    sources = {"local_compute": computed, "local_cache_hit": 0, "external_kv_transfer": external}
    waiting = {"capacity": counts.waiting_now - counts.loading_now, "deferred": counts.loading_now}
    reasons = {reason: counts.finished[reason] for reason in ("stop", "length", "abort", "error", "repetition")}
    own = f'engine="0",model_name="{model}"'
    lines = [line for name, value in plain.items() for line in _family(name, {own: value})]
    for name, label, values in (
        ("prompt_tokens_by_source_total", "source", sources),
        ("num_requests_waiting_by_reason", "reason", waiting),
        ("request_success_total", "finished_reason", reasons),
    ):
        lines += _family(name, {f'{own},{label}="{key}"': value for key, value in values.items()})
    return "\n".join(lines) + "\n"


def _family(name: str, values: Mapping[str, float]) -> list[str]:
    kind = "counter" if name.endswith("_total") else "gauge"
    return [
        f"# TYPE vllm:{name} {kind}",
        *(f"vllm:{name}{{{labels}}} {float(value)}" for labels, value in values.items()),
    ]
