"""Two samples of a deployment's gateways -> the figures that `pdx top` shows. Pure; times are seconds of one clock."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from pdx_api.names import Mode, Role
from pdx_api.vllm_metrics import EngineMetrics
from pdx_cli.inputs.times import Objectives
from pdx_cli.sources.engine_load import LoadFigures, compared
from pdx_cli.sources.experience import (
    Experience,
    Limit,
    experience_of,
    gateway_objectives,
    late_streams,
    limits_of,
    never_splits,
)
from pdx_cli.sources.histograms import Buckets, quantile
from pdx_cli.sources.observation import Body
from pdx_cli.usage import amount

QUANTILES: Final = (0.5, 0.9, 0.99)
WARM: Final = "Warm"
FIRST_TOKEN: Final = "first_token"  # noqa: S105 - the name of a phase
STALE_ROUNDS: Final = 2
_SUSPENDED: Final = "suspended"
"""The reason of `pdx_not_split_total` for requests that are served whole because KV does not move."""
BURSTS: Final = ("burst", "sooner")
"""Reasons of `pdx_not_split_total` for requests that decode engines serve alone by the objectives."""
NO_PAIR: Final = "there is no pair"
"""First words of a gateway's finding while it has no pair to probe (`pdx_proxy.verification.verdict`)."""
_STATES: Final = ("Warm", "Warming", "Suspect", "Paused", "Retired", "Cold", "NotReady", "Leaving")

_NO_LOAD: Final = LoadFigures()
_NO_OBJECTIVES: Final = Objectives()
_NO_EXPERIENCE: Final = Experience()


@dataclass(frozen=True, slots=True)
class Reading:
    """One gateway at one moment."""

    name: str
    state: Body
    """Its /pdx/state."""
    phases: Mapping[str, Buckets] = field(default_factory=dict)
    verification: Body | None = None
    """Its /pdx/verification; None if it has none."""


@dataclass(frozen=True, slots=True)
class Sample:
    """All gateways at one moment."""

    at: float
    """Seconds."""
    readings: tuple[Reading, ...] = ()
    silent: tuple[str, ...] = ()
    """Gateways that did not answer, each with the reason."""
    loads: Mapping[str, EngineMetrics] = field(default_factory=dict)
    """Load of engines, by endpoint."""
    unanswered: Mapping[str, str] = field(default_factory=dict)
    """Endpoints whose /metrics did not answer, each with the reason."""


@dataclass(frozen=True, slots=True)
class PhaseFigures:
    """How long requests spent in one phase, between two samples."""

    name: str
    rate: float
    """Per second."""
    quantiles: tuple[float, ...]
    """Seconds, one value for each of QUANTILES."""


@dataclass(frozen=True, slots=True)
class EndpointFigures:
    """One engine, summed over all gateways."""

    name: str
    role: str
    revision: str
    state: str
    """The worst state that a gateway reports."""
    reason: str
    """Why; without its own name."""
    legs: int
    """Requests of the gateways that it has not answered."""
    load: LoadFigures = _NO_LOAD
    silent: str = ""
    """Why its /metrics did not answer; empty if they did, or were not read."""

    @property
    def is_healthy(self) -> bool:
        """Whether the gateways use it and it answers."""
        return self.state == WARM and not self.silent


@dataclass(frozen=True, slots=True)
class PairFigures:
    """One pair, with the result of its last transfer probe."""

    prefill: str
    decode: str
    verdict: str
    remote: float | None
    """Share of the probe's prompt that came through the connector."""
    seconds: Mapping[str, float]
    age: float | None
    """Seconds since the last probe that proved something; None if none has."""
    detail: str
    stale: bool = False
    """Whether all pairs could have been probed twice since, so that its verdict is not current."""

    outdated: bool = False
    """Whether one of its engines has restarted since the probe."""

    is_down: bool = False
    """Whether one of its engines does not serve, so that it is not probed."""

    @property
    def is_verified(self) -> bool:
        """Whether KV has moved between these processes, and not long ago."""
        return self.verdict == "verified" and not (self.stale or self.outdated or self.is_down)


