"""The table of alerts: faults of a deployment, each with the one alert that fires, and within which time."""

from dataclasses import dataclass
from typing import Final

OUTAGE: Final = 3
"""Minutes within which the alert for a total outage fires."""
OTHER: Final = 10


@dataclass(frozen=True, slots=True)
class Fault:
    """One row: a deployment of the rig that is broken in this way."""

    name: str
    what: str
    users: str
    """What users see."""
    alert: str
    """The only alert that fires; empty for none."""
    minutes: int = OTHER
    """The alert fires within so many minutes."""


FAULTS: Final = (
    Fault("healthy", "nothing, at full load", "nothing", ""),
    Fault("no-gateway", "the only gateway dies", "no connection", "PDXGatewayDown", OUTAGE),
    Fault("no-d", "the only decode engine dies", "503", "PDXUnavailable", OUTAGE),
    Fault("no-p", "the only prefill engine dies", "slower answers: nothing is split", "PDXNotSplitting"),
    Fault("one-p", "one of two prefill engines dies", "nothing yet", "PDXDegraded"),
    Fault("slow-d", "a decode engine becomes eight times slower", "slow answers", "PDXSlowTokens"),
    Fault("full", "16 clients at an engine that runs two", "a long wait for the first token", "PDXSlowFirstToken"),
    Fault(
        *("blocked", "the ports for KV are blocked, and decode engines recompute"),
        *("slower answers: nothing is split", "PDXNotSplitting"),
    ),
    Fault(
        *("blocked-fail", "the ports for KV are blocked, and decode engines fail requests without KV"),
        *("slower answers: nothing is split", "PDXNotSplitting"),
    ),
    Fault(
        *("wrong-order", "the decode engine was started for another `order` (which engine gets a request first)"),
        *("slower answers: nothing is split", "PDXNotSplitting"),
    ),
    Fault("errors", "a fifth of the streams break", "answers that end too early", "PDXErrors"),
    Fault("partial", "one of two prefill engines cannot be reached for KV", "nothing yet", "PDXTransferProbeFailing"),
    Fault("flapping", "a prefill engine dies and returns again and again", "some late answers", "PDXEndpointFlapping"),
    Fault(
        *("own-router", "the only decode engine dies, with a router of your own"),
        *("errors", "PDXNotAvailable"),
    ),
    Fault(
        *("half-gateway", "one of two gateways loses its way to the engines"),
        *("errors, for the clients of this gateway", "PDXErrors"),
    ),
    Fault("slow-kv", "a hand-off of KV takes four seconds", "a long wait for the first token", "PDXSlowFirstToken"),
    Fault(
        *("slow-burn", "one of two decode engines breaks a few streams, again and again"),
        *("a few answers that end too early", "PDXErrors"),
    ),
    Fault("nonsense", "a client sends wrong requests and hangs up", "only this client gets errors", ""),
    Fault("old", "a rollout takes two hours", "nothing yet", "PDXRolloutStuck"),
    Fault("pdx-system", "the operator does not reconcile a spec", "nothing yet", "PDXOperatorNotReconciling"),
    Fault("pdx-team", "the operator is gone", "nothing yet", "PDXOperatorNotReconciling"),
)


def table() -> str:
    """The table for docs/observability.md."""
    rows = ["| fault | users see | the alert that fires | within |", "|---|---|---|---|"]
    for fault in FAULTS:
        alert = f"[{fault.alert}](runbooks/{fault.alert}.md)" if fault.alert else "none"
        within = f"{fault.minutes} min" if fault.alert else ""
        rows.append(f"| {fault.what} | {fault.users} | {alert} | {within} |")
    return "\n".join(rows) + "\n"
