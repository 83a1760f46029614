"""The rules between the fields of a spec, and the flags and variables that users may not set."""

import re
from typing import Any, Final

from pdx_api.connectors import CONNECTORS
from pdx_api.connectors.checks import EXPERT, PIPELINE
from pdx_api.names import Mode, Role
from pdx_api.otlp import TRACES_FLAG
from pdx_api.quantities import quantity
from pdx_api.rule import Rule, cel_list
from pdx_api.rules.connector_rules import order_rules, spec_rules, transfer_rules, transfer_rules_of_others

OWNED_FLAGS: Final = (
    "--kv-transfer-config",
    "--host",
    "--port",
    "--model",
    "--served-model-name",
    "--tensor-parallel-size",
    "-tp",
    "--shutdown-timeout",
)
"""vLLM flags that PDX sets, so that no user can mis-wire a pair."""
REFUSED_FLAGS: Final = ("--nnodes", "-n", "--node-rank", "-r", "--headless", "--config")
"""Flags of multi-node engines, and the flag that reads other flags from a file."""
DATA_PARALLEL_FLAGS: Final = (
    *("--data-parallel-size", "-dp", "--data-parallel-size-local", "-dpl", "--data-parallel-rank", "-dpn"),
    *("--data-parallel-start-rank", "-dpr", "--data-parallel-address", "-dpa", "--data-parallel-rpc-port", "-dpp"),
    *("--data-parallel-backend", "-dpb", "--data-parallel-hybrid-lb", "-dph", "--data-parallel-external-lb", "-dpe"),
    *("--data-parallel-multi-port-external-lb", "-dpm"),
)
"""vLLM 0.32 `engine/arg_utils.py`. Gateways must have the number of ranks."""


SHARED_FLAGS: Final = (
    *("--dtype", "--kv-cache-dtype", "--block-size", "--revision", "--quantization", "-q", "--hf-overrides"),
    *("--attention-backend", "--disable-hybrid-kv-cache-manager", "--no-disable-hybrid-kv-cache-manager"),
)
"""Flags that must be equal on P and D: pairs with different ones would refuse or garble the KV."""

GPU: Final = "nvidia.com/gpu"


def _is_flag(argument: str, flags: tuple[str, ...]) -> bool:
    """Whether vLLM reads the argument as one of the flags. It accepts _ for -, keys after a dot, and prefixes."""
    found = argument.split("=")[0].split(".")[0].replace("_", "-")
    return found in flags or (
        found.startswith("--") and len(found) > 3 and any(flag.startswith(found) for flag in flags)
    )


def _no_flag_of(flags: tuple[str, ...], message: str) -> Rule:
    return Rule(
        "[self.split('=')[0].split('.')[0].replace('_', '-')].all(found, "
        f"!(found in {cel_list(flags)}) && !(found.startsWith('--') && found.size() > 3 && "
        f"{cel_list(flag for flag in flags if flag.startswith('--'))}.exists(flag, flag.startsWith(found))))",
        message,
        lambda argument: not _is_flag(argument, flags),
    )


FLAG_IS_FREE: Final = _no_flag_of(
    OWNED_FLAGS, f"PDX sets {', '.join(OWNED_FLAGS)} from the other fields of spec; leave it out"
)
FLAG_IS_POSSIBLE: Final = _no_flag_of(
    REFUSED_FLAGS,
    "this version supports neither multi-node engines (--nnodes, --node-rank, --headless) nor flags from a file "
    "(--config); leave it out",
)
FLAG_IS_NO_RANK: Final = _no_flag_of(
    DATA_PARALLEL_FLAGS,
    "the gateway addresses data-parallel ranks; write parallelism.data of the role, and leave out --data-parallel-size "
    "and related flags",
)

FLAG_IS_NOT_SHARED: Final = _no_flag_of(
    SHARED_FLAGS,
    f"prefill and decode must use the same {', '.join(SHARED_FLAGS)}; write it in spec.engine, or leave it out",
)

SHARED_VARIABLES: Final = ("PYTHONHASHSEED", "VLLM_KV_CACHE_LAYOUT", "VLLM_SSM_CONV_STATE_LAYOUT", "VLLM_MLA_DISABLE")
"""Variables that must be equal on P and D. With different PYTHONHASHSEEDs every pool look-up misses silently."""

