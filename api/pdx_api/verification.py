"""The finding of a gateway about KV transfer, which it serves on its admin port and the operator reads. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, Self

PAIRS_PATH: Final = "/pdx/verification"
"""Path on the gateway's admin port: every pair, for people."""
RESULT_PATH: Final = "/pdx/verification/result"
"""Path on the gateway's admin port. `?after=STAMP&wait=SECONDS` delays the answer until the finding changes."""
LONGEST_WAIT: Final = 60.0
"""Longest value of `wait`, in seconds."""


_MAX_TEXT: Final = 512
"""Characters kept of a text."""
_MAX_BROKEN: Final = 16
MOST_VERSIONS: Final = 4
_MAX_PAIRS: Final = 10**9


class Verdict(StrEnum):
    """Whether KV moves within a pair, or within all pairs."""

    VERIFIED = "verified"
    """KV has moved."""
    BROKEN = "broken"
    """KV has not moved."""
    UNKNOWN = "unknown"
    """No transfer probe has shown either yet, or none can."""


class Cause(StrEnum):
    """Why KV does not move within a pair. Transfer probes, conditions and `pdx doctor` share these names.

    Only the doctor finds DTYPE, ENGINES and TRANSFER: they require the arguments and logs of the engines.
    """

    NO_CONNECTOR = "ConnectorOff"
    VERSION = "VersionsDiffer"
    MODEL = "ModelsDiffer"
    BLOCK_SIZE = "BlockSizesDiffer"
    DTYPE = "DtypesDiffer"
    ENGINES = "EnginesDiffer"
    """One of the above, but vLLM rejects the KV without naming which."""
    SIDE_CHANNEL_HOST = "SideChannelHostWrong"
    POOL = "PoolUnreachable"
    HANDOFF = "HandoffFails"
    """D answers the hand-off with an error, so the gateway reaches it."""
    PORTS = "PortsBlocked"
    TRANSFER = "TransferFailed"
    """After the handshake."""
    WRONG_KV = "WrongKV"
    NOT_REPORTED = "NotReported"


_LOST: Final = (
    "if the fault remains after that, delete the decode engine's pod: NIXL does not reconnect after it has lost a "
    "connection"
)
ADVICE: Final[Mapping[Cause, str]] = MappingProxyType(
    {
        Cause.NO_CONNECTOR: "check its arguments for --kv-transfer-config: a policy, a webhook or its image may "
        "have removed it",
        Cause.VERSION: "vLLM rejects KV from an engine of another version; give both the same image, by digest, or "
        "restart the older engines if its tag has moved",
        Cause.MODEL: "the two were started with different model strings, which vLLM compares; give both the same one",
        Cause.BLOCK_SIZE: "the two have KV blocks of different sizes; set one size for both (spec.engine.blockSize)",
        Cause.DTYPE: "the two differ in the dtype of weights or of KV; set it in spec.engine, for both",
        Cause.ENGINES: "vLLM rejects the KV; give both the same image, model and engine arguments",
        Cause.SIDE_CHANNEL_HOST: "the prefill engine announces an address that is not its own; "
        "correct VLLM_NIXL_SIDE_CHANNEL_HOST",
        Cause.POOL: "the two do not share their store of KV; check that both reach it",
        Cause.HANDOFF: "either a port between the two is blocked (NIXL's side channel: 5600), or one of them was "
        "started for another connector or order than the gateway expects; compare their arguments, and see the decode "
        f"engine's log for the error; {_LOST}",
        Cause.PORTS: "one does not reach the other; between engines all ports must be open (network policies, "
        f"firewalls), and both logs name the error; {_LOST}",
        Cause.TRANSFER: "the two reach each other, and the transfer fails; KV goes over ports and devices that the "
        f"connector's transport chooses (UCX_TLS, UCX_NET_DEVICES), and RDMA needs its memlock limit; {_LOST}",
        Cause.WRONG_KV: "the decode engine receives KV of another prompt; take this pair out of service and "
        "compare its engines",
        Cause.NOT_REPORTED: "start the engines with --enable-prompt-tokens-details",
    }
)
"""What a person can do about each cause."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A pair within which KV does not move."""

    prefill: str
    decode: str
    seen: str
    """What was observed, as a clause."""
    cause: Cause

    @property
    def sentence(self) -> str:
        """The pair, what was observed and what to do, without a full stop."""
        return f"{self.prefill} to {self.decode}: {self.seen}; {ADVICE[self.cause]}"


@dataclass(frozen=True, slots=True)
class Finding:
    """The finding of one gateway about all its pairs."""

    verdict: Verdict
    why: str = ""
    """Why the verdict is UNKNOWN, as a clause."""
    pairs: int = 0
    """Verified pairs: all, or else the fewest that cover each engine."""
    possible: int = 0
    """Number of all pairs."""
    broken: tuple[Broken, ...] = ()
    """The first few broken pairs."""
    broken_pairs: int = 0
    versions: tuple[str, ...] = ()
    """The first few versions of vLLM that engines report."""

    def as_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return asdict(self)

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> Self:
        """Reverse `as_json`; raises KeyError, TypeError or ValueError for anything else.

        A gateway is not trusted: texts, counts and the number of pairs are cut.
        """
        broken = tuple(
            Broken(_cut(each["prefill"]), _cut(each["decode"]), _cut(each["seen"]), Cause(each["cause"]))
            for each in body["broken"][:_MAX_BROKEN]
        )
        counts = {name: min(int(body[name]), _MAX_PAIRS) for name in ("pairs", "possible", "broken_pairs")}
        versions = tuple(_cut(each) for each in body.get("versions", ())[:MOST_VERSIONS])
        return cls(verdict=Verdict(body["verdict"]), why=_cut(body["why"]), broken=broken, versions=versions, **counts)


def _cut(text: object) -> str:
    return str(text)[:_MAX_TEXT]


def combined(findings: Iterable[Finding]) -> Finding | None:
    """Combine the findings of several gateways of one object; None without a finding.

    A pair that is broken for one gateway is broken: the others may not have probed it yet.
    """
    order = (Verdict.BROKEN, Verdict.VERIFIED, Verdict.UNKNOWN)
    ranked = sorted(findings, key=lambda found: (order.index(found.verdict), -found.broken_pairs, -found.pairs))
    return ranked[0] if ranked else None
