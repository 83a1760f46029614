"""Checks whether KV moves from P to D: by transfer probes, by the engines' logs, and by their token counters."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from pdx_api.names import ConditionType, Role
from pdx_api.verification import ADVICE, Broken, Cause, Verdict
from pdx_api.verification import Finding as VerificationResult
from pdx_api.vllm_metrics import PromptTokens, read_metrics
from pdx_cli.checks.arguments import flags_of
from pdx_cli.checks.findings import Finding, Severity, listed, wrong
from pdx_cli.sources.figures import BURSTS
from pdx_cli.sources.observation import Engine, Gateway, Observation
from pdx_cli.usage import amount
from pdx_operator.observed import engine_log

MIN_SPLIT: Final = 5
MIN_TOKENS: Final = 1000
"""Split requests, and prompt tokens computed by decode engines, before missing KV is a finding."""
MIN_FAILED: Final = 3
_FAILED_SHARE: Final = 0.01
"""Transfers that failed, and their share of all, before they are a finding."""
LARGEST_BLOCK: Final = 128
"""Tokens. If D's own prefix cache has a prompt, D still computes the last block that is not full."""
_OPEN_PORTS: Final = (
    "Let engine pods reach each other on every port (NIXL's side channel is 5600): check NetworkPolicies, firewalls "
    "between nodes, and VLLM_NIXL_SIDE_CHANNEL_HOST, which must be the pod's own address. If KV goes through a "
    "store, check that both reach it. If the problem stays then, delete the decode engine's pod: NIXL does not "
    "restore a connection that it has lost."
)

_OPEN_PORTS_HERE: Final = (
    "Each engine opens further ports for KV (NIXL's side channel is 5600 by default, and two engines on one machine "
    "need two): check that both processes listen, that VLLM_NIXL_SIDE_CHANNEL_HOST is an address of this machine, and "
    "that no firewall blocks its loopback. If KV goes through a store, check that both reach it. If the problem stays "
    "then, restart the decode engine: NIXL does not restore a connection that it has lost."
)


def open_ports(observation: Observation) -> str:
    """Return the remedy for engines that do not reach each other, where they run."""
    return _OPEN_PORTS_HERE if observation.is_local else _OPEN_PORTS


# vllm distributed/kv_transfer/kv_connector/v1/nixl/{base,pull,push}_worker.py
_KV_ARRIVED: Final = r"compatibility check passed|Num successful transfers=[1-9]"
"""Logged when the peer works; lines before it are outdated."""
_KV_FAILED: Final = (
    (
        Cause.ENGINES,
        r"compatibility hash mismatch",
        "refuses its peer's KV, because vLLM version, model string, dtype, layout or order differ",
        "Let one spec start both: the same image, model and engine arguments.",
    ),
    (
        Cause.PORTS,
        r"failure_type.{1,4}(push_|push_reg_)?handshake(_setup)?_failed|transfer failure: (push_|push_reg_)?handshake",
        "gets no answer from its peer's side channel",
        "",
    ),
    (
        Cause.TRANSFER,
        r"transfer failure: transfer_(failed|exception|setup_failed)",
        "reaches its peer but not its memory: the transfer itself fails",
        "KV goes over ports and devices that UCX chooses: open all ports between engine pods, check UCX_TLS and "
        "UCX_NET_DEVICES, and for RDMA the memlock limit.",
    ),
)
"""Cause, pattern of a log line, what the engine does, remedy (empty: `open_ports`)."""
_NOT_VERIFIABLE: Final = ("Aggregated", "Disabled", "NotVerifiedYet")
"""Reasons of the condition KVTransferVerified=Unknown that need no note."""


def failed_transfers(observation: Observation) -> Iterator[Finding]:
    """An engine has recently logged a failed transfer, and no transfer probe has succeeded since."""
    if is_verified(observation):
        return
    for engine in observation.engines:
        lines = re.split(_KV_ARRIVED, engine.log)[-1].splitlines()
        for cause, pattern, problem, remedy in _KV_FAILED:
            line = next((line for line in reversed(lines) if re.search(pattern, line)), None)
            if line is not None:
                where = _peer(engine) if cause is Cause.PORTS else ""
                sentence = f"The {engine.role} engine {engine.name} {problem}{where}; its log: "
                yield wrong(cause, f"{sentence}{engine_log.read(line).line}", remedy or open_ports(observation))
                break


