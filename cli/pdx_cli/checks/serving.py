"""What `pdx doctor` looks for in gateways and engines that run, and in what they say. Pure, as `checks_cluster`."""

import json
import re
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any, Final

from pdx_api.names import ConditionType, Mode, Role
from pdx_api.verification import ADVICE, Cause, Verdict
from pdx_api.verification import Finding as Canaries
from pdx_cli.checks.findings import Finding, Severity, listed, wrong
from pdx_cli.sources.picture import Body, Engine, Gateway, Picture, Tokens
from pdx_operator.observed import engine_log

KV_FLAG: Final = "--kv-transfer-config"
PAIRED_FLAGS: Final = {
    "--dtype": ("the same dtype", Cause.DTYPE),
    "--kv-cache-dtype": ("the same KV cache dtype", Cause.DTYPE),
    "--block-size": ("the same block size", Cause.BLOCK_SIZE),
}
"""Flags of vLLM that must be equal on P and D, how to say so, and what it is called when they are not."""
_PORTS: Final = (
    "Let engine pods reach each other on every port (NIXL's side channel is 5600): see NetworkPolicies, firewalls "
    "between nodes, and VLLM_NIXL_SIDE_CHANNEL_HOST, which must be the pod's own address; where KV goes through a "
    "store, see whether both reach it. If it stays then, delete D's pod: NIXL takes up no connection that it has lost."
)
ENOUGH_SPLIT: Final = 5
ENOUGH_TOKENS: Final = 1000
"""Split requests, and prompt tokens computed by decode engines, from which on some must have come from outside."""
LARGEST_BLOCK: Final = 128
"""Tokens: of a prompt that D's own prefix cache holds, D still computes what fills no block."""
CUT: Final = 300


def processes_have_ended(picture: Picture) -> Iterator[Finding]:
    """Processes of a `pdx up` that are gone."""
    for name in picture.dead:
        yield wrong(
            "ProcessEnded", f"The process {name} has ended", "Read its log (pdx status), and start pdx up again."
        )


def gateways_do_not_answer(picture: Picture) -> Iterator[Finding]:
    """Gateways that run and whose admin port says nothing."""
    for gateway in picture.gateways:
        if gateway.state is None and gateway.trouble:
            remedy = "Read its log." if picture.namespace is None else f"kubectl logs {gateway.name} says more."
            yield wrong("GatewaySilent", f"The gateway {gateway.name} does not answer: {gateway.trouble}", remedy)


def gateways_know_no_engine(picture: Picture) -> Iterator[Finding]:
    """Engines are ready, and a gateway knows none of them."""
    ready = [pod.name for pod in picture.pods if pod.ready and pod.role in list(Role)]
    for gateway in picture.gateways:
        if ready and gateway.state is not None and not gateway.state.get("endpoints"):
            yield wrong(
                "NoEndpoints",
                f"{len(ready)} engines are ready, and the gateway {gateway.name} knows none of them: it cannot list "
                "the pods of its namespace, or their labels and annotations were changed",
                f"kubectl logs {gateway.name} says which; the right to list pods is in the Role and RoleBinding of "
                "the same name as the gateway's Deployment.",
            )


def endpoints_are_left_out(picture: Picture) -> Iterator[Finding]:
    """Engines that a gateway does not use, and its reason."""
    unready = {pod.name for pod in picture.pods if not pod.ready}
    bare = {engine.name for engine in picture.engines if _lacks_connector(engine)}
    told: set[str] = set()
    for endpoint in picture.endpoints:
        name, reason = str(endpoint.get("pod") or endpoint.get("name")), str(endpoint.get("reason") or "")
        if endpoint.get("state") == "Warm" or not reason or name in (told | unready | bare):
            continue
        told.add(name)
        finding = _left_out(endpoint, name, reason)
        if finding is not None:
            yield finding


def _left_out(endpoint: Body, name: str, reason: str) -> Finding | None:
    who = f"The gateway does not use the {endpoint.get('role')} engine {name}"
    if "without kv_transfer_params" in reason:
        return _without_connector(
            f"{endpoint.get('role')} engine {name}", "it answers a hand-off without KV parameters"
        )
    if re.search(r"waits for|no decode|has restarted|not been warmed", reason):
        return None
    culprit = reason.partition(": ")[0]
    if endpoint.get("role") == Role.PREFILL and ": " in reason and culprit not in (name, endpoint.get("name")):
        sentence = f"No hand-off succeeds from the prefill engine {name} to the decode engine {culprit}: {_cut(reason)}"
        return wrong("HandoffFails", sentence, _PORTS)
    if re.search(r"\b401\b|Unauthorized", reason):
        remedy = "Gateway and engine have different API keys: restart what has read the older Secret."
        return wrong("EngineKeyRefused", f"{who}: {_cut(reason)}", remedy)
    if re.search(r"connect|refused|unreachable|timed out", reason, re.IGNORECASE):
        remedy = (
            "See whether the engine lives (its log), and whether a NetworkPolicy or a service mesh keeps the gateway "
            "from its port 8000."
        )
        return wrong("EngineNotReached", f"{who}: {_cut(reason)}", remedy)
    return wrong("EngineLeftOut", f"{who}: {_cut(reason)}", "Read the engine's log.")


