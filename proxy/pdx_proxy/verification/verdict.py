"""What the answer to a transfer probe proves about a pair, and what all records prove together. Pure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import orjson

from pdx_api.verification import Broken, Cause, Finding, Verdict
from pdx_proxy.endpoints.endpoint import Endpoint, Names, Start
from pdx_proxy.verification.record import (
    LISTED,
    NONE_UNEQUAL,
    Pair,
    Record,
    Result,
    Unequal,
    generations_of,
    names_of,
)

_NEAR: Final = 0.5
"""Two tokens are equally likely if the natural logarithms of their probabilities differ by no more than this."""
UNANSWERED_PROBES: Final = 3
"""Consecutive probes that an engine must leave unanswered until its pairs are no longer verified."""
Unanswered = Mapping[Start, int]
"""By engine, the consecutive probes that it has left unanswered without having other work. None has 0."""
_NO_DOUBTS: Final[Mapping[Names, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Answer:
    """An engine's answer to a transfer probe."""

    prompt_tokens: int
    cached: int | None
    """Prompt tokens that it did not compute; None if it does not report them."""
    tokens: tuple[str, ...]
    """The generated tokens."""
    tops: tuple[Mapping[str, float], ...] = ()
    """For each generated token the likeliest tokens, with the logarithms of their probabilities."""


