"""What clients of a deployment received in the last minutes, and the limits that it is compared with. Pure.

The gateways report it in `/pdx/state`: `history` (`pdx_proxy.health.history`) and `objectives`. Times are in seconds.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

from pdx_api.names import Split
from pdx_cli.inputs.times import Objectives
from pdx_cli.sources.observation import Body

FAILED: Final = ("shed", "unavailable", "broken", "idle", "expired", "exhausted", "internal")
"""Outcomes (`pdx_proxy.telemetry.counters`) that the client did not cause."""
_CLIENTS: Final = ("client_left", "refused", "refused_by_engine")
"""Outcomes that the client caused: they say nothing about the deployment."""
CLIENT_LIMIT: Final = "client_limit"
"""Reason of a shed request whose own client had too many: other clients do not suffer."""
LEAST_FAILURES: Final = 3
LEAST_SHARE: Final = 0.01
"""Requests that fail, and their share, from which on clients suffer."""
TIMES_NORMAL: Final = 3.0
"""Without an objective, a time is too long if it is so many times the normal one."""
TAIL_TIMES: Final = 2.5
"""The slowest tenth of the streams may wait for so many times the limit: bounds of a histogram are this far apart."""
_MARGINS: Final = {"ttft": 0.5, "tpot": 0.02}
"""Seconds above the normal time that a person notices."""
_PATIENCE: Final = {"ttft": 10.0, "tpot": 0.15}
"""Limits with neither an objective nor a normal time: waits for which people give up, and text slower than reading."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The longest time that is fine."""

    seconds: float
    source: str
    """What sets it, as the start of a clause: `spec.slo allows`."""
    stated: float
    """The time that the clause ends with, in seconds."""

    @property
    def clause(self) -> str:
        """What the limit is compared with, for a sentence."""
        return f"{self.source} {spoken(self.stated)}"


@dataclass(frozen=True, slots=True)
class Experience:
    """What all gateways together report about the last minutes."""

    seconds: float = 0.0
    """How long ago they begin; 0: no gateway keeps a history."""
    ended: int = 0
    """Requests that have ended, without those that failed because of their client."""
    failed: Mapping[str, int] = field(default_factory=dict)
    """Outcome -> requests that failed."""
    sheds: Mapping[str, int] = field(default_factory=dict)
    not_split: Mapping[str, int] = field(default_factory=dict)
    attempts: Mapping[str, int] = field(default_factory=dict)
    """Reason -> attempts at engines that failed before the answer began."""
    broken: Mapping[str, int] = field(default_factory=dict)
    """The gateway's name of an engine -> answers of it that did not reach their end."""
    retries_refused: int = 0
    ttft: float | None = None
    """Median; of several gateways the longest."""
    ttft_p90: float | None = None
    """90th percentile; of several gateways the longest."""
    queue: float | None = None
    """Median wait of those that waited in the queue; of several gateways the longest."""
    waited: int = 0
    """Requests that waited in the queue."""
    queued: int = 0
    """Requests in the queue now."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """Phase between queue and first token -> median; of several gateways the longest."""
    restarts: Mapping[str, int] = field(default_factory=dict)
    """The gateway's name of an engine -> how often it was warmed up again; of several gateways the most."""
    tpot: Mapping[str, float] = field(default_factory=dict)
    """The gateway's name of an engine that decodes -> mean time for one output token."""
    normal: Mapping[str, float | None] = field(default_factory=dict)
    """`ttft` and `tpot` as usual in the last hour."""

    @property
    def failures(self) -> int:
        """Requests that failed, and not because of their client."""
        return sum(self.failed.values())

    @property
    def fails(self) -> bool:
        """Whether so many requests fail that clients suffer."""
        return self.failures >= max(LEAST_FAILURES, LEAST_SHARE * self.ended)

    @property
    def share(self) -> str:
        """The share of requests that fail, for a sentence."""
        return f"{100 * self.failures / max(self.ended, 1):.0f} % of requests fail"

    @property
    def period(self) -> str:
        """The last minutes, for a sentence."""
        minutes = round(self.seconds / 60)
        return f"the last {minutes} minutes" if minutes > 1 else f"the last {self.seconds:.0f} s"


def late_streams(median: float | None, p90: float | None, limit: Limit) -> tuple[str, float] | None:
    """Return which share of the streams waits too long for its first token, and how long at least; None if none does.

    Where the newest requests are served first, the median is short although the others wait for long.
    """
    if median is not None and median > limit.seconds:
        return "half", median
    if p90 is not None and p90 > TAIL_TIMES * limit.seconds:
        return "a tenth", p90
    return None