def engines_are_ill(picture: Picture) -> Iterator[Finding]:
    """Engines that run and are not well by their own word."""
    unready = {pod.name for pod in picture.pods if not pod.ready}
    for engine in picture.engines:
        if engine.trouble and engine.name not in unready:
            sentence = f"The {engine.role} engine {engine.name} is not healthy: {_cut(engine.trouble)}"
            yield wrong("EngineUnhealthy", sentence, "Read its log.")


def connector_is_missing(picture: Picture) -> Iterator[Finding]:
    """An engine that should hand KV over runs without its connector."""
    for engine in picture.engines:
        if _lacks_connector(engine) and picture.mode is Mode.DISAGGREGATED:
            yield _without_connector(f"{engine.role} engine {engine.name}", f"its command line has no {KV_FLAG}")


def _lacks_connector(engine: Engine) -> bool:
    return bool(engine.args) and engine.role is not Role.AGGREGATED and _flag(engine.args, KV_FLAG) is None


def _without_connector(who: str, seen: str) -> Finding:
    return wrong(
        Cause.NO_CONNECTOR,
        f"The {who} runs without a KV connector ({seen}), so decode engines compute every prompt again",
        f"Let it have {KV_FLAG} as `pdx render` shows it: find what rewrites its pod (a policy, a webhook) or what "
        "its image makes of arguments, undo changes of the engines' Deployment, and delete the pod.",
    )


def engines_differ_from_what_was_rendered(picture: Picture) -> Iterator[Finding]:
    """Pods whose flags are not those that the operator wrote; while pods are replaced, some have older ones."""
    moving = {(pool.role, pool.revision) for pool in picture.pools if not pool.settled}
    for engine in picture.engines:
        known = engine.args and engine.rendered is not None and (engine.role, engine.revision) not in moving
        if not known or engine.rendered is None or _lacks_connector(engine):
            continue
        names = sorted(
            name
            for name in {*_flags(engine.args), *_flags(engine.rendered)}
            if _flags(engine.args).get(name) != _flags(engine.rendered).get(name)
        )
        if not names:
            continue
        said = (f"{n} is {_shown(engine.args, n)} instead of {_shown(engine.rendered, n)}" for n in names)
        who = f"The {engine.role} engine {engine.name}"
        sentence = f"{who} was started with other arguments than the operator wrote: {listed(said)}"
        yield wrong("ArgumentsDiffer", sentence, "Delete the pod; if it comes back so, find what rewrites pods.")


def pairs_differ(picture: Picture) -> Iterator[Finding]:
    """P and D of one revision that vLLM does not let exchange KV."""
    engines = sorted((e for e in picture.engines if e.role is not Role.AGGREGATED), key=lambda e: e.revision)
    for _, group in groupby(engines, key=lambda e: e.revision):
        found = list(group)
        prefill = [e for e in found if e.role is Role.PREFILL]
        decode = [e for e in found if e.role is Role.DECODE]
        if prefill and decode:
            yield from _differences(prefill[0], decode)
            yield from _differences(decode[0], prefill[1:])


def _differences(one: Engine, others: list[Engine]) -> Iterator[Finding]:
    for other in others:
        if (mine := _model(one)) and (theirs := _model(other)) and mine != theirs:
            yield wrong(
                Cause.MODEL,
                f"The {one.role} engine {one.name} serves the model {mine!r} and the {other.role} engine {other.name} "
                f"{theirs!r}: vLLM refuses KV from an engine with another model string",
                "Give both the same model: spec.model, and no model in `args` or podTemplate of one role.",
            )
        if one.version and other.version and one.version != other.version:
            yield wrong(
                Cause.VERSION,
                f"The {one.role} engine {one.name} runs vLLM {one.version} and the {other.role} engine {other.name} "
                f"{other.version}: vLLM refuses KV from another version",
                "Give both the same image: spec.engine.image, and none in podTemplate of one role.",
            )
        for flag, (same, cause) in PAIRED_FLAGS.items():
            mine, theirs = _flag(one.args, flag), _flag(other.args, flag)
            if one.args and other.args and mine != theirs:
                yield wrong(
                    cause,
                    f"{flag} is {mine or 'not set'} on the {one.role} engine {one.name} and {theirs or 'not set'} on "
                    f"the {other.role} engine {other.name}: a pair needs {same}",
                    "Set it in spec.engine, for both roles.",
                )


