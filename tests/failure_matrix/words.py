"""The words of the tables, and what they mean. Errors of the tables are ValueErrors."""

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Final, TypeVar

from pdx_api.names import PrefillFailure
from pdx_proxy.config.settings import Deadlines
from pdx_proxy.telemetry.counters import Settlement
from tests.failure_matrix.row import (
    ALL,
    BOTH,
    IDLE,
    MOONCAKE_ALL,
    MOONCAKE_D_WAITS,
    MOONCAKE_P_FIRST,
    PEERS,
    POLICIES,
    POOL,
    PULL,
    PULL_AND_POOL,
    PUSH,
    SHORT,
    STREAM,
    TOTAL,
    WHOLE,
    Client,
    Phase,
    Wiring,
)

_T = TypeVar("_T")
_Name = TypeVar("_Name", bound=StrEnum)
NOTHING: Final = "-"
PHASES: Final = {phase.name.lower(): phase for phase in Phase}
ORDERS: Final[Mapping[str, tuple[Wiring, ...]]] = {
    "all": ALL,
    "nixl": PEERS,
    "pull": PULL,
    "push": PUSH,
    "pool": POOL,
    "p-first": PULL_AND_POOL,
    "m-all": MOONCAKE_ALL,
    "m-first": MOONCAKE_P_FIRST,
    "m-waits": MOONCAKE_D_WAITS,
}
STREAMS: Final[Mapping[str, tuple[bool, ...]]] = {"both": BOTH, "yes": STREAM, "no": WHOLE, "alt": BOTH}
"""`alt`: the orders alternate between the two forms."""
CLIENTS: Final[Mapping[str, Client | str]] = {
    "right": Client.RIGHT,
    "503": Client.UNAVAILABLE,
    "5xx": Client.ENGINES,
    "504": Client.LATE,
    "4xx": Client.REFUSED,
    "event": Client.EVENT,
    "cut": Client.CUT,
    "as-is": Client.AS_IT_CAME,
    "gone": "nothing: it has left",
    NOTHING: "",
}
POLICY: Final = {"any": POLICIES} | {policy.value: (policy,) for policy in PrefillFailure}
DEADLINES: Final[Mapping[str, Deadlines]] = {
    "short": SHORT,
    "idle": IDLE,
    "total": TOTAL,
    "sooner": replace(TOTAL, total_seconds=0.6, prefill_seconds=0.8),
}
"""`sooner`: D has given up before the answers are settled."""
_SETTLED: Final = {
    "freed": "released|lease",
    "any": "released|lease|finished|prefill_stopped|none",
    "any-lost": "released|lease|finished|prefill_stopped|none|decode_lost",
    "waited": "released|finished|lease",
    "in-vain": "decode_lost|finished|released|lease",
    "may-have": "prefill_stopped|decode_lost",
}
"""`in-vain`: a D that hangs may wait or not. `may-have`: P has finished, and its write reaches D without the answer."""


def word(column: str, value: str, meanings: Mapping[str, _T]) -> _T:
    """What the value of a column means."""
    if value not in meanings:
        raise ValueError(f"{column}: {value!r} is none of {', '.join(meanings)}")
    return meanings[value]


def members(column: str, value: str, names: type[_Name]) -> dict[_Name, int]:
    """What `split,whole=2` counts: each name once, unless it has a number."""
    if value == NOTHING:
        return {}
    known = {member.value: member for member in names}
    numbered = [part.partition("=") for part in value.split(",")]
    return {word(column, name, known): int(number or 1) for name, _, number in numbered}


def settled(value: str) -> dict[Settlement, int] | tuple[Settlement | None, ...]:
    """How hand-offs are settled: `finished=1` is exactly that; `finished|lease|none` allows each of them."""
    if value == NOTHING or "=" in value:
        return members("settled", value, Settlement)
    known: dict[str, Settlement | None] = {"none": None} | {how.value: how for how in Settlement}
    names = "|".join(_SETTLED.get(name, name) for name in value.split("|"))
    return tuple(word("settled", name, known) for name in names.split("|"))


def legs(value: str) -> tuple[int | None, int | None, int]:
    """`?/2/0`: an unknown number of legs to P, two to D, and no whole request to D."""
    prefill, decode, whole = value.split("/")
    return _number(prefill), _number(decode), int(whole)


def _number(value: str) -> int | None:
    return None if value == "?" else int(value)
