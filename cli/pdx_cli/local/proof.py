"""The proof that KV moved: what one request showed, the judgement of it, and how it is told. Pure."""

from dataclasses import dataclass
from typing import Final

from pdx_api.names import Mode

WHOLE_BLOCKS: Final = 0.9
"""Share of the prompt that must come through the connector: a last block that is not full may be computed anew."""


@dataclass(frozen=True, slots=True)
class Place:
    """An engine as the user sees it."""

    name: str
    address: str
    """HOST:PORT of its HTTP API."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one request through the gateway showed, and the same request at one engine alone."""

    mode: Mode
    wiring: str
    """Order and connector, for the reader."""
    prefill: Place | None
    """Who prefilled, as the gateway says; None when nobody but the decode engine did."""
    decode: Place | None
    single: Place
    """The engine that answered the same request alone."""
    prefill_ms: float | None
    handoff_ms: float | None
    total_ms: float
    """At the client."""
    prompt_tokens: int
    external_tokens: int
    """Prompt tokens that the decode engines counted as come through the connector."""
    answer_tokens: int
    text: str
    single_text: str


@dataclass(frozen=True, slots=True)
class Proof:
    """A judgement, ready to print."""

    proven: bool
    lines: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(self.lines)


def judge(evidence: Evidence) -> Proof:
    """Disaggregated: KV must have moved; Aggregated: none may. In both the text is that of a single engine."""
    flaw = _flaw_of_text(evidence) or _flaw_of_kv(evidence)
    return Proof(proven=flaw is None, lines=("Proof", *_facts(evidence), _verdict(evidence, flaw)))


def _flaw_of_text(evidence: Evidence) -> str | None:
    if evidence.answer_tokens == 0:
        return "the answer holds no token to compare"
    if evidence.text != evidence.single_text:
        return "the text is not that of a single engine"
    return None


def _flaw_of_kv(evidence: Evidence) -> str | None:
    external, prompt = evidence.external_tokens, evidence.prompt_tokens
    if evidence.mode is Mode.AGGREGATED:
        return f"{external} tokens came through a connector, which mode Aggregated has none of" if external else None
    if external < WHOLE_BLOCKS * prompt:
        return f"only {external} of {prompt} prompt tokens came through the connector"
    if external > prompt:
        return f"{external} tokens came through the connector for a prompt of {prompt}: other requests ran meanwhile"
    return None


def _verdict(evidence: Evidence, flaw: str | None) -> str:
    if evidence.mode is Mode.AGGREGATED:
        none = "KV moved: none, as mode Aggregated means it"
        return f"{none}; not proven: {flaw}" if flaw else none
    return f"KV moved: not proven: {flaw}" if flaw else "KV moved: yes"


def _facts(evidence: Evidence) -> list[str]:
    if evidence.mode is Mode.AGGREGATED:
        rows = [("mode", "Aggregated: one engine prefills and decodes"), ("engine", _place(evidence.decode, None))]
        kv = "no connector: the engine computes the whole prompt"
    else:
        rows = [
            ("order", evidence.wiring),
            ("prefill", _place(evidence.prefill, evidence.prefill_ms)),
            ("hand-off", _handoff(evidence.handoff_ms)),
            ("decode", _place(evidence.decode, None)),
        ]
        kv = f"{evidence.external_tokens} of {evidence.prompt_tokens} prompt tokens came through the connector"
    equal = "equal to" if evidence.text == evidence.single_text else "NOT equal to"
    rows += [
        ("KV", kv),
        ("text", f"{equal} a single engine's ({evidence.single.name}, {evidence.answer_tokens} tokens)"),
        ("total", f"{evidence.total_ms:.1f} ms for {evidence.prompt_tokens} + {evidence.answer_tokens} tokens"),
    ]
    return [f"  {name:<10} {value}" for name, value in rows]


def _place(place: Place | None, milliseconds: float | None) -> str:
    if place is None:
        return "none"
    time = f"   {milliseconds:.1f} ms" if milliseconds is not None else ""
    return f"{place.name:<13} {place.address}{time}"


def _handoff(milliseconds: float | None) -> str:
    return "none" if milliseconds is None else f"{milliseconds:.1f} ms to decode's first event"
