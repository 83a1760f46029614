"""What a hand-off proves, and why KV did not move. Pure."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final
from urllib.parse import urlsplit

from pdx_api.connectors import CONNECTORS, DEFAULT
from pdx_api.connectors.custom import Custom
from pdx_api.connectors.families import AtBootstrap, InPrefillAnswer, Pool, Pull, Push
from pdx_cli.probing.causes import Reason
from pdx_cli.probing.engines import EngineFacts
from pdx_cli.probing.question import Question
from pdx_cli.probing.trial import Leg, Problem, Trial, said_by
from pdx_cli.sources.client import AnswerError
from pdx_proxy.engines.param_checks import fault_of
from pdx_proxy.handoff.failures import reached_engine
from pdx_proxy.handoff.situation import Decode
from pdx_proxy.verification.diagnosis import Evidence, announced_host, likely_cause
from pdx_proxy.verification.record import Result
from pdx_proxy.verification.verdict import judge

_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
_FULL: Final = (429, 503)


def handed_over(question: Question, trial: Trial) -> Trial:
    """Add to a trial what P's answer hands over: D's parameters, or why D must get no leg."""
    assert trial.prefill is not None, "P's leg has ended"
    family, body, failure = question.family, trial.prefill.body, trial.prefill.failure
    if failure is not None or body is None or (choice := _choice(body)) is None:
        said = "answers nothing of vLLM" if failure is None else said_by(failure)
        return replace(trial, problem=Problem(Reason.PREFILL_FAILS, f"the prefill engine {said}"))
    if choice.get("finish_reason") == "abort":
        return replace(trial, problem=Problem(Reason.PREFILL_FAILS, "the prefill engine aborted its request"))
    if isinstance(family, Pool):
        return trial
    if isinstance(family, Push) and isinstance(family.identity, AtBootstrap):
        assert trial.identity is not None, "it is read before P's leg"
        return replace(trial, params=family.decode_params(trial.request_id, trial.identity))
    params = body.get("kv_transfer_params")
    if not isinstance(params, dict) or not params:
        seen = "the prefill engine answers without kv_transfer_params"
        return replace(trial, problem=Problem(Reason.NO_CONNECTOR, seen))
    return _with_params(question, trial, params)


def _with_params(question: Question, trial: Trial, params: dict[str, Any]) -> Trial:
    """Check P's parameters: wrong ones could end D's engine."""
    family = question.family
    order = question.order_of(params.get("transfer_mode"))
    mode = "pull" if isinstance(family, Pull) else "push"
    if order is not None and params["transfer_mode"] != mode:
        seen = f"the prefill engine was started for order {order}, not {question.order}"
        return replace(trial, params=params, problem=Problem(Reason.OTHER_ORDER, seen))
    trial = replace(trial, matches=order is not None)
    try:
        if isinstance(family, Push) and isinstance(family.identity, InPrefillAnswer):
            identity = family.identity.read(params)
            return replace(trial, identity=identity, params=family.decode_params(trial.request_id, identity))
        fault = fault_of(params, family.answered if isinstance(family, Pull) else (), len(str(params)), nested=True)
    except (KeyError, TypeError, ValueError) as error:
        fault = f"they name no engine ({error})"
    if fault:
        seen = f"the prefill engine answers other parameters than {question.connector.name} has: {fault}"
        return replace(trial, problem=Problem(Reason.OTHER_CONNECTOR, seen))
    return replace(trial, params=params)


def _choice(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    choices = body.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, dict) else None


def decode_state(trial: Trial) -> Decode:
    """Classify the end of D's leg, for its settlement."""
    if trial.problem is not None:
        return Decode.NOT_SENT
    if trial.decode is None:
        return Decode.TIMED_OUT
    failure = trial.decode.failure
    if failure is None:  # it answered, but computed the prompt
        return Decode.FAILED
    if failure.status is None:
        return Decode.TIMED_OUT if is_timeout(failure) else Decode.LOST
    if failure.status in _FULL:
        return Decode.FULL
    if 400 <= failure.status < 500:
        return Decode.REFUSED if reached_engine(failure.body.encode()) else Decode.REFUSED_BY_SERVER
    return Decode.FAILED


def is_timeout(failure: AnswerError) -> bool:
    """Whether the request ended because its time ran out."""
    return failure.status is None and isinstance(failure.__cause__, TimeoutError)


def result_of(trial: Trial) -> Result:
    """Return what a trial proves."""
    answer = None if trial.decode is None else trial.decode.answer
    if trial.problem is not None or answer is None or _shows_nothing(trial.decode):
        return Result.FAILED
    return judge(replace(answer, cached=trial.loaded), None if trial.alone is None else trial.alone.answer)