@dataclass(frozen=True, slots=True)
class Figures:
    """Everything that `pdx top` shows."""

    mode: str
    wiring: str
    gateways: int
    ready: int
    silent: tuple[str, ...]
    in_flight: Mapping[str, int]
    seconds: float
    """Time between the two samples; 0 if there is only one, and then there are no rates."""
    outcomes: Mapping[str, tuple[float, int]]
    """Outcome -> requests per second, and since the gateways' start."""
    bursts: Mapping[str, tuple[float, int]]
    """Requests that decode engines served alone because they were sooner, by reason -> the same."""
    problems: Mapping[str, tuple[float, int]]
    """Retries, shed requests, ejections and settlements, by kind and reason -> the same."""
    phases: tuple[PhaseFigures, ...]
    endpoints: tuple[EndpointFigures, ...]
    pairs: tuple[PairFigures, ...]
    kv: str
    """What the gateways conclude from their transfer probes, unless it is that KV moves; empty if there are none."""
    experience: Experience = _NO_EXPERIENCE
    """What clients received in the last minutes."""
    limits: Mapping[str, Limit] = field(default_factory=dict)
    """The longest TTFT and TPOT (`ttft`, `tpot`) that are fine."""
    never_splits: bool = False
    """Whether spec.routing.split is Never."""

    @property
    def ttft(self) -> float | None:
        """Median time to first token between the samples, or else of the last minutes."""
        first = self.phase(FIRST_TOKEN)
        return first.quantiles[0] if first and not math.isnan(first.quantiles[0]) else self.experience.ttft

    @property
    def late(self) -> tuple[str, float] | None:
        """Which streams got their first token too late, and how late: between the samples, or in the last minutes."""
        seen, limit = self.experience, self.limits.get("ttft")
        if limit is None:
            return None
        if now := late_streams(self.ttft, None, limit):
            return f"{now[0]} of the streams", now[1]
        lately = late_streams(seen.ttft, seen.ttft_p90, limit)
        return (f"{lately[0]} of the streams of {seen.period}", lately[1]) if lately else None

    def is_beyond(self, name: str, seconds: float | None) -> bool:
        """Whether a time is longer than the limit of that name."""
        limit = self.limits.get(name)
        return limit is not None and seconds is not None and seconds > limit.seconds

    @property
    def slow(self) -> tuple[EndpointFigures, ...]:
        """The engines whose tokens come more slowly than their limit."""
        return tuple(e for e in self.endpoints if e.role != Role.PREFILL and self.is_beyond("tpot", e.load.tpot))

    @property
    def cannot_split(self) -> bool:
        """Whether no prefill engine serves, although requests are split here."""
        serving = {each.role for each in self.endpoints if each.is_healthy}
        lacks = Role.DECODE in serving and Role.PREFILL not in serving
        return self.mode == Mode.DISAGGREGATED and lacks and not self.never_splits

    @property
    def recomputes(self) -> bool:
        """Whether requests were split between the samples, and the decode engines computed their prompts again."""
        rates = {name: rate for name, (rate, _) in self.outcomes.items()}
        loads = [e.load for e in self.endpoints if e.role == "decode" and e.load.prompt_rate]
        return bool(rates.get("split") and not rates.get("whole") and loads and all(each.recomputes for each in loads))

    @property
    def unhealthy(self) -> tuple[EndpointFigures, ...]:
        """The engines that do not serve."""
        return tuple(each for each in self.endpoints if not each.is_healthy)

    @property
    def unverified(self) -> tuple[PairFigures, ...]:
        """The pairs whose last probe failed, and those of serving engines whose last probe is old."""
        return tuple(p for p in self.pairs if p.verdict == "broken" or not (p.is_verified or p.is_down))

    def phase(self, name: str) -> PhaseFigures | None:
        """Return one phase; None if no request had it."""
        return next((phase for phase in self.phases if phase.name == name), None)


