"""The result of `pdx probe`: five lines, JSON, and the exit code. Pure."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from pdx_api.names import Role
from pdx_cli.errors import ExitCode
from pdx_cli.probing.causes import ADVICE, Reason
from pdx_cli.probing.engines import EngineFacts
from pdx_cli.probing.question import Question
from pdx_cli.probing.trial import Problem, Trial, leg_line


class Outcome(Enum):
    """What the probe has shown."""

    MOVED = "moved"
    NOT_MOVED = "notMoved"
    WRONG_TEXT = "wrongText"
    UNUSABLE = "unusable"
    """An engine does not answer, or is none: no hand-off was tried."""


EXIT_CODES: Final = {
    Outcome.MOVED: ExitCode.DONE,
    Outcome.NOT_MOVED: ExitCode.FAILED,
    Outcome.UNUSABLE: ExitCode.INVALID,
    Outcome.WRONG_TEXT: ExitCode.WRONG_TEXT,
}


@dataclass(slots=True)
class Report:
    """What is known so far."""

    question: Question
    model: str = ""
    engines: dict[Role, EngineFacts] = field(default_factory=dict)
    unusable: dict[Role, str] = field(default_factory=dict)
    """Why an engine cannot be probed, as a clause."""
    trials: list[Trial] = field(default_factory=list)
    """The last one decides."""
    problem: Problem | None = None

    @property
    def outcome(self) -> Outcome:
        """What the probe has shown."""
        if self.unusable:
            return Outcome.UNUSABLE
        if self.problem is None:
            return Outcome.MOVED
        return Outcome.WRONG_TEXT if self.problem.reason is Reason.WRONG_KV else Outcome.NOT_MOVED

    @property
    def reason(self) -> Reason | None:
        """Why KV did not move; None if it did."""
        return Reason.UNUSABLE if self.unusable else self.problem.reason if self.problem is not None else None

    @property
    def trial(self) -> Trial | None:
        """The hand-off that decides."""
        return self.trials[-1] if self.trials else None


def lines_of(report: Report) -> list[str]:
    """Return the five lines."""
    rows = (
        ("asked", _asked(report)),
        ("prefill", _engine(report, Role.PREFILL)),
        ("decode", _engine(report, Role.DECODE)),
        ("KV", _kv(report)),
        ("text", _text(report)),
    )
    return [f"{name:<9} {value}" for name, value in rows]


def _asked(report: Report) -> str:
    question = report.question
    ends = ", ".join(f"{role} {question.url(role)}{_version(report, role)}" for role in (Role.PREFILL, Role.DECODE))
    model = f", model {report.model}" if report.model else ""
    return f"{ends}{model}, {question.connector.name}, order {question.order}"


def _version(report: Report, role: Role) -> str:
    version = report.engines[role].facts.version if role in report.engines else None
    return f" (vLLM {version})" if version else ""


def _engine(report: Report, role: Role) -> str:
    if role in report.unusable:
        return report.unusable[role]
    trial = report.trial
    leg = None if trial is None else trial.prefill if role is Role.PREFILL else trial.decode
    line = leg_line(leg, "got no request")
    return f"{line}; {trial.held}" if trial is not None and trial.held and role is Role.PREFILL else line


def _kv(report: Report) -> str:
    if report.unusable:
        return "not shown to move" if report.trials else "not tried"
    if report.problem is not None:
        moved = {Reason.WRONG_KV: "moved, but it is wrong", Reason.NOT_REPORTED: "not shown to move"}
        verb = moved.get(report.problem.reason, "did not move")
        return f"{verb}: {report.problem.seen}; {ADVICE[report.problem.reason]} ({report.problem.reason})"
    trial = report.trial
    assert trial is not None
    assert trial.decode is not None
    answer, alone = trial.decode.answer, trial.alone
    assert answer is not None
    times = f"{trial.decode.seconds * 1000:.0f} ms over this KV"
    if alone is not None:
        times += f", {alone.seconds * 1000:.0f} ms without it"
    return f"moved: {_evidence(trial, answer.prompt_tokens)}; {times}"


def _evidence(trial: Trial, tokens: int) -> str:
    answer, counted = trial.decode.answer if trial.decode else None, trial.counted
    parts = [] if answer is None or answer.cached is None else [f"by the answer {answer.cached}"]
    if counted is not None:
        parts.append("other requests ran" if counted.busy else f"by the decode engine's metrics {counted.external}")
    return f"{trial.loaded} of {tokens} prompt tokens came from the prefill engine ({', '.join(parts)})"


def _text(report: Report) -> str:
    trial = report.trial
    if trial is None or trial.decode is None or trial.alone is None:
        return "not compared"
    split, alone = trial.decode.answer, trial.alone.answer
    if split is None or alone is None or (report.problem is not None and report.problem.reason is not Reason.WRONG_KV):
        return "not compared"
    ours, direct = "".join(split.tokens), "".join(alone.tokens)
    if report.problem is not None:
        return f"WRONG: {ours!r} instead of {direct!r}"
    if ours == direct:
        return f"equals the decode engine's own text without the prefill engine ({len(split.tokens)} tokens)"
    return f"equals the decode engine's own text up to two tokens that are about equally likely: {ours!r}, {direct!r}"


def as_json(report: Report) -> dict[str, Any]:
    """Return the result as values of JSON."""
    question, trial, problem = report.question, report.trial, report.problem
    answer = None if trial is None or trial.decode is None else trial.decode.answer
    alone = None if trial is None or trial.alone is None else trial.alone.answer
    compared = report.outcome in (Outcome.MOVED, Outcome.WRONG_TEXT) and alone is not None
    return {
        "result": report.outcome.value,
        "reason": report.reason,
        "seen": problem.seen if problem is not None else None,
        "advice": ADVICE[problem.reason] if problem is not None else None,
        "connector": question.connector.name,
        "order": question.order,
        "model": report.model or None,
        "prefill": {**_engine_json(report, Role.PREFILL), "held": (trial.held or None) if trial else None},
        "decode": _engine_json(report, Role.DECODE),
        "kv": {
            "promptTokens": answer.prompt_tokens if answer is not None else None,
            "loadedTokens": trial.loaded if trial is not None else None,
            "answerTokens": answer.cached if answer is not None else None,
            "metricsTokens": trial.counted.external if trial is not None and trial.counted is not None else None,
            "othersRan": trial.counted.busy if trial is not None and trial.counted is not None else None,
            "aloneSeconds": trial.alone.seconds if trial is not None and trial.alone is not None else None,
        },
        "text": {
            "equal": report.outcome is Outcome.MOVED if compared else None,
            "split": "".join(answer.tokens) if answer is not None else None,
            "alone": "".join(alone.tokens) if alone is not None else None,
        },
    }


def _engine_json(report: Report, role: Role) -> dict[str, Any]:
    trial, facts = report.trial, report.engines.get(role)
    leg = None if trial is None else trial.prefill if role is Role.PREFILL else trial.decode
    return {
        "url": report.question.url(role),
        "version": facts.facts.version if facts is not None else None,
        "answered": leg is not None and leg.failure is None,
        "seconds": leg.seconds if leg is not None else None,
        "problem": report.unusable.get(role),
    }