def may_be_held(trial: Trial) -> bool:
    """Whether P may still hold the KV of a hand-off for D."""
    return result_of(trial) in (Result.FAILED, Result.RECOMPUTED, Result.NOT_REPORTED)


def problem_of(question: Question, trial: Trial, prefill: EngineFacts, decode: EngineFacts) -> Problem | None:
    """Return why a trial did not move KV, or moved another prompt's; None if it moved. The facts are of after it."""
    result = result_of(trial)
    if result is Result.MOVED:
        return None
    seen = _seen(trial, result)
    if trial.problem is not None and trial.problem.reason is not Reason.NO_CONNECTOR:
        return trial.problem
    if trial.problem is not None and prefill.facts.connector:
        return Problem(Reason.OTHER_CONNECTOR, f"{seen}, although it has a connector")
    if result is Result.NOT_REPORTED:
        return Problem(Reason.NOT_REPORTED, seen)
    if _shows_nothing(trial.decode):
        return Problem(Reason.DECODE_FAILS, seen)
    if other := _other_connector(question, prefill, decode):
        return Problem(Reason.OTHER_CONNECTOR, f"{seen}; {other}")
    failed = trial.decode is not None and trial.decode.failure is not None
    answered = failed and not is_timeout(trial.decode.failure)  # type: ignore[union-attr,arg-type]
    announced = announced_host(question.family, trial.identity, trial.params)
    evidence = Evidence(result, prefill.facts, decode.facts, announced, answered, trial.problem is not None)
    host = urlsplit(question.prefill).hostname or ""
    if host in _LOOPBACK:  # forwarded ports, perhaps: nothing is known about its own address
        host = announced or host
    reason = Reason(likely_cause(question.family, host, evidence, question.connector.wire))
    if reason is Reason.HANDOFF and trial.matches and decode.has_nixl:
        reason = Reason.PORTS  # both run the asked connector
    if reason in (Reason.PORTS, Reason.HANDOFF):
        seen += _local_address(question)
    if reason is Reason.NO_CONNECTOR:
        seen = f"{seen}: {evidence.unconnected}"
    return Problem(reason, seen)


def _local_address(question: Question) -> str:
    """Return what makes P's address useless for D, as a clause; empty if nothing does."""
    family, host = question.family, urlsplit(question.prefill).hostname
    if host in _LOOPBACK and isinstance(family, Push) and isinstance(family.identity, AtBootstrap):
        named = f"the prefill request names {host} of --prefill"
        return f"; {named}, where it reaches the prefill engine only on the same machine"
    return ""


def _shows_nothing(leg: Leg | None) -> bool:
    """Whether D was full, was lost, or aborted its leg: it may not even have looked for KV."""
    if leg is None:
        return False
    if leg.failure is not None:
        return leg.failure.status in _FULL or (leg.failure.status is None and not is_timeout(leg.failure))
    choice = _choice(leg.body or {})
    return choice is not None and choice.get("finish_reason") == "abort"


def _other_connector(question: Question, prefill: EngineFacts, decode: EngineFacts) -> str:
    """Return what shows that an engine runs another connector, as a clause; empty if nothing does."""
    if isinstance(question.connector, Custom) or not (prefill.facts.connector and decode.facts.connector):
        return ""
    asked = question.connector.name == CONNECTORS[DEFAULT].name
    for name, engine in (("prefill", prefill), ("decode", decode)):
        if engine.has_nixl is not asked:
            reports = "reports" if engine.has_nixl else "does not report"
            return f"the {name} engine {reports} metrics of {DEFAULT}"
    return ""


def _seen(trial: Trial, result: Result) -> str:
    if trial.problem is not None:
        return trial.problem.seen
    if trial.decode is None:
        return "the decode engine got no request"
    if trial.decode.failure is not None:
        return f"the decode engine {said_by(trial.decode.failure)}"
    if _shows_nothing(trial.decode):
        return "the decode engine aborted its request"
    if trial.decode.answer is None:
        return "the decode engine answers nothing of vLLM"
    match result:
        case Result.NOT_REPORTED:
            return "the decode engine shows neither in its answer nor in its metrics what it took from the prefill one"
        case Result.WRONG_TEXT:
            return "the decode engine's text over this KV differs from its own"
    return f"the decode engine took {trial.loaded} of {trial.decode.answer.prompt_tokens} prompt tokens from elsewhere"
