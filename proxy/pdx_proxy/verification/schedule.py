"""Which pairs of engines can be probed, and which of them are due. Pure."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby, islice, product
from typing import Final

from pdx_api.names import Role
from pdx_proxy.endpoints.endpoint import Endpoint, Names, State, exchanges
from pdx_proxy.verification.record import LISTED, Pair, Record, Result, Unequal, current_record, names_of

EVERY_PAIR: Final = 16
"""A revision of up to this many pairs has all of them probed at the start, a larger one enough to cover each engine."""

SUSPENDED_SECONDS: Final = 30.0
"""The longest pause between two probes of a suspended pair."""
_NOT_FAILED: Final = (Result.MOVED, Result.NOT_REPORTED)
"""Results that are older than a suspension: either would have ended it."""


def candidates(endpoints: Iterable[Endpoint]) -> list[list[Pair]]:
    """Return the pairs that KV can move within, grouped by revision, sorted by P and then D.

    A P that failed its warm-up is included: its pairs may be broken, and that must be found. A D must be warm, because
    a transfer probe must not be its first work.
    """
    usable = sorted((e for e in endpoints if _is_usable(e)), key=lambda e: (e.revision, e.name))
    revisions: list[list[Pair]] = []
    for _, group in groupby(usable, key=lambda e: e.revision):
        engines = list(group)
        decodes = [d for d in engines if d.role is Role.DECODE]
        pairs = [(p, d) for p in engines if p.role is Role.PREFILL for d in decodes if exchanges(p, d)]
        if pairs:
            revisions.append(pairs)
    return revisions


def unequal(endpoints: Iterable[Endpoint]) -> Unequal:
    """Return the pairs of revisions in which no P and D exchange KV, because their versions of vLLM differ.

    A revision with an engine that may pair once it serves has none.
    """
    engines = sorted((e for e in endpoints if not e.spec.leaving), key=lambda e: (e.revision, e.name))
    count = 0
    first: list[Pair] = []
    for _, group in groupby(engines, key=lambda e: e.revision):
        of_revision = list(group)
        prefills = [p for p in of_revision if p.role is Role.PREFILL]
        decodes = [d for d in of_revision if d.role is Role.DECODE]
        if any(exchanges(p, d) for p in prefills for d in decodes):
            continue
        ready, warm = [p for p in prefills if p.spec.ready], [d for d in decodes if d.warm]
        count += len(ready) * len(warm)
        first += islice(product(ready, warm), LISTED - len(first))
    return Unequal(count, tuple(first))


def _is_usable(endpoint: Endpoint) -> bool:
    if endpoint.role is Role.PREFILL and endpoint.reason is not None:
        return endpoint.state in (State.COLD, State.SUSPECT, State.WARM)
    return endpoint.warm


def due(pairs: Sequence[Pair], records: Mapping[Names, Record], now: float, period: float) -> list[Pair]:
    """Return the pairs of one revision to probe now, so that each engine is probed about once in `period` seconds.

    At the start these are all pairs of a small revision, or enough to cover each engine of a large one. Afterwards,
    each engine that was not probed for `period` seconds gets a probe in its least recently probed pair. A pair that
    failed is due sooner.
    """
    current = {names_of(pair): record for pair in pairs if (record := current_record(records, pair)) is not None}
    chosen = [pair for pair in pairs if (r := current.get(names_of(pair))) is not None and r.due_at(period) <= now]
    if len(pairs) <= EVERY_PAIR:
        chosen += [pair for pair in pairs if names_of(pair) not in current]
    return chosen + _covering(pairs, chosen, current, now - period)


def urgent(
    pairs: Sequence[Pair],
    records: Mapping[Names, Record],
    now: float,
    watched: Collection[Names],
    suspended: Collection[Names],
) -> list[Pair]:
    """Return the pairs of one revision that must be probed now, whatever the period is.

    Watched pairs are probed at once, and suspended ones at intervals, so that splitting returns soon after a repair.
    """
    if not watched and not suspended:
        return []
    chosen: list[Pair] = []
    for pair in pairs:
        key, record = names_of(pair), current_record(records, pair)
        again = record is None or record.result in _NOT_FAILED or record.due_at(SUSPENDED_SECONDS) <= now
        if key in watched or (key in suspended and again):
            chosen.append(pair)
    return chosen


def _covering(
    pairs: Sequence[Pair], chosen: Sequence[Pair], current: Mapping[Names, Record], oldest: float
) -> list[Pair]:
    """Return pairs so that, with the chosen ones, no engine has its last probe at or before `oldest`."""
    last = _last_probes(current)
    busy = {engine.name for pair in chosen for engine in pair}
    added: list[Pair] = []
    uses: dict[str, int] = {}
    for side in (0, 1):
        for name, group in _by_engine(pairs, side):
            if name in busy or (name in last and last[name] > oldest):
                continue
            pair = min(group, key=lambda p: (p[1 - side].name in busy, _at(current, p), uses.get(p[1 - side].name, 0)))
            added.append(pair)
            busy |= {engine.name for engine in pair}
            uses[pair[1 - side].name] = uses.get(pair[1 - side].name, 0) + 1
    return added


def _last_probes(current: Mapping[Names, Record]) -> dict[str, float]:
    last: dict[str, float] = {}
    for names, record in current.items():
        for name in names:
            last[name] = max(last.get(name, 0.0), record.at)
    return last


def _by_engine(pairs: Sequence[Pair], side: int) -> Iterable[tuple[str, list[Pair]]]:
    groups: dict[str, list[Pair]] = {}
    for pair in pairs:
        groups.setdefault(pair[side].name, []).append(pair)
    return groups.items()


def _at(current: Mapping[Names, Record], pair: Pair) -> float:
    record = current.get(names_of(pair))
    return float("-inf") if record is None else record.at
