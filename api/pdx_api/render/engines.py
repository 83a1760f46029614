"""Render a PDDeployment into command lines of engines and side services, and into its pairing revision. Pure."""

import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

from pydantic import BaseModel

from pdx_api.connectors.base import EngineWiring, SideService, Site
from pdx_api.defaults import LEASE_MARGIN_SECONDS, POOL_GIB
from pdx_api.names import ENGINE_CONTAINER, Mode, Role
from pdx_api.otlp import TRACES_FLAG, engine_variables, traces_url
from pdx_api.quantities import quantity
from pdx_api.rules.spec_rules import SHARED_VARIABLES
from pdx_api.settings.gateway import Deadlines
from pdx_api.spec.model import MOST_LORAS, Model
from pdx_api.spec.overlay import PodTemplate
from pdx_api.spec.pods import SEARCH_PATH, EnvSource
from pdx_api.spec.types import Pool, Spec

_NOT_PAIRING: Final = (
    *("version", "image_pull_policy", "drain_seconds", "startup_seconds", "api_key_secret_ref", "pod_template"),
)
"""Fields of `engine` that may differ within a pair."""
_DIGITS: Final = 6
"""Of the largest number of sequences that counts as known."""


@dataclass(frozen=True, slots=True)
class EngineCommand:
    """One engine as a command line of vLLM."""

    role: Role
    args: tuple[str, ...]
    """The arguments of `vllm`."""
    env: tuple[tuple[str, str], ...]
    files: tuple[tuple[str, str], ...] = ()
    """Name and content of each file in `Site.files`."""
    env_from: tuple[tuple[str, EnvSource], ...] = ()
    """Further variables, whose values a cluster provides."""


def engine_command(
    spec: Spec, role: Role, *, site: Site, listen: str, port: int, shutdown_seconds: int = 0
) -> EngineCommand:
    """The engine of one role at one site; its HTTP API binds `listen` and `port`.

    `shutdown_seconds`: how long it may finish open requests when it is stopped. 0 ends them at once, as vLLM does.
    """
    pool = spec.pools()[role]
    wiring = _wiring(spec, role, site)
    variables = {variable.name: variable for variable in (*spec.engine.env, *pool.env)}
    sources = {name: each.value_from for name, each in variables.items() if each.value_from is not None}
    tracing = spec.observability.tracing
    traced = {} if tracing is None else engine_variables(role)
    ours = {"VLLM_HOST_IP": site.host, **traced, **wiring.env}
    env = {name: value for name, value in ours.items() if name not in sources}
    env |= {name: each.value for name, each in variables.items() if each.value is not None}
    if (code := wiring.env.get(SEARCH_PATH)) is not None and env[SEARCH_PATH] != code:
        env[SEARCH_PATH] = f"{code}:{env[SEARCH_PATH]}"
    args = [
        "serve",
        spec.model.location,
        *("--served-model-name", spec.model.served_name or spec.model.name),
        *("--host", listen),
        *("--port", str(port)),
        # D then reports how much of a prompt it has not computed, which shows the gateway whether KV moves.
        "--enable-prompt-tokens-details",
        *_model_flags(spec),
        *_lora_flags(spec.model),
        *_pool_flags(pool),
        *(("--shutdown-timeout", str(shutdown_seconds)) if shutdown_seconds else ()),
        *(() if tracing is None else (TRACES_FLAG, traces_url(tracing.endpoint))),
        *wiring.args,
        *spec.engine.args,
        *pool.args,
    ]
    files = tuple(sorted(wiring.files.items()))
    return EngineCommand(role, tuple(args), tuple(sorted(env.items())), files, tuple(sorted(sources.items())))


def side_services(spec: Spec) -> tuple[SideService, ...]:
    """The side services that the engines need."""
    if spec.mode is Mode.AGGREGATED:
        return ()
    config = spec.kv_transfer.config
    return tuple(one for one in spec.connector.services if not one.replaced_by or one.replaced_by not in config)


def service_command(spec: Spec, service: SideService, site: Site) -> tuple[str, ...]:
    """A side service's command line; `site` is its address."""
    return service.command(site, pool_bytes(spec) / 2**30, spec.engine.block_size)


