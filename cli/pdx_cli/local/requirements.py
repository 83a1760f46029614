"""What real engines need on this machine: vLLM, the model, the connector's code, and the programs of side services."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pdx_api.names import Mode
from pdx_api.render.engines import side_services
from pdx_api.spec.model import Model
from pdx_api.spec.types import Spec
from pdx_cli.errors import CommandError, InputError
from pdx_cli.local.engines import ENGINE_EXTRA
from pdx_cli.local.layout import environment

_DEVICES: Final = {"nvidia.com/gpu": "nvidia[0-9]*", "amd.com/gpu": "dri/render*"}
"""Extended resource -> pattern of its files in /dev."""


def check_count(spec: Spec, limit: int) -> None:
    """Refuse a role without engines, and more engines than the machine can run: each is at least one process."""
    counts = {role: pool.initial_replicas for role, pool in spec.pools().items()}
    if empty := next((role for role, count in counts.items() if count == 0), None):
        raise InputError(f"spec.{empty}.replicas is 0; `pdx up` needs at least one engine of each role.")
    count = sum(counts.values())
    if count > limit:
        raise InputError(
            f"This deployment has {count} engines, and `pdx up` starts at most {limit} on this machine; lower "
            f"{' and '.join(f'spec.{role}.replicas' for role in spec.pools())}, or raise --max-engines."
        )


def machine_devices() -> dict[str, int]:
    """Return how many devices this machine has, by the name of their resource in a cluster."""
    return {name: len(list(Path("/dev").glob(pattern))) for name, pattern in _DEVICES.items()}


def missing_devices(spec: Spec, devices: Mapping[str, int]) -> list[str]:
    """Return a sentence for each resource of which the engines request more than the machine's `devices`."""
    requested: dict[str, int] = {}
    for pool in spec.pools().values():
        for name in _DEVICES:
            number = pool.resources.limits.get(name, pool.resources.requests.get(name, 0))
            requested[name] = requested.get(name, 0) + int(number) * pool.initial_replicas
    return [
        f"The engines request {number} {name}, and this machine has {devices.get(name) or 'none'}: they will probably "
        "fail while they load. Use --engine sim, or examples/tiny-cpu.yaml, or lower the replicas."
        for name, number in requested.items()
        if number > devices.get(name, 0)
    ]


def missing_variables(spec: Spec, environment: Mapping[str, str]) -> list[str]:
    """Return a sentence for each `valueFrom` of an engine's variable that the environment does not have."""
    pools = {f"spec.{role}": pool.env for role, pool in spec.pools().items()}
    return [
        f"{where}.env: {each.name} is not set, so the engines start without it. Its valueFrom is an object of a "
        f"cluster; set {each.name} in the environment of `pdx up`."
        for where, env in {"spec.engine": spec.engine.env, **pools}.items()
        for each in env
        if each.value_from is not None and each.name not in environment
    ]


def check_vllm(spec: Spec) -> None:
    """Refuse a run of real engines if vLLM, the model or the connector's code is missing on this machine.

    Raises InputError for a path that the user has to correct, and CommandError for a program to install.
    """
    if shutil.which("vllm", path=environment(os.environ, {})["PATH"]) is None:
        raise CommandError(f"vLLM is not installed. {ENGINE_EXTRA} Or use simulated engines: --engine sim.")
    _check_code(spec)
    _check_programs(spec)
    if (path := _model_path(spec.model)) is not None and not (Path(path) / "config.json").is_file():
        raise InputError(f"There is no model at {path}; create a tiny one with `pdx tiny-model {path}`.")


def _model_path(model: Model) -> str | None:
    """Return the model's directory on this machine; None if vLLM downloads it."""
    if model.source is None:
        return model.name if model.name.startswith(("/", ".")) else None
    if model.source.path is None:
        raise InputError(
            "spec.model.source.persistentVolumeClaim is a volume of a cluster; name a directory here: "
            "--set spec.model.source='{path: /models/qwen}'."
        )
    return model.source.path


def _check_code(spec: Spec) -> None:
    custom = spec.kv_transfer.custom if spec.mode is Mode.DISAGGREGATED else None
    if custom is None or custom.code is None:
        return
    where = "spec.kvTransfer.custom.code"
    if custom.code.directory is None:
        raise InputError(
            f"{where}.configMap is an object of a cluster; name a directory here: --set {where}.directory=my-connector."
        )
    if not Path(custom.code.directory).is_dir():
        raise InputError(f"{where}.directory: {custom.code.directory} is not a directory; name one on this machine.")


def _check_programs(spec: Spec) -> None:
    for program in dict.fromkeys(service.program for service in side_services(spec)):
        if shutil.which(program, path=environment(os.environ, {})["PATH"]) is None:
            raise CommandError(
                f"Connector {spec.connector.name} needs the program {program}, which is not installed; run "
                f"`make install-{program.partition('_')[0]}`, or use simulated engines with --engine sim."
            )