def _model(engine: Engine) -> str | None:
    if engine.args[:1] == ("serve",) and len(engine.args) > 1 and not engine.args[1].startswith("-"):
        # vLLM lets --model win over the positional argument.
        return _flag(engine.args, "--model") or engine.args[1]
    return engine.model


def logs_tell_of_failed_transfers(picture: Picture) -> Iterator[Finding]:
    """What engines have logged of late about KV that did not arrive, unless canaries have come through since."""
    if _is_verified(picture):
        return
    for engine in picture.engines:
        lines = re.split(_KV_ARRIVED, engine.log)[-1].splitlines()
        for cause, pattern, says, remedy in _KV_LOG:
            line = next((line for line in reversed(lines) if re.search(pattern, line)), None)
            if line is not None:
                peers = re.findall(r"'remote_host': '([^']+)', 'remote_port': (\d+)", engine.log)
                where = f" at {':'.join(peers[-1])}" if peers and cause is Cause.PORTS else ""
                sentence = (
                    f"The {engine.role} engine {engine.name} {says}{where}, by its log: {engine_log.read(line).line}"
                )
                yield wrong(cause, sentence, remedy)
                break


def _is_verified(picture: Picture) -> bool:
    """Whether canaries have shown of every engine that KV moves."""
    status = picture.condition(ConditionType.KV_TRANSFER_VERIFIED).get("status")
    verdicts = {_finding(gateway).verdict for gateway in picture.gateways}
    return status == "True" or (status != "False" and verdicts == {Verdict.VERIFIED})


# vllm distributed/kv_transfer/kv_connector/v1/nixl/{base,pull,push}_worker.py
_KV_ARRIVED: Final = r"compatibility check passed|Num successful transfers=[1-9]"
"""What an engine logs when its peer is well: what was logged before it says nothing any more."""
_KV_LOG: Final = (
    (
        Cause.ENGINES,
        r"compatibility hash mismatch",
        "refuses KV of its peer, whose vLLM version, model string, dtype, layout or order is another",
        "Let both be started by the same spec: the same image, model and engine arguments.",
    ),
    (
        Cause.PORTS,
        r"failure_type.{1,4}(push_|push_reg_)?handshake(_setup)?_failed|transfer failure: (push_|push_reg_)?handshake",
        "gets no answer from its peer's side channel",
        _PORTS,
    ),
    (
        Cause.TRANSFER,
        r"transfer failure: transfer_(failed|exception|setup_failed)",
        "reaches its peer but not its memory: the transfer itself fails",
        "KV goes over ports and devices that UCX chooses: open all ports between engine pods, see UCX_TLS and "
        "UCX_NET_DEVICES, and for RDMA the memlock limit.",
    ),
)


def canary_says_that_kv_does_not_move(picture: Picture) -> Iterator[Finding]:
    """What canaries have shown: as the operator tells it, or where it tells nothing, as the gateways do."""
    verified = picture.condition(ConditionType.KV_TRANSFER_VERIFIED)
    status, reason, message = (str(verified.get(key, "")) for key in ("status", "reason", "message"))
    if status == "False":
        yield wrong(reason, f"The canaries show: {message}")
    elif status == "Unknown" and reason not in _NOT_ASKED:
        yield Finding(Severity.NOTE, reason, f"Whether KV moves is not known: {message}")
    if status in ("True", "False"):
        return
    for gateway in picture.gateways:
        finding = _finding(gateway)
        for pair in finding.broken:
            if finding.verdict is Verdict.BROKEN:
                sentence = f"KV does not travel from {pair.prefill} to {pair.decode}, as the canaries show: {pair.seen}"
                yield wrong(pair.cause, sentence, f"Likely: {ADVICE[pair.cause]}.")


def _finding(gateway: Gateway) -> Canaries:
    """What the canaries of a gateway have shown; one of another version may say it in words unknown here."""
    try:
        return Canaries.read((gateway.canary or {})["finding"])
    except (KeyError, TypeError, ValueError):
        return Canaries(Verdict.UNKNOWN)


_NOT_ASKED: Final = ("Aggregated", "SwitchedOff", "NotTriedYet")
"""Reasons of a condition that is Unknown because nothing is to be known, or nothing yet."""


