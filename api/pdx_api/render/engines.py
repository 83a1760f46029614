"""The renderer: PDDeployment -> engines, as one pure function. Operator and `pdx up` run the same result."""

import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, Final

from pydantic import BaseModel

from pdx_api.connectors.base import EngineWiring, SideService, Site
from pdx_api.defaults import HANDOFF_SECONDS, LEASE_MARGIN_SECONDS, POOL_GIB
from pdx_api.names import Mode, Role
from pdx_api.quantities import quantity
from pdx_api.spec.types import Pool, Spec

_SEARCH_PATH: Final = "PYTHONPATH"
"""A list: what a connector puts on it and what the user does both hold."""


@dataclass(frozen=True, slots=True)
class EngineCommand:
    """One engine as a command line of vLLM."""

    role: Role
    args: tuple[str, ...]
    """What follows `vllm`."""
    env: tuple[tuple[str, str], ...]
    files: tuple[tuple[str, str], ...] = ()
    """Name and content of each file in the site's directory for them."""


def engine_command(
    spec: Spec, role: Role, *, site: Site, listen: str, port: int, shutdown_seconds: int = 0
) -> EngineCommand:
    """The engine of one role at one site; `listen` and `port` are where its HTTP API binds.

    `shutdown_seconds`: how long it may finish open requests when it is stopped; 0 ends them at once, as vLLM does.
    """
    pool = spec.pools()[role]
    wiring = _wiring(spec, role, site)
    env = {"VLLM_HOST_IP": site.host, **wiring.env}
    for variable in (*spec.engine.env, *pool.env):
        env[variable.name] = variable.value
    if (code := wiring.env.get(_SEARCH_PATH)) is not None and env[_SEARCH_PATH] != code:
        env[_SEARCH_PATH] = f"{code}:{env[_SEARCH_PATH]}"
    args = [
        "serve",
        spec.model.location,
        *("--served-model-name", spec.model.served_name or spec.model.name),
        *("--host", listen),
        *("--port", str(port)),
        # D then says how much of a prompt it has not computed: that is how the gateway sees whether KV travels.
        "--enable-prompt-tokens-details",
        *_model_flags(spec),
        *_pool_flags(pool),
        *(("--shutdown-timeout", str(shutdown_seconds)) if shutdown_seconds else ()),
        *wiring.args,
        *spec.engine.args,
        *pool.args,
    ]
    files = tuple(sorted(wiring.files.items()))
    return EngineCommand(role=role, args=tuple(args), env=tuple(sorted(env.items())), files=files)


def side_services(spec: Spec) -> tuple[SideService, ...]:
    """What must run beside the engines."""
    if spec.mode is Mode.AGGREGATED:
        return ()
    config = spec.kv_transfer.config
    return tuple(one for one in spec.connector.services if not one.replaced_by or one.replaced_by not in config)


def service_command(spec: Spec, service: SideService, site: Site) -> tuple[str, ...]:
    """A side service's command line; `site` is where it listens."""
    return service.command(site, pool_bytes(spec) / 2**30, spec.engine.block_size)


def pool_bytes(spec: Spec) -> int:
    """Memory of the pool that a side service holds, or of what each prefill engine gives to one."""
    size = spec.kv_transfer.pool_size
    found = quantity(size) if size is not None else None
    return int(found) if found is not None else POOL_GIB * 2**30


def pairing_revision(spec: Spec) -> str:
    """Name of everything that must be equal on P and D: engines of two revisions never pair.

    vLLM compares version, model string, dtype, KV layout and transfer mode at its handshake
    (`kv_connector/v1/nixl/metadata.py`); what it does not compare but needs is in here too.

    A spec keeps its revision when PDX is upgraded: see `stated`.
    """
    pairing: dict[str, Any] = {
        "mode": spec.mode,
        "model": stated(spec.model, without=("token_secret_ref", "cache")),
        "engine": stated(spec.engine, without=("image_pull_policy", "shutdown_seconds", "api_key_secret_ref")),
        "pools": {
            role: stated(pool, without=("replicas", "resources", "pod_template", "disruption"))
            for role, pool in spec.pools().items()
        },
        "kvTransfer": _kv_transfer(spec),
    }
    return hashlib.sha256(json.dumps(pairing, sort_keys=True).encode()).hexdigest()[:10]


def engine_inputs(spec: Spec, role: Role) -> dict[str, Any]:
    """Everything in the spec that the pods of one role depend on, their number left out."""
    pool = spec.pools()[role]
    return {
        "model": stated(spec.model),
        "engine": stated(spec.engine),
        "pool": stated(pool, without=("replicas", "disruption", "pod_template")),
        "podTemplate": pool.pod_template.overlay() if pool.pod_template else {},
        "kvTransfer": {**_kv_transfer(spec), **_pool_of(spec, role)},
        **_beside(spec),
    }


def stated(part: BaseModel, without: Collection[str] = ()) -> dict[str, Any]:
    """The fields of a part that say something: None, empty lists and empty parts are left out.

    So a field that PDX learns later changes nothing in a spec that does not use it, as long as its default is one of
    those. Where a later field has another default, it must be left out while it has that value.
    """
    fields = {name: _plain(getattr(part, name)) for name in type(part).model_fields if name not in without}
    return {name: value for name, value in fields.items() if value not in (None, [], {})}


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return stated(value)
    return [_plain(entry) for entry in value] if isinstance(value, list) else value


def connector_config(spec: Spec) -> dict[str, Any]:
    """The connector's settings in force: P keeps blocks longer than a hand-off may take; what the user says wins."""
    lease = spec.routing.deadlines.handoff_seconds + int(LEASE_MARGIN_SECONDS)
    return {**spec.connector.keeping(lease), **spec.kv_transfer.config}


def _kv_transfer(spec: Spec) -> dict[str, Any]:
    if spec.mode is Mode.AGGREGATED:
        return {}
    said = {**stated(spec.kv_transfer, without=("pool_size", "pod_template")), "order": spec.order}
    # With the default deadline the lease is vLLM's own: engines that were not told are the same.
    if spec.routing.deadlines.handoff_seconds != HANDOFF_SECONDS:
        said["config"] = connector_config(spec)
    return said


def _beside(spec: Spec) -> dict[str, Any]:
    """What sizes the services in an engine's own pod."""
    if spec.kv_transfer.pool_size is None or not any(service.beside_engine for service in side_services(spec)):
        return {}
    return {"poolSize": spec.kv_transfer.pool_size}


def _pool_of(spec: Spec, role: Role) -> dict[str, Any]:
    """The pool's size, where it is the engines' memory."""
    services = spec.connector.services if role is Role.PREFILL else ()
    if not services or any(service.holds_pool for service in services):
        return {}
    return stated(spec.kv_transfer, without=set(type(spec.kv_transfer).model_fields) - {"pool_size"})


def _wiring(spec: Spec, role: Role, site: Site) -> EngineWiring:
    """What the connector adds, its --kv-transfer-config among the flags."""
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


def _pool_flags(pool: Pool) -> list[str]:
    flags: list[str] = []
    if pool.parallelism.tensor > 1:
        flags += ["--tensor-parallel-size", str(pool.parallelism.tensor)]
    if not pool.chunked_prefill.enabled:
        flags.append("--no-enable-chunked-prefill")
    if pool.chunked_prefill.max_batched_tokens is not None:
        flags += ["--max-num-batched-tokens", str(pool.chunked_prefill.max_batched_tokens)]
    return flags
