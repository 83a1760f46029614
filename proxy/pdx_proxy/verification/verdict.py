"""What the answer to a transfer probe proves about a pair, and what all records prove together. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import orjson

from pdx_api.verification import Broken, Cause, Finding, Verdict
from pdx_proxy.verification.record import Names, Pair, Record, Result, generations_of, names_of

_NEAR: Final = 0.5
"""Two tokens are equally likely if the natural logarithms of their probabilities differ by no more than this."""
_LISTED: Final = 3
"""Broken pairs that a finding lists."""


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
            tops=tuple(dict(top or {}) for top in logprobs.get("top_logprobs") or ()),
        )
    except (orjson.JSONDecodeError, AttributeError, IndexError, KeyError, TypeError, ValueError):
        return None


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
            return f"D has computed {'most of a' if split.cached else 'a whole'} prompt by itself"
        case Result.WRONG_TEXT:
            return "D's answer over P's KV differs from its answer alone"
        case Result.NOT_REPORTED:
            return "D does not report how many prompt tokens were cached"
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


def finding_of(revisions: Sequence[Sequence[Pair]], records: Mapping[Names, Record], before: Finding | None) -> Finding:
    """Return the finding about all pairs.

    It becomes VERIFIED once each engine is part of a pair that works. Afterwards an added engine does not change it:
    only a result does.
    """
    pairs = [pair for revision in revisions for pair in revision]
    if not pairs:
        return Finding(Verdict.UNKNOWN, "there is no pair of a prefill and a decode engine to probe")
    present = {names_of(pair): records[names_of(pair)] for pair in pairs if names_of(pair) in records}
    broken = {names: record for names, record in present.items() if record.verdict is Verdict.BROKEN}
    if broken:
        listed = tuple(_broken(names, record) for names, record in sorted(broken.items())[:_LISTED])
        return Finding(Verdict.BROKEN, "", 0, len(pairs), listed, len(broken))
    verified = {names for names, record in present.items() if record.verdict is Verdict.VERIFIED}
    covered = {name for names in verified for name in names}
    engines = {engine.name for pair in pairs for engine in pair}
    was_verified = before is not None and before.verdict is Verdict.VERIFIED
    if covered >= engines or (verified and was_verified):
        return Finding(Verdict.VERIFIED, "", _stable_count(revisions, verified), len(pairs))
    unreported = [_broken(names, r) for names, r in sorted(present.items()) if r.result is Result.NOT_REPORTED]
    if unreported:
        return Finding(Verdict.UNKNOWN, unreported[0].seen, 0, len(pairs), tuple(unreported[:1]), 0)
    return Finding(Verdict.UNKNOWN, "not every prefill and decode engine has been probed yet", 0, len(pairs))


def _broken(names: Names, record: Record) -> Broken:
    return Broken(*names, record.seen, record.cause)


def _stable_count(revisions: Sequence[Sequence[Pair]], verified: set[Names]) -> int:
    """Count the verified pairs of a revision: all, or the fewest that cover each engine.

    A count of the verified pairs themselves would change with every probe, and the status with it.
    """
    total = 0
    for pairs in revisions:
        names = {names_of(pair) for pair in pairs}
        fewest = max(len({p for p, _ in names}), len({d for _, d in names}))
        total += len(names) if names <= verified else fewest
    return total
