"""A run as JSON: everything that the report and the verdict need. Pure; the reverse of `document` is `read`."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Any, Final, get_args, get_origin

from pdx_api.vllm_metrics import Mean
from pdx_cli.bench.analysis.arms import Arm, ArmResult, Sample
from pdx_cli.bench.analysis.bottleneck import Bottleneck
from pdx_cli.bench.analysis.counters import EngineTotals, as_numbers
from pdx_cli.bench.analysis.steps import Slo, StepResult
from pdx_cli.bench.analysis.verdict import Verdict, judge
from pdx_cli.bench.statistics import Summary

FORMAT: Final = 1
"""Version of the document."""


class DocumentError(ValueError):
    """A file is not a result of `pdx bench`; the text is one sentence."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of `pdx bench`."""

    name: str
    """Of the deployment, or the URL."""
    date: str
    """ISO 8601."""
    version: str
    """PDX's."""
    model: str
    load: str
    """Of which requests, for the user."""
    slo: Slo
    step_seconds: float
    warm_up: float
    repeats: int
    seed: int
    results: tuple[ArmResult, ...]
    devices: int = 0
    """Devices of each arm; 0: unknown."""
    has_phases: bool = True
    """False for a server that is no PDX: only TTFT and TPOT are known."""
    partial: bool = False
    """Whether it was interrupted."""

    @property
    def verdict(self) -> Verdict:
        """What the results mean."""
        return judge(self.results, self.slo)


def document(run: Run) -> dict[str, Any]:
    """Return the JSON of a run."""
    verdict = run.verdict
    plain = {
        each.name: getattr(run, each.name) for each in dataclasses.fields(run) if each.name not in ("slo", "results")
    }
    found = {
        "format": FORMAT,
        **plain,
        "slo": {"ttft": run.slo.ttft, "tpot": run.slo.tpot},
        "verdict": {
            "kind": str(verdict.kind),
            "winner": verdict.winner,
            "factor": verdict.factor,
            "sentences": list(verdict.sentences),
        },
        "arms": [_arm(each) for each in run.results],
    }
    finite: dict[str, Any] = _finite(found)
    return finite


def read(body: Any, source: object = "The file") -> Run:
    """Read a document; raises DocumentError, whose sentence names the source."""
    try:
        if body["format"] != FORMAT:
            raise DocumentError(f"{source} has format {body['format']}, and this version of PDX reads {FORMAT}.")
        names = [each.name for each in dataclasses.fields(Run) if each.name not in ("slo", "results")]
        run = Run(
            **{name: body[name] for name in names},
            slo=Slo(**body["slo"]),
            results=tuple(_read_arm(each) for each in body["arms"]),
        )
        if not _conforms(run, Run):
            raise TypeError("a value has another type than its field")
        return run
    except DocumentError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DocumentError(f"{source} is not a result of `pdx bench`; name its result.json.") from error


def _conforms(value: Any, kind: Any) -> bool:
    """Whether a value, with all that it contains, has the type of its annotation."""
    origin, args = get_origin(kind), get_args(kind)
    if dataclasses.is_dataclass(kind):
        return all(_conforms(getattr(value, each.name), each.type) for each in dataclasses.fields(kind))
    if origin is UnionType:
        return any(_conforms(value, each) for each in args)
    if origin is Mapping:
        return isinstance(value, Mapping) and all(_conforms(each, args[1]) for each in value.values())
    if origin is tuple and args[-1] is not Ellipsis:
        return len(value) == len(args) and all(map(_conforms, value, args))
    if origin in (tuple, Sequence):
        return all(_conforms(each, args[0]) for each in value)
    return isinstance(value, int | float if kind is float else kind)


def _arm(result: ArmResult) -> dict[str, Any]:
    return {
        **dataclasses.asdict(result.arm),
        "goodputs": list(result.goodputs),
        "goodput": result.goodput,
        "spread": result.spread,
        "valid": result.is_valid,
        "bottleneck": str(result.bottleneck),
        "sharesCores": result.shares_cores,
        "problem": result.problem,
        "counters": {"prefill": as_numbers(result.prefill), "decode": as_numbers(result.decode)},
        "steps": [{**dataclasses.asdict(step), "share": step.share} for step in result.steps],
        "samples": [[each.prompt, each.ttft, each.tpot] for each in result.samples],
        "timeline": {name: [list(each) for each in points] for name, points in result.timeline.items()},
    }


def _read_arm(body: Mapping[str, Any]) -> ArmResult:
    arm = Arm(**{each.name: body[each.name] for each in dataclasses.fields(Arm)})
    return ArmResult(
        arm=arm,
        goodputs=tuple(body["goodputs"]),
        steps=tuple(_read_step(each) for each in body["steps"]),
        bottleneck=Bottleneck(body["bottleneck"]),
        prefill=_read_totals(body["counters"]["prefill"]),
        decode=_read_totals(body["counters"]["decode"]),
        samples=tuple(Sample(prompt, _number(ttft), _number(tpot)) for prompt, ttft, tpot in body["samples"]),
        shares_cores=body["sharesCores"],
        problem=body["problem"],
        timeline={name: tuple((a, b, c) for a, b, c in points) for name, points in body["timeline"].items()},
    )


def _read_step(body: Mapping[str, Any]) -> StepResult:
    fields = {each.name: body[each.name] for each in dataclasses.fields(StepResult)}
    for name in ("ttft", "tpot", "itl", "latency"):
        count, *values = (body[name][each.name] for each in dataclasses.fields(Summary))
        fields[name] = Summary(count, *map(_missing, values))
    fields["late_p99"] = _missing(body["late_p99"])
    fields["phases"] = {name: _missing(value) for name, value in body["phases"].items()}
    return StepResult(**fields)


def _read_totals(body: Mapping[str, Any]) -> EngineTotals:
    def value(each: Any) -> Any:
        return Mean(each["sum"], each["count"]) if isinstance(each, Mapping) else _missing(each)

    return EngineTotals(**{each.name: value(body[each.name]) for each in dataclasses.fields(EngineTotals)})


def _number(value: float | None) -> float:
    """A failed request's time is infinite, for which JSON has null."""
    return math.inf if value is None else value


def _missing(value: float | None) -> float:
    return math.nan if value is None else value


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_finite(each) for each in value]
    if isinstance(value, float):
        return round(value, 7) if math.isfinite(value) else None
    return value
