"""Which pairs of engines a canary is due at, what an answer to it proves, and what a failure may come from. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import ip_address
from itertools import groupby
from typing import Any, Final

import orjson

from pdx_api.connectors import family_of
from pdx_api.connectors.families import KVParams, Pull, Push
from pdx_api.names import Role
from pdx_api.verification import Broken, Cause, Finding, Verdict
from pdx_proxy.endpoints.endpoint import Endpoint, State

EVERY_PAIR: Final = 16
"""Up to so many pairs of one revision all are tried at the start; of more, as many as cover every engine."""
_RETRY_SECONDS: Final = 10.0
"""Before a pair that has failed is tried again; doubles up to the usual time."""
_BUSY_SECONDS: Final = 5.0
"""Before a pair is tried again that could not be."""
_NEAR: Final = 0.5
"""Natural logarithm of how much likelier a token may be than another that a second computation prefers."""
_TOLD: Final = 3
"""Broken pairs that are told in words."""
_BLOCK_SIZE: Final = re.compile(rb'^vllm:cache_config_info\{[^\n]*\bblock_size="(\d+)"', re.MULTILINE)
_PROMPTS: Final = re.compile(rb"^vllm:prompt_tokens_total\{[^\n]*\} (\S+)$", re.MULTILINE)
_QUERIES: Final = re.compile(rb"^vllm:external_prefix_cache_queries_total\{[^\n]*\} (\S+)$", re.MULTILINE)
"""Prompt tokens that vLLM's scheduler has asked its connector for: of each prompt all that its own cache lacks."""

Pair = tuple[Endpoint, Endpoint]
Names = tuple[str, str]
"""Of a P and a D."""


class Result(StrEnum):
    """What one canary came to: a metric's label."""

    MOVED = "moved"
    """D took the prompt's KV from P, and says what it says alone."""
    RECOMPUTED = "recomputed"
    """D has computed the prompt by itself."""
    WRONG_TEXT = "wrong_text"
    """D says something else over P's KV than alone."""
    FAILED = "failed"
    """The hand-off failed, while D alone answers."""
    UNTOLD = "not_reported"
    """D does not say where the prompt's KV came from."""
    BUSY = "busy"
    """An engine was too busy, or not there: nothing is proved."""


@dataclass(frozen=True, slots=True)
class Record:
    """What is known of a pair."""

    starts: tuple[int, int]
    """The starts of P and D that this is about; an engine that is warmed anew is due anew."""
    at: float
    """When it was tried last, in seconds of the gateway's clock."""
    result: Result
    """Of the last try."""
    verdict: Verdict
    """Of the last try that proved anything."""
    seen: str = ""
    cause: Cause = Cause.PORTS
    failures: int = 0
    """Tries in a row that proved nothing good."""

    def due_at(self, usual: float) -> float:
        """When it is to be tried again, whatever else is tried; never (infinity) while it is well."""
        if self.result is Result.MOVED or self.result is Result.UNTOLD:
            return float("inf")
        if self.result is Result.BUSY or (self.result is Result.WRONG_TEXT and self.verdict is not Verdict.BROKEN):
            return self.at + _BUSY_SECONDS
        return self.at + min(_RETRY_SECONDS * 2.0 ** (self.failures - 1), usual)


@dataclass(frozen=True, slots=True)
class Answer:
    """What an engine said."""

    prompt_tokens: int
    cached: int | None
    """Prompt tokens that it did not compute; None when it does not say."""
    tokens: tuple[str, ...]
    """What it generated."""
    tops: tuple[Mapping[str, float], ...] = ()
    """For each of them the likeliest tokens, with the logarithm of their probability."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What an engine says of itself; None for what it does not say."""

    version: str | None = None
    model: str | None = None
    """The string it was started with."""
    block_size: int | None = None
    connector: bool | None = None
    """Whether it has a KV connector; None before it has computed a prompt."""


def candidates(endpoints: Iterable[Endpoint]) -> list[list[Pair]]:
    """The pairs that KV could travel between, by revision, each by P and then D.

    A P that cannot be warmed counts: a pair that is broken is the very reason. A D must be warm, or the canary would be
    the first work it ever does.
    """
    usable = sorted((e for e in endpoints if _usable(e)), key=lambda e: (e.revision, e.name))
    found: list[list[Pair]] = []
    for _, group in groupby(usable, key=lambda e: e.revision):
        engines = list(group)
        decodes = [d for d in engines if d.role is Role.DECODE]
        pairs = [(p, d) for p in engines if p.role is Role.PREFILL for d in decodes]
        if pairs:
            found.append(pairs)
    return found


def _usable(endpoint: Endpoint) -> bool:
    if endpoint.role is Role.PREFILL and endpoint.reason is not None:
        return endpoint.state in (State.COLD, State.SUSPECT, State.WARM)
    return endpoint.warm