def pool_bytes(spec: Spec) -> int:
    """Memory of the pool of a side service, or of each prefill engine's part of the pool."""
    size = spec.kv_transfer.pool_size
    found = quantity(size) if size is not None else None
    return int(found) if found is not None else POOL_GIB * 2**30


def max_sequences(spec: Spec, role: Role) -> int:
    """How many requests each rank of a role's engines runs at a time, by the last `--max-num-seqs`; 0: not known.

    vLLM's default depends on the device, so only the engine knows it.
    """
    args = (*spec.engine.args, *spec.pools()[role].args, "")
    found = 0
    for arg, following in pairwise(args):
        name, _, value = arg.partition("=")
        if name.replace("_", "-") == "--max-num-seqs":
            text = value or following
            found = int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else 0
    return found


def wiring_number(spec: Spec) -> int:
    """The wiring number of the spec's connector; 1 without one."""
    return 1 if spec.mode is Mode.AGGREGATED else spec.connector.wiring


def pairing_revision(spec: Spec, *, wiring: int | None = None) -> str:
    """Hash of everything that must be equal on P and D: engines of two revisions never pair.

    vLLM compares version, model string, dtype, KV layout and transfer mode at its handshake
    (`kv_connector/v1/nixl/metadata.py`). The hash also contains what vLLM needs to be equal and does not compare.

    A spec keeps its revision when PDX is upgraded: see `stated`. `wiring` is the wiring number of the engines; None:
    this version's.
    """
    number = wiring_number(spec) if wiring is None else wiring
    pairing: dict[str, Any] = {
        "mode": spec.mode,
        "model": stated(spec.model, without=("token_secret_ref", "cache")),
        "engine": stated(spec.engine, without=_NOT_PAIRING),
        **_pairing_overlay(spec.engine.pod_template),
        "pools": {
            role: {
                **stated(pool, without=("replicas", "resources", "pod_template", "disruption")),
                **_pairing_overlay(pool.pod_template),
            }
            for role, pool in spec.pools().items()
        },
        "kvTransfer": _kv_transfer(spec),
        **({"wiring": number} if number > 1 else {}),
    }
    return hashlib.sha256(json.dumps(pairing, sort_keys=True).encode()).hexdigest()[:10]


def _pairing_overlay(template: PodTemplate | None) -> dict[str, Any]:
    """What the overlay changes of the engine's image and of the variables that P and D must share."""
    overlay = (template.overlay() if template else {}).get("spec") or {}
    engine: dict[str, Any] = next(
        (each for each in overlay.get("containers") or () if each.get("name") == ENGINE_CONTAINER), {}
    )
    env = engine.get("env")
    variables = [each for each in (env if isinstance(env, list) else ()) if _is_shared(each)]
    found = {"image": engine.get("image"), "env": variables}
    return {"podTemplate": {name: value for name, value in found.items() if value}} if any(found.values()) else {}


def _is_shared(variable: Any) -> bool:
    return isinstance(variable, dict) and variable.get("name") in SHARED_VARIABLES


def engine_inputs(spec: Spec, role: Role) -> dict[str, Any]:
    """Everything in the spec that the pods of one role depend on, except their number."""
    pool = spec.pools()[role]
    return {
        "model": stated(spec.model),
        "engine": stated(spec.engine, without=("version", "pod_template")),
        **({"enginePodTemplate": spec.engine.pod_template.overlay()} if spec.engine.pod_template else {}),
        "pool": stated(pool, without=("replicas", "disruption", "pod_template")),
        "podTemplate": pool.pod_template.overlay() if pool.pod_template else {},
        "kvTransfer": {**_kv_transfer(spec), **_pool_of(spec, role)},
        **_sidecar_pool(spec),
        **({} if (tracing := spec.observability.tracing) is None else {"traces": tracing.endpoint}),
    }


def service_inputs(spec: Spec, service: SideService) -> dict[str, Any]:
    """Everything in the spec that the pod of a side service depends on."""
    overlay = spec.kv_transfer.pod_template
    return {
        "name": service.name,
        "engine": {
            "image": spec.engine.image,
            "imagePullPolicy": spec.engine.image_pull_policy,
            "blockSize": spec.engine.block_size,
            "env": [stated(variable) for variable in spec.engine.env],
        },
        **({"poolBytes": pool_bytes(spec)} if service.holds_pool else {}),
        "podTemplate": overlay.overlay() if overlay else {},
    }