def counted_failures(observation: Observation) -> Iterator[Finding]:
    """Transfers failed since an engine started, by its metrics: NIXL's, and Mooncake's from vLLM 0.33 on.

    A finding about KV that does not move says more.
    """
    known = (*failed_transfers(observation), *failed_verification(observation))
    if any(finding.severity is Severity.WRONG for finding in known):
        return
    counts = _failures(observation.engines)
    if not counts:
        return
    engine, others = max(counts, key=lambda each: counts[each]), len(counts) - 1
    more = f" (and on {others} other {'engine' if others == 1 else 'engines'})" if others else ""
    yield Finding(
        Severity.NOTE,
        "TransfersFailed",
        f"{counts[engine]:.0f} transfers of KV have failed on the {engine.role} engine {engine.name} since its start"
        f"{more}",
        "Look again in a minute. If the number stays, an engine or the network has failed for a moment. If it rises: "
        f"{open_ports(observation)}",
    )


def _failures(engines: Sequence[Engine]) -> dict[Engine, float]:
    """Return how many transfers have failed on each engine, without those on which few failed.

    An engine that counts no transfers (a D of Mooncake, to which the P's send) is compared with all engines' transfers.
    """
    found = {engine: read_metrics(engine.metrics.encode()) for engine in engines}
    moved = sum(metrics.transfer.count for metrics in found.values())
    failed = {engine: metrics.failed_transfers or 0.0 for engine, metrics in found.items()}
    return {
        engine: count
        for engine, count in failed.items()
        if count >= max(MIN_FAILED, _FAILED_SHARE * (count + (found[engine].transfer.count or moved)))
    }


def _peer(engine: Engine) -> str:
    """Return the address of the last side channel in the log."""
    peers = re.findall(r"'remote_host': '([^']+)', 'remote_port': (\d+)", engine.log)
    return f" at {':'.join(peers[-1])}" if peers else ""


def is_verified(observation: Observation) -> bool:
    """Whether transfer probes have shown that KV moves to and from every engine."""
    status = observation.condition(ConditionType.KV_TRANSFER_VERIFIED).get("status")
    verdicts = {_result(gateway).verdict for gateway in observation.gateways}
    return status == "True" or (status != "False" and verdicts == {Verdict.VERIFIED})


def failed_verification(observation: Observation) -> Iterator[Finding]:
    """Transfer probes fail: by the operator's condition, or, if that is undecided, by the gateways' results."""
    verified = observation.condition(ConditionType.KV_TRANSFER_VERIFIED)
    status, reason, message = (str(verified.get(key, "")) for key in ("status", "reason", "message"))
    if status == "False":
        remedy = blocked_ports(observation) if reason == Cause.HANDOFF else ""
        yield wrong(reason, f"Transfer probes fail: {message}", remedy)
    elif status == "Unknown" and reason not in _NOT_VERIFIABLE:
        yield Finding(Severity.NOTE, reason, f"It is not verified that KV moves: {message}")
    if status in ("True", "False"):
        return
    by_cause: dict[Cause, dict[tuple[str, str], str]] = {}
    for pair in broken_pairs(observation):
        by_cause.setdefault(pair.cause, {}).setdefault((pair.prefill, pair.decode), pair.seen)
    if any(failed_transfers(observation)):
        by_cause.pop(Cause.HANDOFF, None)  # a log names why D answers an error
    for cause, pairs in by_cause.items():
        ((prefill, decode), seen), others = next(iter(pairs.items())), len(pairs) - 1
        more = f" (and in {amount(others, 'other pair')})" if others else ""
        sentence = f"Transfer probes fail: KV does not move from {prefill} to {decode}{more}: {seen}"
        likely = ADVICE[cause]
        if cause is Cause.HANDOFF and has_received(observation, decode):
            likely = f"KV has moved to {decode} since it started, so the network fails: {ADVICE[Cause.PORTS]}"
        yield wrong(cause, sentence, f"Likely: {likely}.")


def blocked_ports(observation: Observation) -> str:
    """Return the remedy if every engine has the flags that the operator wrote, so that they break no hand-off."""
    flags = [(flags_of(e.args), flags_of(e.rendered or ())) for e in observation.engines if e.args]
    if not flags or any(actual != expected for actual, expected in flags):
        return ""
    return (
        f"The engines have the arguments that the operator wrote, so the network is likely. {open_ports(observation)}"
    )


def has_received(observation: Observation, decode: str) -> bool:
    """Whether KV has moved to this decode engine since it started: then it was not started for another connector."""
    names = {decode, *(e.get("pod") for e in observation.endpoints if e.get("name") == decode)}
    return any(e.name in names and e.tokens is not None and e.tokens.external > 0 for e in observation.engines)