def due(pairs: Sequence[Pair], records: Mapping[Names, Record], now: float, usual: float) -> list[Pair]:
    """The pairs of one revision to try now, each engine about once in `usual` seconds.

    At the start all of a small pool are due, of a large one as many as cover every engine; then, of each engine that
    has not been tried for that long, the pair that was tried least recently; and what has failed, sooner.
    """
    known = {_names(pair): record for pair in pairs if (record := _current(records, pair)) is not None}
    chosen = [pair for pair in pairs if (r := known.get(_names(pair))) is not None and r.due_at(usual) <= now]
    if len(pairs) <= EVERY_PAIR:
        chosen += [pair for pair in pairs if _names(pair) not in known]
    last: dict[str, float] = {}
    for (prefill, decode), record in known.items():
        last[prefill] = max(last.get(prefill, 0.0), record.at)
        last[decode] = max(last.get(decode, 0.0), record.at)
    busy = {engine.name for pair in chosen for engine in pair}
    taken: dict[str, int] = {}
    for side in (0, 1):
        for _, group in _by_engine(pairs, side):
            name = group[0][side].name
            if name in busy or (name in last and now - last[name] < usual):
                continue
            pair = min(group, key=lambda p: (p[1 - side].name in busy, _at(known, p), taken.get(p[1 - side].name, 0)))
            chosen.append(pair)
            busy |= {engine.name for engine in pair}
            taken[pair[1 - side].name] = taken.get(pair[1 - side].name, 0) + 1
    return chosen


def _by_engine(pairs: Sequence[Pair], side: int) -> Iterable[tuple[str, list[Pair]]]:
    groups: dict[str, list[Pair]] = {}
    for pair in pairs:
        groups.setdefault(pair[side].name, []).append(pair)
    return groups.items()


def _at(known: Mapping[Names, Record], pair: Pair) -> float:
    record = known.get(_names(pair))
    return float("-inf") if record is None else record.at


def _names(pair: Pair) -> Names:
    return (pair[0].name, pair[1].name)


def starts_of(pair: Pair) -> tuple[int, int]:
    """What distinguishes one start of a pair from the next. A P that is not warm has not begun its next one."""
    return (pair[0].generation, pair[1].generation)


def _current(records: Mapping[Names, Record], pair: Pair) -> Record | None:
    record = records.get(_names(pair))
    return record if record is not None and record.starts == starts_of(pair) else None


def read_answer(body: bytes) -> Answer | None:
    """An engine's answer to a canary; None for anything else."""
    try:
        document = orjson.loads(body)
        usage, choice = document["usage"], document["choices"][0]
        details, logprobs = usage.get("prompt_tokens_details") or {}, choice.get("logprobs") or {}
        cached = details.get("cached_tokens")
        return Answer(
            prompt_tokens=int(usage["prompt_tokens"]),
            cached=None if cached is None else int(cached),
            tokens=tuple(map(str, logprobs.get("tokens") or [choice["text"]])),
            tops=tuple(dict(top or {}) for top in logprobs.get("top_logprobs") or ()),
        )
    except (orjson.JSONDecodeError, AttributeError, IndexError, KeyError, TypeError, ValueError):
        return None


def same(said: Answer, alone: Answer) -> bool:
    """Whether two engines that compute the same prompt may have said these.

    Where they part, sums in another order may have turned a near tie; from there on each goes its own way.
    """
    for place, (ours, theirs) in enumerate(zip(said.tokens, alone.tokens, strict=False)):
        if ours != theirs:
            return _near(alone, place, ours, theirs) or _near(said, place, theirs, ours)
    return True


def _near(answer: Answer, place: int, other: str, own: str) -> bool:
    top = answer.tops[place] if place < len(answer.tops) else {}
    return other in top and own in top and top[own] - top[other] <= _NEAR


def judge(said: Answer, alone: Answer | None) -> Result:
    """What D's answer proves, beside the one that it gave alone (None: it was not asked)."""
    if said.cached is None:
        return Result.UNTOLD
    if said.cached * 2 < said.prompt_tokens:
        return Result.RECOMPUTED
    if alone is not None and not same(said, alone):
        return Result.WRONG_TEXT
    return Result.MOVED


def recorded(
    pair: Pair, result: Result, before: Record | None, now: float, seen: str = "", cause: Cause = Cause.PORTS
) -> Record:
    """What is known of a pair after one more try."""
    starts = starts_of(pair)
    again = before is not None and before.starts == starts
    verdict = before.verdict if before is not None else Verdict.UNKNOWN
    failures = before.failures if before is not None and again else 0
    if result is Result.MOVED:
        return Record(starts, now, result, Verdict.VERIFIED)
    if result is Result.BUSY:
        kept = (before.seen, before.cause) if before is not None else ("", cause)
        return Record(starts, now, result, verdict, *kept, failures)
    if result is Result.UNTOLD:
        return Record(starts, now, result, Verdict.UNKNOWN, seen, Cause.NOT_REPORTED)
    # One text that differs may be chance; two in a row are not.
    sure = result is not Result.WRONG_TEXT or (before is not None and before.result is Result.WRONG_TEXT)
    verdict = Verdict.BROKEN if sure else verdict
    return Record(starts, now, result, verdict, seen, cause, failures + 1)