def stated(part: BaseModel, without: Collection[str] = ()) -> dict[str, Any]:
    """The fields of a part without None, empty lists and empty parts.

    So a field that a later version adds changes nothing in a spec that does not use it, if its default is one of
    those. A later field with another default must be excluded here while it has that value.
    """
    fields = {name: _plain(getattr(part, name)) for name in type(part).model_fields if name not in without}
    return {name: value for name, value in fields.items() if value not in (None, [], (), {})}


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return stated(value)
    return [_plain(entry) for entry in value] if isinstance(value, list | tuple) else value


def connector_config(spec: Spec) -> dict[str, Any]:
    """The connector's settings in force: a lease that is longer than a hand-off, overridden by the user's settings."""
    lease = int(spec.routing.deadlines.handoff_seconds + LEASE_MARGIN_SECONDS)
    return {**spec.connector.lease_config(lease), **spec.kv_transfer.config}


def _kv_transfer(spec: Spec) -> dict[str, Any]:
    if spec.mode is Mode.AGGREGATED:
        return {}
    fields = {**stated(spec.kv_transfer, without=("pool_size", "pod_template", "verification")), "order": spec.order}
    # With the default deadline the lease is vLLM's default, so it changes no revision.
    if spec.routing.deadlines.handoff_seconds != Deadlines.handoff_seconds:
        fields["config"] = connector_config(spec)
    return fields


def _sidecar_pool(spec: Spec) -> dict[str, Any]:
    """The pool's size, if a sidecar holds the pool."""
    if spec.kv_transfer.pool_size is None or not any(service.is_sidecar for service in side_services(spec)):
        return {}
    return {"poolSize": spec.kv_transfer.pool_size}


def _pool_of(spec: Spec, role: Role) -> dict[str, Any]:
    """The pool's size, if the pool is memory of the prefill engines."""
    services = spec.connector.services if role is Role.PREFILL else ()
    if not services or any(service.holds_pool for service in services):
        return {}
    return stated(spec.kv_transfer, without=set(type(spec.kv_transfer).model_fields) - {"pool_size"})


def _wiring(spec: Spec, role: Role, site: Site) -> EngineWiring:
    """The connector's wiring, with --kv-transfer-config among the flags."""
    if role is Role.AGGREGATED:
        return EngineWiring({})
    wiring = spec.connector.engine(role, spec.order, site, connector_config(spec))
    transfer = dict(wiring.kv_transfer_config)
    transfer.setdefault("kv_load_failure_policy", spec.kv_transfer.on_load_failure.lower())
    return replace(wiring, args=("--kv-transfer-config", json.dumps(transfer), *wiring.args))


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


def _lora_flags(model: Model) -> list[str]:
    if not model.adapters:
        return []
    rank, most = (model.lora.max_rank, model.lora.max_loaded) if model.lora else (None, None)
    loaded = min(len(model.adapters), MOST_LORAS) if most is None else most
    return [
        "--enable-lora",
        *("--max-loras", str(loaded)),
        *(("--max-lora-rank", str(rank)) if rank is not None else ()),
        *("--lora-modules", *(f"{adapter.name}={adapter.path}" for adapter in model.adapters)),
    ]


def _pool_flags(pool: Pool) -> list[str]:
    flags: list[str] = []
    if pool.parallelism.tensor > 1:
        flags += ["--tensor-parallel-size", str(pool.parallelism.tensor)]
    if (pool.parallelism.pipeline or 1) > 1:
        flags += ["--pipeline-parallel-size", str(pool.parallelism.pipeline)]
    if pool.parallelism.expert:
        flags.append("--enable-expert-parallel")
    if pool.parallelism.data is not None and pool.parallelism.data > 1:
        flags += ["--data-parallel-size", str(pool.parallelism.data)]
    if not pool.chunked_prefill.enabled:
        flags.append("--no-enable-chunked-prefill")
    if pool.chunked_prefill.max_batched_tokens is not None:
        flags += ["--max-num-batched-tokens", str(pool.chunked_prefill.max_batched_tokens)]
    return flags
