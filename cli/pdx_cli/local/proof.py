"""The proof that KV moved: the evidence of one request, the verdict on this evidence, and the printed text. Pure."""

from dataclasses import dataclass
from typing import Final

from pdx_api.names import Mode

WHOLE_BLOCKS: Final = 0.9
"""Share of the prompt that must come through the connector; D may compute the last block, which is not full."""


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """An engine, for the user."""

    name: str
    address: str
    """HOST:PORT of its HTTP API."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Results of one request through the gateway, and of the same request to one engine."""

    mode: Mode
    wiring: str
    """Order and connector, for the user."""
    prefill: EngineAddress | None
    """The prefill engine that the gateway reports; None if the request was not split."""
    decode: EngineAddress | None
    single: EngineAddress
    """The engine that answered the same request alone."""
    prefill_ms: float | None
    handoff_ms: float | None
    total_ms: float
    """Measured at the client."""
    prompt_tokens: int
    external_tokens: int
    """Prompt tokens that the decode engines loaded through the connector, by their counters."""
    answer_tokens: int
    text: str
    single_text: str


@dataclass(frozen=True, slots=True)
class Proof:
    """The judgement, as lines to print."""

    proven: bool
    lines: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(self.lines)


def judge(evidence: Evidence) -> Proof:
    """Disaggregated: KV must have moved. Aggregated: none may move. In both, the text must equal that of one engine."""
    flaw = _flaw_of_text(evidence) or _flaw_of_kv(evidence)
    return Proof(proven=flaw is None, lines=("Proof", *_facts(evidence), _verdict(evidence, flaw)))


def _flaw_of_text(evidence: Evidence) -> str | None:
    if evidence.answer_tokens == 0:
        return "the answer has no token to compare"
    if evidence.text != evidence.single_text:
        return "the text differs from a single engine's"
    return None


def _flaw_of_kv(evidence: Evidence) -> str | None:
    external, prompt = evidence.external_tokens, evidence.prompt_tokens
    if evidence.mode is Mode.AGGREGATED:
        return f"{external} tokens came through a connector, but mode Aggregated has none" if external else None
    if external < WHOLE_BLOCKS * prompt:
        return f"only {external} of {prompt} prompt tokens came through the connector"
    if external > prompt:
        return f"{external} tokens came through the connector for a prompt of {prompt}: other requests ran too"
    return None


def _verdict(evidence: Evidence, flaw: str | None) -> str:
    if evidence.mode is Mode.AGGREGATED:
        none = "KV moved: none, as expected in mode Aggregated"
        return f"{none}; not proven: {flaw}" if flaw else none
    return f"KV moved: not proven: {flaw}" if flaw else "KV moved: yes"


def _facts(evidence: Evidence) -> list[str]:
    if evidence.mode is Mode.AGGREGATED:
        rows = [("mode", "Aggregated: one engine prefills and decodes"), ("engine", _engine(evidence.decode, None))]
        kv = "no connector: the engine computes the whole prompt"
    else:
        rows = [
            ("order", evidence.wiring),
            ("prefill", _engine(evidence.prefill, evidence.prefill_ms)),
            ("hand-off", _handoff(evidence.handoff_ms)),
            ("decode", _engine(evidence.decode, None)),
        ]
        kv = f"{evidence.external_tokens} of {evidence.prompt_tokens} prompt tokens came through the connector"
    equal = "equal to" if evidence.text == evidence.single_text else "NOT equal to"
    rows += [
        ("KV", kv),
        ("text", f"{equal} a single engine's ({evidence.single.name}, {evidence.answer_tokens} tokens)"),
        ("total", f"{evidence.total_ms:.1f} ms for {evidence.prompt_tokens} + {evidence.answer_tokens} tokens"),
    ]
    return [f"  {name:<10} {value}" for name, value in rows]


def _engine(engine: EngineAddress | None, milliseconds: float | None) -> str:
    if engine is None:
        return "none"
    time = f"   {milliseconds:.1f} ms" if milliseconds is not None else ""
    return f"{engine.name:<13} {engine.address}{time}"


def _handoff(milliseconds: float | None) -> str:
    return "none" if milliseconds is None else f"{milliseconds:.1f} ms to decode's first event"