def longest_part(seen: Experience, *, pushes: bool) -> tuple[str, float] | None:
    """Return the phase of which half of the median TTFT or more consists, and its median.

    `pushes`: D's wait (the phase `handoff`) began before P's prefill, so it contains it.
    """
    parts = dict(seen.phases)
    if pushes and "handoff" in parts:
        parts["handoff"] -= parts.get("prefill", 0.0)
    longest = max(parts, key=parts.__getitem__, default=None)
    if longest is None or seen.ttft is None or parts[longest] < seen.ttft / 2:
        return None
    return longest, parts[longest]


def experience_of(states: Iterable[Body]) -> Experience:
    """Add up what gateways report; a gateway without a history counts nothing."""
    found = [(state.get("history") or {}, state.get("inFlight") or {}) for state in states]
    histories = [history for history, _ in found if history]
    outcomes, sheds = _sum(histories, "outcomes"), _sum(histories, "sheds")
    outcomes["shed"] = max(0, outcomes.get("shed", 0) - sheds.get(CLIENT_LIMIT, 0))
    return Experience(
        seconds=max((history.get("seconds") or 0.0 for history in histories), default=0.0),
        ended=sum(count for name, count in outcomes.items() if name not in _CLIENTS),
        failed={name: outcomes[name] for name in FAILED if outcomes.get(name)},
        sheds=sheds,
        not_split=_sum(histories, "notSplit"),
        attempts=_sum(histories, "retries"),
        broken=_sum(histories, "broken"),
        retries_refused=sum(history.get("retriesRefused") or 0 for history in histories),
        ttft=_longest(histories, "ttft"),
        ttft_p90=_longest(histories, "ttft", "p90"),
        queue=_longest(histories, "queue"),
        waited=sum((history.get("queue") or {}).get("count") or 0 for history in histories),
        queued=sum(flight.get("queued") or 0 for _, flight in found),
        phases=_longest_phases(histories),
        restarts=_most(histories, "restarts"),
        tpot=_most(histories, "tpot"),
        normal={name: _normal(histories, name) for name in ("ttft", "tpot")},
    )


def never_splits(states: Iterable[Body]) -> bool:
    """Whether `spec.routing.split` is Never at all gateways."""
    return {state.get("split") for state in states} == {Split.NEVER}


def limits_of(stated: Iterable[Objectives], normal: Mapping[str, float | None]) -> dict[str, Limit]:
    """Return the limits of TTFT and TPOT: the first objective that states one, or else by what is normal."""
    chosen, objectives = {}, tuple(stated)
    for name in ("ttft", "tpot"):
        found = next(((seconds, each.source) for each in objectives if (seconds := getattr(each, name))), None)
        usual = normal.get(name)
        if found is not None:
            chosen[name] = Limit(found[0], f"{found[1]} allows", found[0])
        elif usual is not None:
            chosen[name] = Limit(max(TIMES_NORMAL * usual, usual + _MARGINS[name]), "normal is", usual)
        else:
            chosen[name] = Limit(_PATIENCE[name], "no objective is set; people accept about", _PATIENCE[name])
    return chosen


def gateway_objectives(states: Iterable[Body]) -> Objectives:
    """Return the objectives that the gateways were started with; the operator passes `spec.slo` to them."""
    found: Mapping[str, Any] = next((each for state in states if (each := state.get("objectives"))), {})
    return Objectives(found.get("ttftSeconds") or None, found.get("tpotSeconds") or None, "the gateway's objective")


def spoken(seconds: float) -> str:
    """Return a time with three digits and a unit."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def spec_objectives(ttft: int | None, tpot: int | None) -> Objectives:
    """Return the objectives of `spec.slo`, which is in milliseconds."""
    return Objectives(ttft / 1000 if ttft else None, tpot / 1000 if tpot else None, "spec.slo")


def _sum(histories: Iterable[Body], name: str) -> dict[str, int]:
    total: dict[str, int] = {}
    for history in histories:
        for key, count in (history.get(name) or {}).items():
            total[key] = total.get(key, 0) + count
    return total


def _most(histories: Iterable[Body], name: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for history in histories:
        for key, value in (history.get(name) or {}).items():
            found[key] = max(value, found.get(key, value))
    return found


def _longest_phases(histories: Iterable[Body]) -> dict[str, float]:
    phases = [history.get("phases") or {} for history in histories]
    medians = {name: _longest(phases, name) for name in dict.fromkeys(chain.from_iterable(phases))}
    return {name: median for name, median in medians.items() if median is not None}


def _longest(histories: Iterable[Body], name: str, quantile: str = "median") -> float | None:
    return max((m for each in histories if (m := (each.get(name) or {}).get(quantile)) is not None), default=None)


def _normal(histories: Iterable[Body], name: str) -> float | None:
    return min((m for each in histories if (m := (each.get("normal") or {}).get(name)) is not None), default=None)
