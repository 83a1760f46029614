"""Checks of gateways: whether they answer, and which endpoints and requests they report."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

from pdx_api.names import ENGINE_KEY_FLAG, ENGINE_PORT, Mode, Role
from pdx_api.verification import Cause
from pdx_cli.checks.clients import cannot_split
from pdx_cli.checks.engines import connector_off, lacks_connector
from pdx_cli.checks.findings import Finding, Severity, listed, log_of, shortened, wrong
from pdx_cli.checks.transfer import (
    MIN_SPLIT,
    blocked_ports,
    broken_pairs,
    bursts_of,
    has_received,
    open_ports,
    outcomes_of,
    reasons_of,
)
from pdx_cli.sources.experience import never_splits
from pdx_cli.sources.figures import WARM
from pdx_cli.sources.observation import Body, Gateway, Observation

_TEMPORARY: Final = r"waits for|no decode|has restarted|not been warmed"
"""Reasons of an endpoint that pass by themselves, or that another finding explains."""
_HANGS: Final = r"no answer within|no progress"

_WHOLE: Final = {
    "path": "had a path that is never split",
    "parameters": "had parameters that cannot be split",
    "short": "had short prompts",
    "never": "came while spec.routing.split was Never",
    "no_prefill": "found no prefill engine that serves",
    "suspended": "came while KV did not move",
    "long_queue": "found a queue at their decode engine that is too long for a push",
}
"""Reason of `pdx_not_split_total`, without those of the objectives -> what holds for these requests."""
_CORRECT: Final = {"path", "parameters", "short"}
"""Reasons that lie in the requests."""

_UNREADY: Final = {
    "Paused": ("EnginePaused", "It is used again as soon as it serves. Nothing counts as its failure."),
    "Retired": ("RankRetired", "End its process: no request reaches it any more."),
}
"""State of an engine that accepts no request by its own answer -> the cause, and the remedy."""


def silent_gateways(observation: Observation) -> Iterator[Finding]:
    """A running gateway's admin port does not answer."""
    for gateway in observation.gateways:
        if gateway.state is None and gateway.problem and observation.starting is None:
            remedy = log_of(gateway.log_source, gateway.log)
            if observation.is_local and not gateway.log_source:
                remedy = f"Start it, or name its admin port with --admin. {remedy}"
            who = "The gateway" if observation.is_local else f"The gateway {gateway.name}"
            yield wrong("GatewaySilent", f"{who} does not answer: {gateway.problem}", remedy)


def gateways_without_endpoints(observation: Observation) -> Iterator[Finding]:
    """Engines are ready, but a gateway has none of them."""
    ready = [pod.name for pod in observation.pods if pod.ready and pod.role in list(Role)]
    for gateway in observation.gateways:
        if ready and gateway.state is not None and not gateway.state.get("endpoints"):
            yield wrong(
                "NoEndpoints",
                f"{len(ready)} engines are ready, but the gateway {gateway.name} has no endpoint: it cannot list the "
                "pods of its namespace, or their labels or annotations were changed",
                f"kubectl logs {gateway.name} shows which; the right to list pods is in the RoleBinding of the "
                "gateway's ServiceAccount.",
            )


def unused_endpoints(observation: Observation) -> Iterator[Finding]:
    """A gateway does not use an engine; its reason is in its state."""
    if observation.starting is not None:
        return
    unready = {pod.name for pod in observation.pods if not pod.ready} | observation.down
    bare = {engine.name for engine in observation.engines if lacks_connector(engine)}
    reported: set[str] = set()
    for gateway in observation.gateways:
        for endpoint in (gateway.state or {}).get("endpoints") or ():
            name, reason = _name(endpoint), str(endpoint.get("reason") or "")
            if endpoint.get("state") == WARM or not reason or name in (reported | unready | bare):
                continue
            reported.add(name)
            finding = _unused(observation, gateway, endpoint, reason)
            if finding is not None:
                yield finding


