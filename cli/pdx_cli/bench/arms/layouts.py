"""The arms of a comparison and their objects: engines aggregated with several chunk sizes, and split. Pure."""

import copy
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pdx_api.names import Mode
from pdx_api.quantities import quantity
from pdx_api.spec.types import Pool, Spec
from pdx_api.vllm.versions import abilities, stated
from pdx_cli.bench.analysis.arms import Arm
from pdx_cli.errors import InputError

INFIX: Final = "-bench-"
"""Between the name of the user's object and what makes an arm's name its own."""
CHUNKS: Final = (512, 2048)
"""Tokens in one step of the aggregated arms, by default."""
INTERVALS: Final = (4,)
"""Steps from one with prompts to the next, of one more aggregated arm, where vLLM can space prompts."""
_INTERVAL: Final = "--prefill-schedule-interval"
_MOST_NAME: Final = 41


@dataclass(frozen=True, slots=True)
class Wish:
    """Which arms are compared."""

    devices: int
    """How many devices each arm may use."""
    chunks: tuple[int, ...] = CHUNKS
    intervals: tuple[int, ...] = ()
    """Empty: `INTERVALS`, if the engines' version of vLLM can space prompts."""
    ratios: tuple[tuple[int, int], ...] = ()
    """Empty: those that the devices allow."""
    above: int = 0
    """If not 0, each ratio also with prompts of fewer tokens whole."""


def devices_of(pool: Pool) -> int:
    """Return the devices of one engine: its extended resources, or else what its parallelism needs."""
    amounts = {**pool.resources.requests, **pool.resources.limits}
    found = [int(value) for name, each in amounts.items() if "/" in name and (value := quantity(each)) is not None]
    parallelism = pool.parallelism
    return max([*found, 0]) or parallelism.tensor * (parallelism.pipeline or 1) * (parallelism.data or 1)


def devices_in_use(spec: Spec) -> int:
    """Return the devices of all engines of an object."""
    return sum(devices_of(pool) * pool.initial_replicas for pool in spec.pools().values())


def arms_of(spec: Spec, wish: Wish) -> list[Arm]:
    """Return the arms; raises InputError if the devices allow no pair."""
    if spec.prefill is None or spec.decode is None:
        raise InputError(
            "--compare needs spec.prefill and spec.decode, also in mode Aggregated: they describe the pair."
        )
    devices = wish.devices
    prefill, decode = devices_of(spec.prefill), devices_of(spec.decode)
    ratios = wish.ratios or _ratios(spec, devices)
    for p, d in ratios:
        if p * prefill + d * decode > devices:
            needed = p * prefill + d * decode
            raise InputError(
                f"Ratio {p}:{d} needs {needed} devices and each arm has {devices}; set --devices {needed}."
            )
    if not ratios:
        raise InputError(
            f"{devices} devices allow no pair: a prefill engine needs {prefill} and a decode engine {decode}; "
            "raise --devices."
        )
    whole = devices // devices_of(_aggregated(spec))
    found = [Arm(f"aggregated {whole}, chunks of {chunk}", aggregated=whole, chunk=chunk) for chunk in wish.chunks]
    found += _spaced(whole, max(wish.chunks), _intervals(spec, wish))
    for p, d in ratios:
        yours = (p, d) == (
            spec.prefill.initial_replicas,
            spec.decode.initial_replicas,
        ) and spec.mode is Mode.DISAGGREGATED
        above = spec.routing.disaggregate_above_tokens
        found.append(Arm(f"P:D {p}:{d}", True, p, d, above=above, yours=yours))
        if wish.above and wish.above != above:
            found.append(Arm(f"P:D {p}:{d} above {wish.above}", True, p, d, above=wish.above))
    return found


def _spaced(whole: int, chunk: int, intervals: Iterable[int]) -> Iterator[Arm]:
    """Prompts in few steps are computed in large chunks: others would make them wait for nothing."""
    for interval in intervals:
        name = f"aggregated {whole}, chunks of {chunk} every {interval} steps"
        yield Arm(name, aggregated=whole, chunk=chunk, interval=interval)


