"""A run as JSON: everything that the report and the verdict need. Pure; the reverse of `document` is `read`."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from pdx_cli.bench.analysis.arms import Arm, ArmResult
from pdx_cli.bench.analysis.counters import EngineTotals, as_numbers
from pdx_cli.bench.analysis.steps import Slo, StepResult
from pdx_cli.bench.analysis.verdict import Verdict, judge

FORMAT: Final = 1
"""Version of the document."""
_ADDED: Final = ("interval",)
"""Members that the first documents of this version do not have; their defaults are what was measured then."""
_SUMMARIES: Final = ("ttft", "tpot", "itl", "latency")
"""Members of a step that are distributions."""


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
        members = _members(Run, {**body, "results": [_result(each) for each in body["arms"]]})
        return msgspec.convert(members, Run)
    except DocumentError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DocumentError(f"{source} is not a result of `pdx bench`; name its result.json.") from error


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


def _members(kind: type[Any], body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of a dataclass, which the document has even where they have defaults; raises KeyError."""
    names = [each.name for each in dataclasses.fields(kind)]
    return {name: body[name] for name in names if name in body or name not in _ADDED}


def _result(arm: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of an ArmResult; raises KeyError."""
    found = {
        **arm,
        "arm": _members(Arm, arm),
        "shares_cores": arm["sharesCores"],
        "steps": [_step(each) for each in arm["steps"]],
        "prefill": _totals(arm["counters"]["prefill"]),
        "decode": _totals(arm["counters"]["decode"]),
        # A failed request's time is infinite, for which JSON has null.
        "samples": [
            {"prompt": prompt, "ttft": math.inf if ttft is None else ttft, "tpot": math.inf if tpot is None else tpot}
            for prompt, ttft, tpot in arm["samples"]
        ],
    }
    return _members(ArmResult, found)


def _step(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of a StepResult; raises KeyError."""
    found = _members(StepResult, body)
    measured = {name: _restored(found[name]) for name in (*_SUMMARIES, "phases")}
    return {**found, **measured, "late_p99": _number(found["late_p99"])}


def _totals(counters: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: {"total": each["sum"], "count": each["count"]} if isinstance(each, Mapping) else _number(each)
        for name, each in _members(EngineTotals, counters).items()
    }


def _restored(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _number(each) for name, each in values.items()}


def _number(value: Any) -> Any:
    """Return a value, and NaN for null: what was not measured."""
    return math.nan if value is None else value


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_finite(each) for each in value]
    if isinstance(value, float):
        return round(value, 7) if math.isfinite(value) else None
    return value
