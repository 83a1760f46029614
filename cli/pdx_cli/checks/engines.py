"""Checks of running engines: their health, their arguments, and whether P and D match."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from pdx_api.connectors.nixl import CONNECTOR as NIXL
from pdx_api.names import Mode, Role
from pdx_api.verification import Cause
from pdx_api.vllm_metrics import read_metrics, whole_number
from pdx_cli.checks.arguments import KV_FLAG, flag, flags_of, model_argument
from pdx_cli.checks.findings import Finding, Severity, listed, log_of, shortened, wrong
from pdx_cli.sources.observation import Engine, Observation

PAIRED_FLAGS: Final = {
    "--dtype": ("the same dtype", Cause.DTYPE),
    "--kv-cache-dtype": ("the same KV cache dtype", Cause.DTYPE),
    "--block-size": ("the same block size", Cause.BLOCK_SIZE),
}
"""Flag of vLLM that must be equal on P and D -> wording, and the cause if it is not."""


_HYBRID: Final = {"mamba_block_size": "layers with state (Mamba)", "sliding_window": "a sliding window"}
"""Label of vLLM's `cache_config_info` (vllm/config/cache.py) -> what a number there means."""


def starting_run(observation: Observation) -> Iterator[Finding]:
    """A `pdx up` is not serving yet. Until it is, engines and gateway that do not answer are no finding."""
    if (starting := observation.starting) is not None and not observation.dead:
        sentence = (
            f"`pdx up` has been starting for {starting.seconds} s: {starting.healthy} of {starting.engines} engines "
            "are healthy"
        )
        yield Finding(Severity.WAIT, "Starting", sentence, "Wait; `pdx up` itself reports an engine that fails.")


def ended_processes(observation: Observation) -> Iterator[Finding]:
    """A process of a `pdx up` has ended."""
    for process in observation.dead:
        remedy = f"{log_of(process.log_source, process.log)}\nThen start `pdx up` again."
        yield wrong("ProcessEnded", f"The process {process.name} has ended", remedy)


def unhealthy_engines(observation: Observation) -> Iterator[Finding]:
    """A running engine's /health fails."""
    unready = {pod.name for pod in observation.pods if not pod.ready}
    for engine in observation.engines:
        if engine.problem and engine.name not in unready and observation.starting is None:
            sentence = f"The {engine.role} engine {engine.name} is not healthy: {shortened(engine.problem)}"
            yield wrong("EngineUnhealthy", sentence, log_of(engine.log_source, engine.log))


def missing_connector(observation: Observation) -> Iterator[Finding]:
    """A P or D runs without its connector."""
    for engine in observation.engines:
        if lacks_connector(engine) and observation.mode is Mode.DISAGGREGATED:
            who = f"{engine.role} engine {engine.name}"
            yield connector_off(who, f"its command line has no {KV_FLAG}", is_local=observation.is_local)


def lacks_connector(engine: Engine) -> bool:
    """Whether a P's or D's command line lacks the connector."""
    return bool(engine.args) and engine.role is not Role.AGGREGATED and flag(engine.args, KV_FLAG) is None


def connector_off(engine: str, evidence: str, *, is_local: bool) -> Finding:
    """Return the finding of an engine without a connector."""
    undo = (
        "start it again with that flag."
        if is_local
        else "find what rewrites its pod (a policy, a webhook) or what its image does with arguments, undo changes of "
        "the engines' Deployment, and delete the pod."
    )
    return wrong(
        Cause.NO_CONNECTOR,
        f"The {engine} runs without a KV connector ({evidence}), so decode engines compute every prompt again",
        f"It needs {KV_FLAG} as `pdx render` prints it: {undo}",
    )


def changed_arguments(observation: Observation) -> Iterator[Finding]:
    """A pod runs with other flags than the operator wrote.

    Pools whose pods are being replaced are skipped: some of their pods have the previous flags.
    """
    replacing = {(pool.role, pool.revision) for pool in observation.pools if not pool.settled}
    for engine in observation.engines:
        args, rendered = engine.args, engine.rendered
        if not args or rendered is None or (engine.role, engine.revision) in replacing or lacks_connector(engine):
            continue
        actual, expected = flags_of(args), flags_of(rendered)
        names = sorted(name for name in {*actual, *expected} if actual.get(name) != expected.get(name))
        if names:
            changes = listed(f"{name} is {_shown(args, name)} instead of {_shown(rendered, name)}" for name in names)
            who = f"The {engine.role} engine {engine.name}"
            sentence = f"{who} was started with other arguments than the operator wrote: {changes}"
            remedy = "Delete the pod; if the new pod has the same arguments, find what rewrites pods."
            yield wrong("ArgumentsDiffer", sentence, remedy)