def _unused(observation: Observation, gateway: Gateway, endpoint: Body, reason: str) -> Finding | None:
    role, name = endpoint.get("role"), _name(endpoint)
    users = [each.name for each in observation.gateways if each is not gateway and _uses(each, name)]
    if endpoint.get("state") in _UNREADY:
        cause, remedy = _UNREADY[endpoint["state"]]
        return Finding(Severity.NOTE, cause, f"The {role} engine {name} {shortened(reason)}", remedy)
    log = next((log_of(e.log_source, e.log) for e in observation.engines if e.name == name), log_of("", ""))
    if "without kv_transfer_params" in reason:
        return connector_off(
            f"{role} engine {name}", "it answers a hand-off without KV parameters", is_local=observation.is_local
        )
    if re.search(_TEMPORARY, reason):
        return None
    peer = reason.partition(": ")[0]
    why = shortened(reason)
    is_peer = ": " in reason and " " not in peer and peer not in (name, endpoint.get("name"))
    if role == Role.PREFILL and is_peer:
        if {peer, _name_of(observation, peer)} & observation.down:
            return None
        if any(pair.cause is Cause.HANDOFF for pair in broken_pairs(observation)):
            return None
        why = why.removeprefix(f"{peer}: ")
        sentence = f"No hand-off succeeds from the prefill engine {name} to the decode engine {peer}: {why}"
        return wrong(Cause.HANDOFF, sentence, _handoff_remedy(observation, endpoint, reason))
    who = f"The gateway {gateway.name}, unlike {users[0]}," if users else "The gateway"
    sentence = f"{who} does not use the {role} engine {name}: {why.removeprefix(f'{name}: ')}"
    if re.search(r"\b401\b|Unauthorized", reason):
        remedy = "Gateway and engine have different API keys: restart the one that has read the older Secret."
        if "the gateway has none" in reason:
            remedy = f"Set spec.engine.apiKeySecretRef, or give the gateway the key with {ENGINE_KEY_FLAG}."
        return wrong("EngineKeyRefused", sentence, remedy)
    if re.search(r"connect|refused|unreachable|timed out", reason, re.IGNORECASE):
        blocked = f"no NetworkPolicy or service mesh blocks the gateway from its port {ENGINE_PORT}"
        if observation.is_local:
            blocked = f"the gateway reaches {endpoint.get('url') or name} from where it runs"
        if users:
            blocked += f". Deleting the pod of {gateway.name} moves it to another place"
        return wrong("EngineNotReached", sentence, f"The engine answers here: check that {blocked}.\n{log}")
    if re.search(_HANGS, reason):  # one whose /health fails is unhealthy, and not here
        why = (
            "Its /health answers, so its engine core hangs (a GPU, a collective operation), or its queue is long. If "
            "`pdx top` shows running requests without output tokens, delete its pod."
        )
        return wrong("EngineHangs", sentence, f"{why}\n{log}")
    return wrong("EngineLeftOut", sentence, log)


def _uses(gateway: Gateway, name: str) -> bool:
    """Whether this gateway selects the engine."""
    return any(_name(e) == name and e.get("state") == WARM for e in (gateway.state or {}).get("endpoints") or ())


def _handoff_remedy(observation: Observation, endpoint: Body, reason: str) -> str:
    """An engine that answers an error is reached, so its arguments come before the network, unless KV moved before."""
    peer = _name_of(observation, reason.partition(": ")[0])
    if endpoint.get("starts") and has_received(observation, peer):
        return f"KV has moved to {peer} since it started, so both were started correctly. {open_ports(observation)}"
    if not re.search(r"status 5\d\d|answered 5\d\d", reason):
        return open_ports(observation)
    if remedy := blocked_ports(observation):
        return remedy
    wiring = f"{endpoint.get('connector')} with order {endpoint.get('order')}"
    return (
        f"Likely: one of the two was not started for {wiring}, which the gateway expects; compare their arguments.\n"
        "If they match, open all ports between engines (NIXL's side channel is 5600), and read the decode engine's "
        "log for the error."
    )


def _name_of(observation: Observation, peer: str) -> str:
    """Return the doctor's name of an endpoint that the gateway calls `peer`."""
    return next((_name(e) for e in observation.endpoints if peer == e.get("name")), peer)


def unsplit_requests(observation: Observation) -> Iterator[Finding]:
    """The deployment is disaggregated, but no request was split, although none was sooner at a decode engine."""
    whole = sum(outcomes_of(gateway).get("whole", 0) - bursts_of(gateway) for gateway in observation.gateways)
    split = sum(outcomes_of(gateway).get("split", 0) for gateway in observation.gateways)
    if cannot_split(observation) or any(broken_pairs(observation)):
        return  # that is the reason, and no comfort
    if observation.mode is Mode.DISAGGREGATED and whole >= MIN_SPLIT and not split:
        if never_splits(gateway.state for gateway in observation.gateways if gateway.state):
            remedy = "Set spec.routing.split: Auto when requests are to be split again."
            yield Finding(Severity.NOTE, "NothingSplit", "spec.routing.split is Never: no request is split", remedy)
            return
        yield _nothing_split(observation, whole)


def _nothing_split(observation: Observation, whole: int) -> Finding:
    """Return the note with the gateways' own reasons, the most frequent first, as far as they count any."""
    counts = Counter[str]()
    for gateway in observation.gateways:
        counts.update({why: count for why, count in reasons_of(gateway).items() if why in _WHOLE and count})
    parts = listed(f"{count} {_WHOLE[why]}" for why, count in counts.most_common()) if counts else ""
    sentence = f"All {whole} requests so far were served by decode engines alone{parts and f': {parts}'}"
    correct = (
        "That is correct for short prompts (routing.disaggregateAboveTokens) and for requests that cannot be split"
    )
    is_correct = counts.keys() <= _CORRECT
    remedy = f"{correct}; pdx_not_split_total counts the reasons." if is_correct else "pdx_not_split_total counts them."
    return Finding(Severity.NOTE, "NothingSplit", sentence, remedy)


def lost_handoffs(observation: Observation) -> Iterator[Finding]:
    """An engine still holds the blocks of hand-offs that will never complete."""
    for endpoint in observation.endpoints:
        if lost := endpoint.get("lostHandoffs"):
            engine = f"The decode engine {_name(endpoint)}"
            sentence = f"{engine} holds the blocks of {lost} hand-offs whose prefill engine was lost"
            remedy = "It holds them until it restarts; until then the gateway sends it fewer requests."
            yield Finding(Severity.NOTE, "HandoffsLost", sentence, remedy)


def _name(endpoint: Body) -> str:
    return str(endpoint.get("pod") or endpoint.get("name"))