def _intervals(spec: Spec, wish: Wish) -> tuple[int, ...]:
    version = stated(spec.engine.version, spec.engine.image)
    can = abilities(version).spaces_prompts
    ranks = _aggregated(spec).parallelism.data or 1
    if version and wish.intervals and not can and ranks == 1:
        raise InputError(
            f"vLLM {version} ignores --prefill-schedule-interval without data parallelism; leave --intervals out, or "
            "use vLLM 0.33."
        )
    return wish.intervals or (INTERVALS if can else ())


def _ratios(spec: Spec, devices: int) -> tuple[tuple[int, int], ...]:
    """The object's own ratio, and those that leave no device idle: at a quarter, a half and three quarters for P."""
    assert spec.prefill is not None
    assert spec.decode is not None
    prefill, decode = devices_of(spec.prefill), devices_of(spec.decode)
    found: dict[tuple[int, int], None] = {}
    own = (spec.prefill.initial_replicas, spec.decode.initial_replicas)
    if own[0] * prefill + own[1] * decode <= devices and min(own) > 0:
        found[own] = None
    for share in (0.25, 0.5, 0.75):
        p = max(1, round(share * devices / prefill))
        d = (devices - p * prefill) // decode
        if d >= 1:
            found[p, d] = None
    return tuple(found)


def _aggregated(spec: Spec) -> Pool:
    return spec.aggregated or spec.decode or Pool()


def arm_name(name: str, arm: Arm) -> str:
    """Return the name of an arm's object, at most as long as a name may be."""
    own = (
        f"a{arm.chunk or arm.aggregated}{f'-{arm.interval}' if arm.interval else ''}"
        if not arm.split
        else f"p{arm.prefill}d{arm.decode}{f'-{arm.above}' if arm.above else ''}"
    )
    room = _MOST_NAME - len(INFIX) - len(own)
    if len(name) > room:
        name = f"{name[: room - 5].rstrip('-')}-{hashlib.sha256(name.encode()).hexdigest()[:4]}"
    return f"{name}{INFIX}{own}"


def _unspaced(args: Iterable[str]) -> Iterator[str]:
    """Flags without the user's own interval, which no arm would name."""
    before = ""
    for each in args:
        if _INTERVAL not in (before, each.partition("=")[0]):
            yield each
        before = each


def _make_whole(spec: dict[str, Any], arm: Arm) -> None:
    """Give a copied spec the aggregated engines of an arm."""
    engine, pool = spec.get("engine") or {}, dict(spec.get("aggregated") or spec.get("decode") or {})
    for part in (engine, pool):
        if part.get("args"):
            part["args"] = [*_unspaced(part["args"])]
    if arm.interval:
        pool["args"] = [*(pool.get("args") or ()), _INTERVAL, str(arm.interval)]
    chunked = {**(pool.get("chunkedPrefill") or {})}
    if arm.chunk is not None:
        chunked["maxBatchedTokens"] = arm.chunk
    spec["aggregated"] = {**pool, "replicas": arm.aggregated, "chunkedPrefill": chunked}


def object_of(
    body: Mapping[str, Any], arm: Arm, labels: Mapping[str, str], annotations: Mapping[str, str]
) -> dict[str, Any]:
    """Return the object of an arm: the user's spec with the arm's mode and replicas, under the arm's own name."""
    metadata = body["metadata"]
    spec = copy.deepcopy(dict(body["spec"]))
    spec["mode"] = str(Mode.DISAGGREGATED if arm.split else Mode.AGGREGATED)
    if arm.split:
        spec["prefill"] = {**(spec.get("prefill") or {}), "replicas": arm.prefill}
        spec["decode"] = {**(spec.get("decode") or {}), "replicas": arm.decode}
        spec["routing"] = {**(spec.get("routing") or {}), "disaggregateAboveTokens": arm.above}
        if not arm.above:
            del spec["routing"]["disaggregateAboveTokens"]
    else:
        _make_whole(spec, arm)
    namespace = {"namespace": metadata["namespace"]} if metadata.get("namespace") else {}
    return {
        "apiVersion": body.get("apiVersion", "pdx.dev/v1alpha1"),
        "kind": body.get("kind", "PDDeployment"),
        "metadata": {
            "name": arm_name(metadata["name"], arm),
            **namespace,
            **({"labels": dict(labels)} if labels else {}),
            **({"annotations": dict(annotations)} if annotations else {}),
        },
        "spec": spec,
    }