VARIABLE_IS_NOT_SHARED: Final = Rule(
    f"!(self.name in {cel_list(SHARED_VARIABLES)})",
    f"prefill and decode must use the same {', '.join(SHARED_VARIABLES)}; write it in engine.env, or leave it out",
    lambda variable: variable.name not in SHARED_VARIABLES,
)

KV_TRANSFER_RULES: Final = (
    *order_rules(CONNECTORS.values()),
    *transfer_rules_of_others(CONNECTORS.values()),
    *transfer_rules(CONNECTORS.values()),
)


def _requests_fit(resources: Any) -> bool:
    requests, limits = resources.requests, resources.limits
    return not any(_is_above(requests[name], limits[name]) for name in requests.keys() & limits.keys())


def _is_above(request: int | str, limit: int | str) -> bool:
    numbers = quantity(request), quantity(limit)
    # An exponent of four digits is no number here; the API server compares it.
    return numbers[0] is not None and numbers[1] is not None and numbers[0] > numbers[1]


RESOURCES_RULES: Final = (
    Rule(
        "!has(self.requests) || !has(self.limits) || self.requests.all(name, !(name in self.limits) || "
        "quantity(string(self.requests[name])).compareTo(quantity(string(self.limits[name]))) <= 0)",
        "a request exceeds its limit; write requests of at most the limits",
        _requests_fit,
        ("requests", "limits"),
    ),
)


def _enough_devices(pool: Any) -> bool:
    count = str(pool.resources.limits.get(GPU, ""))
    parallelism = pool.parallelism
    needed = parallelism.tensor * (parallelism.pipeline or 1) * (parallelism.data or 1)
    return re.fullmatch(r"[0-9]{1,6}", count) is None or int(count) >= needed


POOL_RULES: Final = (
    Rule(
        f"!('{GPU}' in self.resources.limits)"
        f" || !string(self.resources.limits['{GPU}']).matches('^[0-9]{{1,6}}$')"
        f" || int(string(self.resources.limits['{GPU}'])) >= self.parallelism.tensor"
        " * (has(self.parallelism.pipeline) ? self.parallelism.pipeline : 1)"
        " * (has(self.parallelism.data) ? self.parallelism.data : 1)",
        "an engine needs parallelism.tensor devices, times parallelism.pipeline and parallelism.data; write at least "
        f"as many {GPU} in resources.limits",
        _enough_devices,
        ("parallelism", "resources.limits"),
    ),
)


def _needs(role: Role) -> Rule:
    return Rule(
        f"self.mode != '{Mode.DISAGGREGATED}' || has(self.{role})",
        f"mode {Mode.DISAGGREGATED} needs spec.{role}; write {role}: {{replicas: 1}}",
        lambda spec: spec.mode is not Mode.DISAGGREGATED or getattr(spec, role) is not None,
    )


def _whole_prompts_fit(role: Role) -> Rule:
    """vLLM refuses the opposite (`config/scheduler.py`)."""
    chunks = f"self.{role}.chunkedPrefill"

    def holds(spec: Any) -> bool:
        pool, longest = getattr(spec, role), spec.engine.max_model_len
        if pool is None or longest is None or pool.chunked_prefill.max_batched_tokens is None:
            return True
        return bool(pool.chunked_prefill.enabled or pool.chunked_prefill.max_batched_tokens >= longest)

    return Rule(
        f"!has(self.{role}) || {chunks}.enabled || !has({chunks}.maxBatchedTokens) || !has(self.engine.maxModelLen)"
        f" || {chunks}.maxBatchedTokens >= self.engine.maxModelLen",
        f"without chunks one step of spec.{role} holds a whole prompt; write chunkedPrefill.maxBatchedTokens of at "
        "least engine.maxModelLen, or leave it out",
        holds,
        (f"{role}.chunkedPrefill.maxBatchedTokens", "engine.maxModelLen"),
    )


def _tensors_pair(spec: Any) -> bool:
    if spec.mode is not Mode.DISAGGREGATED or spec.prefill is None or spec.decode is None:
        return True
    prefill, decode = spec.prefill.parallelism.tensor, spec.decode.parallelism.tensor
    return bool(prefill % decode == 0 or decode % prefill == 0)