def read_answer(body: bytes) -> Answer | None:
    """Read the answer to a completion; None for anything else."""
    try:
        document = orjson.loads(body)
        usage, choice = document["usage"], document["choices"][0]
        details, logprobs = usage.get("prompt_tokens_details") or {}, choice.get("logprobs") or {}
        cached = details.get("cached_tokens")
        return Answer(
            prompt_tokens=int(usage["prompt_tokens"]),
            cached=None if cached is None else int(cached),
            tokens=tuple(map(str, logprobs.get("tokens") or [choice["text"]])),
            tops=tuple(_logprobs(top or {}) for top in logprobs.get("top_logprobs") or ()),
        )
    except (orjson.JSONDecodeError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return None


def _logprobs(top: Mapping[str, float]) -> Mapping[str, float]:
    return {token: float(logprob) for token, logprob in top.items()}


def judge(split: Answer, alone: Answer | None) -> Result:
    """Return what D's answer to the hand-off proves; `alone` is D's answer without P, None if D was not compared."""
    if split.cached is None:
        return Result.NOT_REPORTED
    if split.cached * 2 < split.prompt_tokens:
        return Result.RECOMPUTED
    if alone is not None and not _match(split, alone):
        return Result.WRONG_TEXT
    return Result.MOVED


def _match(split: Answer, alone: Answer) -> bool:
    """Whether both answers can come from the same KV.

    At the first difference the two tokens must be about equally likely: another order of summation may prefer the
    other one. The tokens after it are not comparable.
    """
    for index, (ours, theirs) in enumerate(zip(split.tokens, alone.tokens, strict=False)):
        if ours != theirs:
            return _near(alone, index, ours, theirs) or _near(split, index, theirs, ours)
    return True


def _near(answer: Answer, index: int, other: str, own: str) -> bool:
    top = answer.tops[index] if index < len(answer.tops) else {}
    return other in top and own in top and top[own] - top[other] <= _NEAR


def describe(result: Result, split: Answer) -> str:
    """Describe a result in text that is equal for every prompt, because it goes into the object's status."""
    match result:
        case Result.RECOMPUTED:
            return f"the decode engine has computed {'most of a' if split.cached else 'a whole'} prompt by itself"
        case Result.WRONG_TEXT:
            return "the decode engine's answer over the prefill engine's KV differs from its answer alone"
        case Result.NOT_REPORTED:
            return "the decode engine does not report how many prompt tokens were cached"
    return ""


def next_record(
    pair: Pair, result: Result, before: Record | None, now: float, seen: str = "", cause: Cause = Cause.PORTS
) -> Record:
    """Return the record of a pair after one more probe."""
    generations = generations_of(pair)
    verdict = before.verdict if before is not None else Verdict.UNKNOWN
    failures = before.failures if before is not None and before.generations == generations else 0
    if result is Result.MOVED:
        return Record(generations, now, result, Verdict.VERIFIED)
    if result is Result.BUSY:
        kept = (before.seen, before.cause) if before is not None else ("", cause)
        return Record(generations, now, result, verdict, *kept, failures)
    if result is Result.NOT_REPORTED:
        return Record(generations, now, result, Verdict.UNKNOWN, seen, Cause.NOT_REPORTED)
    # One text that differs may be chance. Two consecutive ones are not.
    sure = result is not Result.WRONG_TEXT or (before is not None and before.result is Result.WRONG_TEXT)
    return Record(generations, now, result, Verdict.BROKEN if sure else verdict, seen, cause, failures + 1)


def count_unanswered(
    now: Unanswered, at_beginning: Unanswered, pair: Pair, answered: Collection[str], silent: str
) -> Unanswered:
    """Return the counts after one more probe of a pair; `at_beginning` are the counts when this probe began.

    `answered` has the names of the engines that answered; `silent` is the name of the engine that did not, although it
    has no other work. An engine that did not receive the probe, or was late because of other work, keeps its count.
    Probes that overlap count once.
    """
    counts = dict(now)
    for engine in pair:
        start = engine.start
        if engine.name in answered:
            counts.pop(start, None)
        elif engine.name == silent:
            count = counts.get(start, 0)
            counts[start] = count + (at_beginning.get(start, 0) >= count)
    return counts


def doubt(prefill: Endpoint | None, decode: Endpoint | None, unanswered: Unanswered) -> str:
    """Return why a pair is not verified at present, whatever was proved before, as a clause; empty if there is nothing.

    An engine that is gone is None.
    """
    for role, engine in (("prefill", prefill), ("decode", decode)):
        if engine is None:
            return f"the {role} engine is gone"
        if not engine.warm:
            return f"the {role} engine does not serve"
        if unanswered.get(engine.start, 0) >= UNANSWERED_PROBES:
            return f"the {role} engine has left {UNANSWERED_PROBES} consecutive probes unanswered"
    return ""


def present_verdict(record: Record, why_not: str) -> Verdict:
    """Return a pair's verdict at present; `why_not` comes from `doubt`. A broken pair stays broken."""
    return Verdict.UNKNOWN if why_not and record.verdict is Verdict.VERIFIED else record.verdict


def finding_of(
    revisions: Sequence[Sequence[Pair]],
    records: Mapping[Names, Record],
    before: Finding | None,
    doubts: Mapping[Names, str] = _NO_DOUBTS,
    unequal: Unequal = NONE_UNEQUAL,
) -> Finding:
    """Return the finding about all pairs. `doubts` has the pairs that are not verified at present, and why.
    `unequal` has the pairs of revisions in which none pairs, because the versions differ.

    It becomes VERIFIED once each engine is part of a pair that works. Afterwards an added engine does not change it:
    only a result does, or doubts about all pairs.
    """
    pairs = [pair for revision in revisions for pair in revision]
    if not pairs and not unequal.count:
        return Finding(Verdict.UNKNOWN, "there is no pair of a prefill and a decode engine to probe")
    present = {names_of(pair): records[names_of(pair)] for pair in pairs if names_of(pair) in records}
    broken = {names: record for names, record in present.items() if record.verdict is Verdict.BROKEN}
    if broken or unequal.count:
        listed = [_broken(names, record) for names, record in sorted(broken.items())[:LISTED]]
        listed += [_unequal(*pair) for pair in unequal.first[: LISTED - len(listed)]]
        count = len(broken) + unequal.count
        return Finding(Verdict.BROKEN, "", 0, len(pairs) + unequal.count, tuple(listed), count)
    verified = {n for n, record in present.items() if record.verdict is Verdict.VERIFIED and n not in doubts}
    covered = {name for names in verified for name in names}
    engines = {engine.name for pair in pairs for engine in pair}
    was_verified = before is not None and before.verdict is Verdict.VERIFIED
    if covered >= engines or (verified and was_verified):
        return Finding(Verdict.VERIFIED, "", _stable_count(revisions, verified, doubts), len(pairs))
    return _unproved(present, doubts, len(pairs))


def _unproved(present: Mapping[Names, Record], doubts: Mapping[Names, str], possible: int) -> Finding:
    unreported = [_broken(names, r) for names, r in sorted(present.items()) if r.result is Result.NOT_REPORTED]
    if unreported:
        return Finding(Verdict.UNKNOWN, unreported[0].seen, 0, possible, tuple(unreported[:1]), 0)
    if doubts:
        (prefill, decode), why = min(doubts.items())
        return Finding(Verdict.UNKNOWN, f"{prefill} to {decode}: {why}", 0, possible)
    return Finding(Verdict.UNKNOWN, "not every prefill and decode engine has been probed yet", 0, possible)


def _unequal(prefill: Endpoint, decode: Endpoint) -> Broken:
    seen = f"the prefill engine runs vLLM {prefill.version}, the decode engine {decode.version}"
    return Broken(prefill.name, decode.name, seen, Cause.VERSION)


def _broken(names: Names, record: Record) -> Broken:
    return Broken(*names, record.seen, record.cause)


def _stable_count(revisions: Sequence[Sequence[Pair]], verified: set[Names], doubts: Mapping[Names, str]) -> int:
    """Count the verified pairs of a revision: all without doubts, or the fewest of these that cover each engine.

    A count of the verified pairs themselves would change with every probe, and the status with it.
    """
    total = 0
    for pairs in revisions:
        names = {names_of(pair) for pair in pairs} - doubts.keys()
        fewest = max(len({p for p, _ in names}), len({d for _, d in names}))
        total += len(names) if names <= verified else fewest
    return total