def suspended_pairs(observation: Observation) -> Iterator[Finding]:
    """Gateways split no request over some pairs, because no KV moves within them."""
    pairs = {(p, d) for gateway in observation.gateways for p, d in (gateway.state or {}).get("suspendedPairs") or ()}
    if not pairs:
        return
    whole = {d for _, d in pairs} - {d for gateway in observation.gateways for d in _partnered(gateway)}
    (prefill, decode), others = min(pairs), len(pairs) - 1
    more = f" (nor over {amount(others, 'other pair')})" if others else ""
    ends = f", so every request for {listed(sorted(whole))} is served whole, by one engine" if whole else ""
    yield Finding(
        Severity.FOLLOWS,
        "SplittingSuspended",
        f"No request is split over {prefill} and {decode}{more}, because KV does not move{ends}",
        "Requests are answered, but slower. The causes are above. Splitting returns by itself when KV moves again.",
    )


def _partnered(gateway: Gateway) -> Iterator[str]:
    """Yield the D's to which KV moves from some P of their revision, as far as is known."""
    state = gateway.state or {}
    ends, suspended = state.get("endpoints") or (), {(p, d) for p, d in state.get("suspendedPairs") or ()}
    roles = {role: [e for e in ends if e.get("role") == role] for role in (Role.PREFILL, Role.DECODE)}
    for d in roles[Role.DECODE]:
        partners = [p for p in roles[Role.PREFILL] if p.get("revision") == d.get("revision")]
        if any((p.get("name"), d.get("name")) not in suspended for p in partners):
            yield str(d.get("name"))


def broken_pairs(observation: Observation) -> Iterator[Broken]:
    """Yield the pairs of running engines whose transfer probes fail, as the gateways list them."""
    for result in map(_result, observation.gateways):
        if result.verdict is Verdict.BROKEN:
            yield from (pair for pair in result.broken if not {pair.prefill, pair.decode} & observation.down)


def _result(gateway: Gateway) -> VerificationResult:
    """Return the result of a gateway's transfer probes; unknown if its version has another format."""
    try:
        return VerificationResult.read((gateway.verification or {})["finding"])
    except (KeyError, TypeError, ValueError):
        return VerificationResult(Verdict.UNKNOWN)


def recomputed_prompts(observation: Observation) -> Iterator[Finding]:
    """Requests were split, but decode engines computed their prompts again."""
    split = sum(outcomes_of(gateway).get("split", 0) for gateway in observation.gateways)
    counts = [engine.tokens for engine in observation.engines if engine.role is Role.DECODE and engine.tokens]
    total = PromptTokens(sum(c.total for c in counts), sum(c.external for c in counts), sum(c.computed for c in counts))
    for period, (requests, tokens) in (("", (split, total)), ("In the last half minute ", _recent(observation))):
        if requests >= MIN_SPLIT and _computes_again(requests, tokens):
            yield wrong(
                "KVNotMoving",
                f"{period}{requests} requests were split, but none of the {tokens.total:.0f} prompt tokens of the "
                f"decode engines came through the connector: they computed {tokens.computed:.0f} of them again",
                "See the causes above; if there is none, check that the engines reach each other on every port.",
            )
            return


def outcomes_of(gateway: Gateway) -> Mapping[str, int]:
    """Return how many requests ended in each way since the gateway's start."""
    return (gateway.state or {}).get("outcomes") or {}


def bursts_of(gateway: Gateway) -> int:
    """Return how many requests decode engines served alone because of the objectives, since the gateway's start."""
    return sum(reasons_of(gateway).get(why, 0) for why in BURSTS)


def reasons_of(gateway: Gateway) -> Mapping[str, int]:
    """Return how many requests were not split for each reason (`pdx_not_split_total`), since the gateway's start."""
    return (gateway.state or {}).get("notSplit") or {}


def _computes_again(requests: int, tokens: PromptTokens) -> bool:
    """Whether D's computed more than the part of cached prompts that fills no block."""
    uncached = min(tokens.total / 2, requests * LARGEST_BLOCK)
    return not tokens.external and tokens.computed >= max(MIN_TOKENS, uncached)


def _recent(observation: Observation) -> tuple[int, PromptTokens]:
    """Return the split requests of all gateways in the last half minute, and the prompt tokens of D's in that time.

    A D counts the requests of every gateway, so its counts are taken from one gateway.
    """
    shares = [(gateway.state or {}).get("arrivals") or {} for gateway in observation.gateways]
    decode = {name: tokens for share in shares for name, tokens in (share.get("decode") or {}).items()}
    split = sum(share.get("split", 0) for share in shares)
    sums = {key: sum(d.get(key, 0) for d in decode.values()) for key in ("promptTokens", "outside", "computed")}
    return split, PromptTokens(*sums.values())
