"""One hand-off as it went: what both engines answered, and what D counted. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pdx_api.connectors.families import Identity, KVParams
from pdx_cli.probing.causes import Reason
from pdx_cli.sources.client import AnswerError

if TYPE_CHECKING:  # the gateway's code is imported once both engines answer
    from pdx_proxy.verification.verdict import Answer

_TEXT: Final = 300
"""Characters of an engine's own text."""


@dataclass(frozen=True, slots=True)
class Leg:
    """One request to one engine, and its end."""

    seconds: float
    body: Mapping[str, Any] | None = None
    """The JSON of its answer; None without one."""
    failure: AnswerError | None = None

    @property
    def answer(self) -> "Answer | None":
        """The completion; None if it is none of vLLM."""
        from pdx_proxy.verification.verdict import read_answer

        return None if self.body is None else read_answer(json.dumps(self.body).encode())


@dataclass(frozen=True, slots=True)
class Problem:
    """Why KV did not move."""

    reason: Reason
    seen: str
    """What was observed, as a clause."""


@dataclass(frozen=True, slots=True)
class Counted:
    """What D's metrics counted during a hand-off."""

    external: int
    """Prompt tokens that came through the connector."""
    busy: bool
    """Whether D served other requests, so that the tokens may be theirs."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A hand-off."""

    request_id: str
    prefill: Leg | None = None
    decode: Leg | None = None
    params: KVParams = field(default_factory=dict)
    """Those of D's leg; empty in the family pool."""
    identity: Identity | None = None
    """P's identity, in families that need it."""
    matches: bool = False
    """P's answer shows that P runs the asked connector in the asked direction, pull or push."""
    problem: Problem | None = None
    """Why D got no leg."""
    counted: Counted | None = None
    """None if D reports no metrics."""
    alone: Leg | None = None
    """D's answer to the same prompt without P."""
    held: str = ""
    """What an engine may still hold of it, as a clause; empty: nothing."""

    @property
    def loaded(self) -> int | None:
        """Prompt tokens that D took from P; None if neither its answer nor its metrics show that.

        The fewer of the two, because a D may report as cached what it failed to load and computed again.
        """
        answer = None if self.decode is None else self.decode.answer
        external = None if self.counted is None or self.counted.busy else self.counted.external
        reported = [] if answer is None or answer.cached is None else [answer.cached]
        return min([*reported, *([] if external is None else [external])], default=None)


def said_by(failure: AnswerError) -> str:
    """Return what an engine answered, or why it did not, as the rest of a clause."""
    if failure.status is None:
        return str(failure).partition("/v1/completions ")[2] or str(failure)
    try:
        found = json.loads(failure.body)
        error = found.get("error", found)
        text = str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, AttributeError, KeyError, TypeError):
        text = failure.body
    text = " ".join(text.split())[:_TEXT]
    return f"answered {failure.status}: {text}" if text else f"answered {failure.status}"


def leg_line(leg: Leg | None, nothing: str) -> str:
    """Return how a leg ended."""
    if leg is None:
        return nothing
    return f"answered in {leg.seconds * 1000:.0f} ms" if leg.failure is None else said_by(leg.failure)