def unequal_pairs(observation: Observation) -> Iterator[Finding]:
    """P and D of one revision differ in something that vLLM requires to be equal."""
    engines = sorted((e for e in observation.engines if e.role is not Role.AGGREGATED), key=lambda e: e.revision)
    for _, group in groupby(engines, key=lambda e: e.revision):
        found = list(group)
        prefill = [e for e in found if e.role is Role.PREFILL]
        decode = [e for e in found if e.role is Role.DECODE]
        if prefill and decode:
            for one, others in ((prefill[0], decode), (decode[0], prefill[1:])):
                yield from _other_versions(observation, one, others)
                yield from _differences(one, others)


def unequal_adapters(observation: Observation) -> Iterator[Finding]:
    """An engine lacks a LoRA adapter that another engine of its revision has loaded."""
    for _, group in groupby(sorted(observation.engines, key=lambda e: e.revision), key=lambda e: e.revision):
        found = [engine for engine in group if engine.names]
        for name in sorted({name for engine in found for name in engine.names}):
            has = next(engine for engine in found if name in engine.names)
            for engine in found:
                if name not in engine.names and _model(engine) == _model(has):
                    yield _missing_adapter(name, engine, has)


def hybrid_models(observation: Observation) -> Iterator[Finding]:
    """A model with state or a sliding window over NIXL: KV that is read twice may give wrong text with a 200.

    vLLM reports no error for it (vllm#52234). Its metrics do not show a model that mixes windows with full attention.
    """
    for engine in observation.engines:
        settings = read_metrics(engine.metrics.encode()).cache_settings
        kind = next((text for name, text in _HYBRID.items() if whole_number(settings.get(name)) is not None), "")
        if kind and "Nixl" in (flag(engine.args, KV_FLAG) or ""):
            yield Finding(
                Severity.NOTE,
                "HybridModel",
                f"The model of the {engine.role} engine {engine.name} has {kind}. Over NIXL, vLLM 0.32 may answer 200 "
                "with wrong text if a decode engine reads KV that has been read or freed before (vllm#52234)",
                "PDX sends each set of transfer parameters to one decode engine once. Let no other proxy use these "
                "engines, and watch vllm:nixl_num_failed_transfers_total.",
            )
            return


def _missing_adapter(name: str, engine: Engine, other: Engine) -> Finding:
    effect = {
        Role.PREFILL: "decode engines then compute its prompts",
        Role.DECODE: "requests for it then fail with 404",
        Role.AGGREGATED: "requests for it then fail with 404",
    }[engine.role]
    return wrong(
        "AdapterMissing",
        f"The {engine.role} engine {engine.name} does not serve {name!r}, the {other.role} engine {other.name} does: "
        f"{effect}",
        "Name adapters in spec.model.adapters, which loads them on every engine, and in no `args` or podTemplate.",
    )


def _differences(one: Engine, others: Sequence[Engine]) -> Iterator[Finding]:
    for other in others:
        if (mine := _model(one)) and (theirs := _model(other)) and mine != theirs:
            yield wrong(
                Cause.MODEL,
                f"The {one.role} engine {one.name} serves the model {mine!r}, the {other.role} engine {other.name} "
                f"serves {theirs!r}: vLLM refuses KV from an engine with another model string",
                "Give both the same model: set spec.model, and no model in `args` or podTemplate of one role.",
            )
        yield from _different_flags(one, other)


def _other_versions(observation: Observation, one: Engine, others: Sequence[Engine]) -> Iterator[Finding]:
    """The pairs that the gateway does not use because of their versions."""
    spec = observation.deployment.spec if observation.deployment is not None else None
    connector = spec.connector if spec is not None else NIXL
    any_patch = spec is not None and connector.any_patch(spec.kv_transfer.config)
    mine = connector.wire(one.version or "", any_patch=any_patch)
    for other in others:
        theirs = connector.wire(other.version or "", any_patch=any_patch)
        if mine and theirs and mine != theirs:
            yield wrong(
                Cause.VERSION,
                f"The {one.role} engine {one.name} runs vLLM {one.version}, the {other.role} engine {other.name} "
                f"runs {other.version}: vLLM refuses KV from another version",
                "Give both the same image: set spec.engine.image, and no image in podTemplate of one role.",
            )


def _different_flags(one: Engine, other: Engine) -> Iterator[Finding]:
    for name, (requirement, cause) in PAIRED_FLAGS.items():
        mine, theirs = flag(one.args, name), flag(other.args, name)
        if one.args and other.args and mine != theirs:
            yield wrong(
                cause,
                f"{name} is {mine or 'not set'} on the {one.role} engine {one.name} and {theirs or 'not set'} on "
                f"the {other.role} engine {other.name}: a pair needs {requirement}",
                "Set it in spec.engine, for both roles.",
            )


def _model(engine: Engine) -> str | None:
    return model_argument(engine.args) or engine.model


def _shown(args: tuple[str, ...], name: str) -> str:
    return shortened(flag(args, name) or "unset")
