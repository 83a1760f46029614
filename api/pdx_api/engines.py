"""The renderer: PDDeployment -> engines, as one pure function. Operator and `pdx up` run the same result."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from pdx_api.connectors.base import Site
from pdx_api.names import Mode, Role
from pdx_api.types import Pool, Spec


@dataclass(frozen=True, slots=True)
class EngineCommand:
    """One engine as a command line of vLLM."""

    role: Role
    args: tuple[str, ...]
    """What follows `vllm`."""
    env: tuple[tuple[str, str], ...]


def engine_command(spec: Spec, role: Role, *, site: Site, listen: str, port: int) -> EngineCommand:
    """The engine of one role at one site; `listen` and `port` are where its HTTP API binds."""
    pool = spec.pools()[role]
    wiring_args, wiring_env = _wiring(spec, role, site)
    env = {"VLLM_HOST_IP": site.host, **wiring_env}
    for variable in (*spec.engine.env, *pool.env):
        env[variable.name] = variable.value
    args = [
        "serve",
        spec.model.location,
        *("--served-model-name", spec.model.served_name or spec.model.name),
        *("--host", listen),
        *("--port", str(port)),
        *_model_flags(spec),
        *_pool_flags(pool),
        *wiring_args,
        *spec.engine.args,
        *pool.args,
    ]
    return EngineCommand(role=role, args=tuple(args), env=tuple(sorted(env.items())))


def pairing_revision(spec: Spec) -> str:
    """Name of everything that must be equal on P and D: engines of two revisions never pair.

    vLLM compares version, model string, dtype, KV layout and transfer mode at its handshake
    (`kv_connector/v1/nixl/metadata.py`); what it does not compare but needs is in here too.
    """
    pools = spec.pools()
    pairing: dict[str, Any] = {
        "mode": spec.mode,
        "model": spec.model.model_dump(mode="json"),
        "engine": spec.engine.model_dump(mode="json"),
        "parallelism": {role: pool.parallelism.model_dump(mode="json") for role, pool in pools.items()},
        "args": {role: pool.args for role, pool in pools.items()},
        "env": {role: [variable.model_dump() for variable in pool.env] for role, pool in pools.items()},
        "chunkedPrefill": {role: pool.chunked_prefill.model_dump(mode="json") for role, pool in pools.items()},
    }
    if spec.mode is Mode.DISAGGREGATED:
        pairing["kvTransfer"] = {**spec.kv_transfer.model_dump(mode="json"), "order": spec.order}
    return hashlib.sha256(json.dumps(pairing, sort_keys=True).encode()).hexdigest()[:10]


def _wiring(spec: Spec, role: Role, site: Site) -> tuple[list[str], dict[str, str]]:
    if role is Role.AGGREGATED:
        return [], {}
    wiring = spec.connector.engine(role, spec.order, site, spec.kv_transfer.config)
    transfer = {**wiring.kv_transfer_config, "kv_load_failure_policy": spec.kv_transfer.on_load_failure.lower()}
    return ["--kv-transfer-config", json.dumps(transfer)], dict(wiring.env)


def _model_flags(spec: Spec) -> list[str]:
    engine = spec.engine
    flags = {
        "--revision": spec.model.revision,
        "--dtype": engine.dtype if engine.dtype != "auto" else None,
        "--max-model-len": engine.max_model_len,
        "--kv-cache-dtype": engine.kv_cache_dtype,
        "--block-size": engine.block_size,
    }
    return [part for flag, value in flags.items() if value is not None for part in (flag, str(value))]


def _pool_flags(pool: Pool) -> list[str]:
    flags: list[str] = []
    if pool.parallelism.tensor > 1:
        flags += ["--tensor-parallel-size", str(pool.parallelism.tensor)]
    if not pool.chunked_prefill.enabled:
        flags.append("--no-enable-chunked-prefill")
    if pool.chunked_prefill.max_batched_tokens is not None:
        flags += ["--max-num-batched-tokens", str(pool.chunked_prefill.max_batched_tokens)]
    return flags