def figures(
    before: Sample | None,
    now: Sample,
    names: Mapping[str, str] = MappingProxyType({}),
    stated: Objectives = _NO_OBJECTIVES,
) -> Figures:
    """Compare two samples; without the first, there are totals and no rates.

    `names` maps the gateway's name of an endpoint to the name to show, where they differ. `stated`: by the user.
    """
    states = [reading.state for reading in now.readings]
    seconds = now.at - before.at if before else 0.0
    endpoints = tuple(
        replace(e, name=names.get(e.name, e.name), reason=_named(e.reason, names))
        for e in _endpoints(before, now, seconds)
    )
    pairs = tuple(
        replace(p, prefill=names.get(p.prefill, p.prefill), decode=names.get(p.decode, p.decode))
        for p in _pairs(now.readings)
    )
    down = {each.name for each in endpoints if not each.is_healthy}
    pairs = tuple(replace(p, is_down=bool({p.prefill, p.decode} & down)) for p in pairs)
    experience = experience_of(states)
    wirings = {f"{e.get('connector')} {e.get('order')}" for s in states for e in s["endpoints"] if e.get("connector")}
    return Figures(
        mode=next((str(state["mode"]) for state in states if state.get("mode")), "no engines"),
        wiring=", ".join(sorted(wirings)),
        gateways=len(now.readings) + len(now.silent),
        ready=sum(bool(state.get("ready")) for state in states),
        silent=now.silent,
        in_flight=_sum(state["inFlight"] for state in states),
        seconds=seconds,
        outcomes=_rates(before, now, seconds, lambda state: state["outcomes"]),
        bursts=_rates(before, now, seconds, _bursts),
        problems=_rates(before, now, seconds, _problems),
        phases=_phases(before, now, seconds),
        endpoints=endpoints,
        pairs=pairs,
        kv=_summary(now.readings),
        experience=experience,
        limits=limits_of((stated, gateway_objectives(states)), experience.normal),
        never_splits=never_splits(states),
    )


def _former(before: Sample | None, name: str) -> Reading | None:
    return next((r for r in before.readings if r.name == name), None) if before else None


def _grown(then: float, now: float) -> float:
    """Return by how much a counter has grown; a counter that fell has restarted at 0."""
    return now - then if now >= then else now


def _rates(before: Sample | None, now: Sample, seconds: float, of: Any) -> dict[str, tuple[float, int]]:
    totals: dict[str, tuple[float, int]] = {}
    for reading in now.readings:
        former = _former(before, reading.name)
        then: Mapping[str, int] = of(former.state) if former else {}
        for name, count in of(reading.state).items():
            grown = _grown(then.get(name, 0), count) if former else 0
            rate, total = totals.get(name, (0.0, 0))
            totals[name] = (rate + (grown / seconds if seconds else 0.0), total + count)
    return totals


def _bursts(state: Body) -> dict[str, int]:
    counts = state.get("notSplit") or {}
    found = {f"whole: {why}": counts[why] for why in BURSTS if why in counts}
    return found | ({"whole: no KV": counts[_SUSPENDED]} if counts.get(_SUSPENDED) else {})


def _problems(state: Body) -> dict[str, int]:
    kinds = (("retries", "retried"), ("sheds", "shed"), ("ejections", "ejected"), ("settlements", "settled"))
    found = {f"{label}: {why}": n for kind, label in kinds for why, n in (state.get(kind) or {}).items()}
    if kept := found.pop("ejected: overridden", 0):
        found["kept, though it fails"] = kept  # half of the role is ejected, or it is the last engine
    return found


def _phases(before: Sample | None, now: Sample, seconds: float) -> tuple[PhaseFigures, ...]:
    grown: dict[str, dict[float, float]] = {}
    for reading in now.readings:
        former = _former(before, reading.name)
        for phase, buckets in reading.phases.items():
            then = former.phases.get(phase, {}) if former else buckets
            restarted = bool(then) and buckets.get(math.inf, 0.0) < then.get(math.inf, 0.0)
            into = grown.setdefault(phase, {})
            for bound, count in buckets.items():
                into[bound] = into.get(bound, 0.0) + (count if restarted else count - then.get(bound, 0.0))
    return tuple(
        PhaseFigures(
            phase,
            buckets.get(math.inf, 0.0) / seconds if seconds else 0.0,
            tuple(quantile(buckets, share) for share in QUANTILES),
        )
        for phase, buckets in grown.items()
    )


def _endpoints(before: Sample | None, now: Sample, seconds: float) -> tuple[EndpointFigures, ...]:
    by_name: dict[str, list[Body]] = {}
    for reading in now.readings:
        for endpoint in reading.state["endpoints"]:
            by_name.setdefault(str(endpoint["name"]), []).append(endpoint)
    found = []
    for name, views in by_name.items():
        worst = max(views, key=lambda view: _rank(str(view["state"])))
        found.append(
            EndpointFigures(
                name=name,
                role=str(worst["role"]),
                revision=str(worst.get("revision") or ""),
                state=str(worst["state"]),
                reason=str(worst.get("reason") or "").removeprefix(f"{name}: "),
                legs=sum(int(view["inFlight"]) for view in views),
                load=compared(before.loads.get(name) if before else None, now.loads.get(name), seconds),
                silent=now.unanswered.get(name, ""),
            )
        )
    order = ("prefill", "decode", "aggregated")
    return tuple(sorted(found, key=lambda e: (order.index(e.role) if e.role in order else 9, e.revision, e.name)))