def _is_written_once(field: str, flags: tuple[str, ...]) -> Rule:
    """A field of `parallelism` and its flag in args would contradict each other."""
    listed = cel_list(flags)

    def named(args: str) -> str:
        return f"{args}.exists(a, a.split('=')[0].replace('_', '-') in {listed})"

    cel = " && ".join(
        f"(!has(self.{role}) || !has(self.{role}.parallelism.{field}) || "
        f"!({named('self.engine.args')} || {named(f'self.{role}.args')}))"
        for role in Role
    )

    def holds(spec: Any) -> bool:
        pools = [pool for role in Role if (pool := getattr(spec, role)) is not None]
        written = [pool for pool in pools if getattr(pool.parallelism, field) is not None]
        args = [arg for pool in written for arg in (*spec.engine.args, *pool.args)]
        return not any(arg.split("=")[0].replace("_", "-") in flags for arg in args)

    return Rule(cel, f"PDX sets {flags[0]} from parallelism.{field}; leave it out of args", holds)


LORA_FLAGS: Final = ("--enable-lora", "--lora-modules", "--max-lora-rank", "--max-loras")
_WITH_ARGS: Final = ("engine", "prefill", "decode", "aggregated")
_NO_LORA_FLAGS: Final = " && ".join(
    f"(!has(self.{part}) || self.{part}.args.all(a, "
    f"!(a.split('=')[0].split('.')[0].replace('_', '-') in {cel_list(LORA_FLAGS)})))"
    for part in _WITH_ARGS
)


def _names_adapters_once(spec: Any) -> bool:
    parts = [part for name in _WITH_ARGS if (part := getattr(spec, name)) is not None]
    flags = {argument.split("=")[0].split(".")[0].replace("_", "-") for part in parts for argument in part.args}
    return not spec.model.adapters or flags.isdisjoint(LORA_FLAGS)


_NO_TRACES_FLAG: Final = " && ".join(
    f"(!has(self.{part}) || self.{part}.args.all(a, a.split('=')[0].replace('_', '-') != '{TRACES_FLAG}'))"
    for part in _WITH_ARGS
)


def _names_endpoint_once(spec: Any) -> bool:
    parts = [part for name in _WITH_ARGS if (part := getattr(spec, name)) is not None]
    flags = {argument.split("=")[0].replace("_", "-") for part in parts for argument in part.args}
    return spec.observability.tracing is None or TRACES_FLAG not in flags


SPEC_RULES: Final = (
    _is_written_once("pipeline", PIPELINE),
    _is_written_once("expert", EXPERT),
    Rule(
        f"!has(self.model.adapters) || self.model.adapters.size() == 0 || ({_NO_LORA_FLAGS})",
        f"PDX sets {', '.join(LORA_FLAGS)} from model.adapters and model.lora; leave them out of args",
        _names_adapters_once,
    ),
    Rule(
        f"!has(self.observability.tracing) || ({_NO_TRACES_FLAG})",
        f"PDX sets {TRACES_FLAG} from observability.tracing; leave it out of args",
        _names_endpoint_once,
    ),
    Rule(
        "!has(self.gateway.enabled) || self.gateway.enabled"
        " || (!has(self.gateway.tls) && !has(self.gateway.httpRoute))",
        "there is no gateway with gateway.enabled: false; leave out gateway.tls and gateway.httpRoute",
        lambda spec: spec.gateway.enabled or (spec.gateway.tls is None and spec.gateway.http_route is None),
        ("gateway.enabled", "gateway.tls", "gateway.httpRoute"),
    ),
    _needs(Role.PREFILL),
    _needs(Role.DECODE),
    Rule(
        f"self.mode != '{Mode.AGGREGATED}' || has(self.aggregated) || has(self.decode)",
        f"mode {Mode.AGGREGATED} needs spec.aggregated; write aggregated: {{replicas: 1}}",
        lambda spec: spec.mode is not Mode.AGGREGATED or spec.aggregated is not None or spec.decode is not None,
    ),
    Rule(
        f"self.mode != '{Mode.DISAGGREGATED}' || !has(self.prefill) || !has(self.decode)"
        " || self.prefill.parallelism.tensor % self.decode.parallelism.tensor == 0"
        " || self.decode.parallelism.tensor % self.prefill.parallelism.tensor == 0",
        "these engines cannot pair; write parallelism.tensor of prefill and decode so that one divides the other",
        _tensors_pair,
        ("prefill.parallelism.tensor", "decode.parallelism.tensor"),
    ),
    *(_whole_prompts_fit(role) for role in Role),
    *spec_rules(CONNECTORS.values()),
)