def read_facts(version: bytes, models: bytes, metrics: bytes) -> Facts:
    """What three pages of an engine say of it: /version, /v1/models, /metrics; empty for a page that did not come."""
    block = _BLOCK_SIZE.search(metrics)
    return Facts(
        version=_text(version, "version"),
        model=_text(models, "data", 0, "root"),
        block_size=int(block.group(1)) if block else None,
        connector=_asks_a_connector(metrics),
    )


def _asks_a_connector(metrics: bytes) -> bool | None:
    asked, prompts = _sum(_QUERIES, metrics), _sum(_PROMPTS, metrics)
    return None if asked is None or not prompts else asked > 0


def _sum(series: re.Pattern[bytes], metrics: bytes) -> float | None:
    try:
        values = [float(value) for value in series.findall(metrics)]
    except ValueError:
        return None
    return sum(values) if values else None


def _text(page: bytes, *path: str | int) -> str | None:
    try:
        value: Any = orjson.loads(page)
        for step in path:
            value = value[step]
    except (orjson.JSONDecodeError, IndexError, KeyError, TypeError):
        return None
    return value if isinstance(value, str) else None


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of a canary that has failed."""

    result: Result
    prefill: Facts = field(default_factory=Facts)
    decode: Facts = field(default_factory=Facts)
    params: KVParams = field(default_factory=dict)
    """What D was told of P; empty when it was not asked."""
    connector_off: bool = False
    """P has answered without parameters though its family has some."""

    @property
    def unconnected(self) -> str:
        """Which of the two runs without a KV connector, as half a sentence; empty for none."""
        prefill = self.connector_off or self.prefill.connector is False
        without = [name for name, off in (("P", prefill), ("D", self.decode.connector is False)) if off]
        return (
            f"{' and '.join(without)} {'runs' if len(without) == 1 else 'run'} without a KV connector"
            if without
            else ""
        )


def likely_cause(pair: Pair, evidence: Evidence) -> Cause:
    """What is behind a failure, the surest first."""
    prefill, decode = evidence.prefill, evidence.decode
    if evidence.unconnected:
        return Cause.NO_CONNECTOR
    if _differ(prefill.version, decode.version):
        return Cause.VERSION
    if _differ(prefill.model, decode.model):
        return Cause.MODEL
    if _differ(prefill.block_size, decode.block_size):
        return Cause.BLOCK_SIZE
    if evidence.result is Result.WRONG_TEXT:
        return Cause.WRONG_KV
    if _is_elsewhere(evidence.params.get("remote_host"), pair[0].address.host):
        return Cause.SIDE_CHANNEL_HOST
    family = family_of(pair[0].connector, pair[0].order, pair[0].spec.protocol)
    return Cause.PORTS if isinstance(family, Pull | Push) else Cause.POOL


def _differ(one: object, other: object) -> bool:
    return one is not None and other is not None and one != other


def _is_elsewhere(told: object, host: str) -> bool:
    """Whether both are addresses, and two. Names are not looked up."""
    try:
        return told is not None and ip_address(str(told)) != ip_address(host)
    except ValueError:
        return False


def found(revisions: Sequence[Sequence[Pair]], records: Mapping[Names, Record], before: Finding | None) -> Finding:
    """What is known of all pairs.

    Everything is verified once each engine was seen in a pair that works. From then on an engine that is added is given
    the time to be tried: the verdict falls only with what is seen.
    """
    pairs = [pair for revision in revisions for pair in revision]
    if not pairs:
        return Finding(Verdict.UNKNOWN, "there is no pair of prefill and decode engines that could be tried")
    known = {_names(pair): records[_names(pair)] for pair in pairs if _names(pair) in records}
    broken = {names: record for names, record in known.items() if record.verdict is Verdict.BROKEN}
    well = {names for names, record in known.items() if record.verdict is Verdict.VERIFIED}
    if broken:
        told = [Broken(*names, record.seen, record.cause) for names, record in sorted(broken.items())[:_TOLD]]
        return Finding(Verdict.BROKEN, "", 0, len(pairs), tuple(told), len(broken))
    covered = {name for names in well for name in names}
    engines = {engine.name for pair in pairs for engine in pair}
    sticky = before is not None and before.verdict is Verdict.VERIFIED
    if covered >= engines or (well and sticky):
        return Finding(Verdict.VERIFIED, "", _stable_count(revisions, well), len(pairs))
    untold = [Broken(*names, r.seen, r.cause) for names, r in sorted(known.items()) if r.result is Result.UNTOLD]
    if untold:
        return Finding(Verdict.UNKNOWN, untold[0].seen, 0, len(pairs), tuple(untold[:1]), 0)
    return Finding(Verdict.UNKNOWN, "not every prefill and decode engine has been tried yet", 0, len(pairs))


def _stable_count(revisions: Sequence[Sequence[Pair]], well: set[Names]) -> int:
    """How many pairs work: all, or what it takes to cover every engine. It does not move with every try."""
    total = 0
    for pairs in revisions:
        names = {_names(pair) for pair in pairs}
        least = max(len({p for p, _ in names}), len({d for _, d in names}))
        total += len(names) if names <= well else least
    return total