def no_token_came_from_outside(picture: Picture) -> Iterator[Finding]:
    """Requests were split, and decode engines computed their prompts by themselves."""
    split = sum(_outcomes(gateway.state).get("split", 0) for gateway in picture.gateways)
    counts = [engine.tokens for engine in picture.engines if engine.role is Role.DECODE and engine.tokens]
    total = Tokens(sum(c.prompt for c in counts), sum(c.external for c in counts), sum(c.computed for c in counts))
    for when, (requests, tokens) in (("", (split, total)), ("In the last half minute ", _lately(picture))):
        if requests >= ENOUGH_SPLIT and _computes_again(requests, tokens):
            yield wrong(
                "KVNotMoving",
                f"{when}{requests} requests went over a prefill engine, and of the {tokens.prompt:.0f} prompt tokens "
                f"of the decode engines none came from outside: decode computed {tokens.computed:.0f} of them again",
                "See the causes above; if there is none, whether the engines reach each other on every port.",
            )
            return


def _computes_again(requests: int, tokens: Tokens) -> bool:
    """Whether D's have computed more than what their own prefix caches leave of prompts that they hold."""
    left = min(tokens.prompt / 2, requests * LARGEST_BLOCK)
    return not tokens.external and tokens.computed >= max(ENOUGH_TOKENS, left)


def _lately(picture: Picture) -> tuple[int, Tokens]:
    """Split requests of all gateways in the last half minute, and the prompt tokens of D's meanwhile.

    A D counts what comes from every gateway, so one of them is asked for it.
    """
    told = [(gateway.state or {}).get("arrivals") or {} for gateway in picture.gateways]
    decode = {name: tokens for each in told for name, tokens in (each.get("decode") or {}).items()}
    split = sum(each.get("split", 0) for each in told)
    sums = {key: sum(d.get(key, 0) for d in decode.values()) for key in ("promptTokens", "outside", "computed")}
    return split, Tokens(*sums.values())


def nothing_is_split(picture: Picture) -> Iterator[Finding]:
    """It is meant to be disaggregated and is not, and nobody would notice."""
    outcomes: dict[str, int] = {}
    for gateway in picture.gateways:
        for name, count in _outcomes(gateway.state).items():
            outcomes[name] = outcomes.get(name, 0) + count
    whole, split = outcomes.get("whole", 0), outcomes.get("split", 0)
    if picture.mode is Mode.DISAGGREGATED and whole >= ENOUGH_SPLIT and not split:
        sentence = f"All {whole} requests so far were served by decode engines alone"
        remedy = (
            "That is as it should be for short prompts (routing.disaggregateAboveTokens) and for requests that cannot "
            "be split; pdx_not_split_total tells why."
        )
        yield Finding(Severity.NOTE, "NothingSplit", sentence, remedy)


def handoffs_were_lost(picture: Picture) -> Iterator[Finding]:
    """Hand-offs whose blocks an engine still holds in vain."""
    for endpoint in picture.endpoints:
        if lost := endpoint.get("lostHandoffs"):
            name = endpoint.get("pod") or endpoint.get("name")
            sentence = f"The decode engine {name} holds the blocks of {lost} hand-offs whose prefill engine was lost"
            remedy = "It keeps them until it restarts; the gateway sends it less meanwhile."
            yield Finding(Severity.NOTE, "HandoffsLost", sentence, remedy)


def _outcomes(state: Body | None) -> Mapping[str, int]:
    return (state or {}).get("outcomes") or {}


def _flags(args: tuple[str, ...]) -> dict[str, Any]:
    """Flags with their values; the last of a name wins, and what is no flag is `the model`."""
    flags: dict[str, Any] = {}
    name = ""
    for arg in args[1:] if args[:1] == ("serve",) else args:
        if arg.startswith("--"):
            name, equals, value = arg.partition("=")
            flags[name] = _plain(value) if equals else True
        else:
            flags[name or "the model"] = _plain(arg)
            name = ""
    return flags


def _flag(args: tuple[str, ...], name: str) -> str | None:
    value = _flags(args).get(name)
    return None if value is None else value if isinstance(value, str) else json.dumps(value)


def _shown(args: tuple[str, ...], name: str) -> str:
    return _cut(_flag(args, name) or "unset")


def _plain(value: str) -> Any:
    """JSON with its members in any order is the same."""
    try:
        found = json.loads(value)
    except ValueError:
        return value
    return found if isinstance(found, dict) else value


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= CUT else f"{line[: CUT - 1]}…"


CHECKS: Final = (
    processes_have_ended,
    connector_is_missing,
    pairs_differ,
    engines_differ_from_what_was_rendered,
    canary_says_that_kv_does_not_move,
    logs_tell_of_failed_transfers,
    endpoints_are_left_out,
    engines_are_ill,
    gateways_do_not_answer,
    gateways_know_no_engine,
    no_token_came_from_outside,
    handoffs_were_lost,
    nothing_is_split,
)
