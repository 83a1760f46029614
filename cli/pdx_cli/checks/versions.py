"""Checks of the engines' versions of vLLM, and of variables that change what an engine has."""

from collections.abc import Iterator
from itertools import groupby
from typing import Final

from pdx_api.vllm import versions
from pdx_api.vllm.assumptions import OPEN, differences
from pdx_cli.checks.findings import Finding, Severity, listed
from pdx_cli.sources.observation import Observation

RUST_FRONTEND: Final = "VLLM_USE_RUST_FRONTEND"
_OFF: Final = ("", "0")


def unchecked_versions(observation: Observation) -> Iterator[Finding]:
    """Engines run a version that PDX has not checked, or one with effects that PDX does not handle."""
    found = sorted((versions.minor(engine.version or ""), engine.name) for engine in observation.engines)
    for version, engines in groupby(found, key=lambda pair: pair[0]):
        names = listed(name for _, name in engines)
        if text := versions.warning(version):
            yield Finding(Severity.NOTE, "VersionUnchecked", f"{names}: {text}")
        like = versions.abilities(version).version
        effects = [each.effect for each in differences() if each.version == like and each.effect.startswith(OPEN)]
        for effect in dict.fromkeys(effects):
            sentence = f"{names}: vLLM {version} differs from what PDX expects. {effect.removeprefix(OPEN).strip()}"
            yield Finding(Severity.NOTE, "VersionDiffers", sentence)


def misstated_versions(observation: Observation) -> Iterator[Finding]:
    """The engines run another version than `engine.version`, or than the image's tag, which need not be vLLM's."""
    if observation.deployment is None:
        return
    engine = observation.deployment.spec.engine
    stated = versions.stated(engine.version, engine.image)
    runs = {versions.minor(one.version or "") for one in observation.engines}
    if stated and len(runs) == 1 and runs.isdisjoint(("", stated)):  # engines that differ are `unequal_pairs`
        one, by_tag = observation.engines[0], engine.version is None
        yield Finding(
            Severity.NOTE if by_tag else Severity.WRONG,
            "VersionMisstated",
            f"{'The tag of its image' if by_tag else 'The object'} states vLLM {stated}, the {one.role} engine "
            f"{one.name} runs {one.version}. PDX has checked the object for {stated}",
            f"{'Set' if by_tag else 'Correct'} spec.engine.version.",
        )


def rust_frontends(observation: Observation) -> Iterator[Finding]:
    """Engines use vLLM's server in Rust, which lacks some of what the gateway's users may have."""
    spec = observation.deployment.spec if observation.deployment else None
    if spec is None:
        return
    env = (*spec.engine.env, *(each for pool in spec.pools().values() for each in pool.env))
    if any(each.name == RUST_FRONTEND and (each.value or "") not in _OFF for each in env):
        traces = " Traces of requests end at the gateway." if spec.observability.tracing else ""
        yield Finding(
            Severity.NOTE,
            "RustFrontend",
            f"{RUST_FRONTEND} is set. PDX has not been tested with vLLM's server in Rust. It has no traces and no "
            f"/v1/embeddings, and it refuses bodies above 32 MiB.{traces}",
            f"Leave out {RUST_FRONTEND}, or compare docs/versions.md.",
        )