def _named(reason: str, names: Mapping[str, str]) -> str:
    """Return the reason with the shown name of the engine that it begins with."""
    engine, colon, rest = reason.partition(": ")
    return f"{names[engine]}{colon}{rest}" if colon and engine in names else reason


def _rank(state: str) -> int:
    return _STATES.index(state) if state in _STATES else len(_STATES)


def _pairs(readings: Sequence[Reading]) -> tuple[PairFigures, ...]:
    """Return each pair once, from the gateway that probed it last."""
    found: dict[tuple[str, str], PairFigures] = {}
    for page, pair in ((probes, each) for probes in _probes(readings) for each in probes.get("pairs") or ()):
        longest = STALE_ROUNDS * _round_seconds(page)
        tokens, age = pair.get("tokens") or 0, pair.get("ageSeconds")
        figure = PairFigures(
            prefill=str(pair["prefill"]),
            decode=str(pair["decode"]),
            verdict=str(pair["verdict"]),
            remote=pair.get("outside", 0) / tokens if tokens else None,
            seconds=pair.get("seconds") or {},
            age=age,
            detail=": ".join(each for each in (str(pair.get("cause") or ""), _seen(pair)) if each),
            outdated=bool(pair.get("outdated")),
            stale=age is not None and 0 < longest < age,
        )
        other = found.get((figure.prefill, figure.decode))
        if other is None or (figure.age is not None and (other.age is None or figure.age < other.age)):
            found[figure.prefill, figure.decode] = figure
    return tuple(sorted(found.values(), key=lambda p: (p.verdict == "verified", p.prefill, p.decode)))


def _seen(pair: Body) -> str:
    """Return what a probe has shown, with roles for the names, which are beside it."""
    seen = str(pair.get("seen") or "")
    for role in ("prefill", "decode"):
        seen = seen.replace(f"the hand-off failed at {pair[role]}: ", f"{role} engine: ")
    return seen


def _round_seconds(page: Body) -> float:
    """Return the time in which a gateway probes every pair: within a period, it probes each engine in one pair."""
    engines = [{str(pair[role]) for pair in page.get("pairs") or ()} for role in ("prefill", "decode")]
    return float(page.get("seconds") or 0) * min(map(len, engines))


def _probes(readings: Sequence[Reading]) -> list[Body]:
    return [reading.verification for reading in readings if reading.verification]


def _summary(readings: Sequence[Reading]) -> str:
    split = [reading for reading in readings if reading.state.get("mode") != Mode.AGGREGATED]
    findings = [(page["finding"], each.state) for each in split if "finding" in (page := each.verification or {})]
    if not findings:
        return ""
    order = ("broken", "verified", "unknown")
    worst, state = min(findings, key=lambda f: order.index(v) if (v := f[0]["verdict"]) in order else len(order))
    match worst["verdict"]:
        case "verified":
            return ""  # the pairs show whether this holds at present
        case "broken":
            return f"KV DOES NOT MOVE in {amount(worst.get('broken_pairs', 0), 'pair', worst.get('possible', 0))}"
        case _:
            why = why_not_verified(str(worst.get("why") or ""), state["endpoints"])
            return f"KV not verified: {why or 'no transfer probe has succeeded yet'}"


def why_not_verified(why: str, endpoints: Sequence[Body]) -> str:
    """Return why a gateway has no result about KV, as a clause.

    A gateway probes pairs of engines that serve. Before there is one, and until it looks again about a second later, it
    reports that there is no pair.
    """
    if not why.startswith(NO_PAIR):
        return why
    if not endpoints:
        return "the gateway has found no engines"
    if _paired([each for each in endpoints if each["state"] == WARM]):
        return "the first transfer probe has not ended yet"
    return "waiting until a prefill and a decode engine serve" if _paired(endpoints) else why


def _paired(endpoints: Sequence[Body]) -> bool:
    """Whether a prefill and a decode engine have the same revision."""
    prefill, decode = (
        {each.get("revision") for each in endpoints if each["role"] == role} for role in (Role.PREFILL, Role.DECODE)
    )
    return not prefill.isdisjoint(decode)


def _sum(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for each in counts:
        for name, count in each.items():
            total[name] = total.get(name, 0) + count
    return total
