"""The result of verification: whether KV moves. A gateway answers it on its admin port, the operator reads it. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, Self

VERDICT_PATH: Final = "/pdx/canary/verdict"
"""Path on the gateway's admin port. With `?after=STAMP&wait=SECONDS` it answers a newer result, or after that time."""
LONGEST_WAIT: Final = 60.0
"""Longest `wait` of one request, in seconds."""


class Verdict(StrEnum):
    """The judgement of the pairs of one object."""

    VERIFIED = "verified"
    """KV moves."""
    BROKEN = "broken"
    """KV does not move within a pair."""
    UNKNOWN = "unknown"
    """There is no result yet, or there can be none."""


class Cause(StrEnum):
    """Why KV does not move between two engines, for transfer probes, conditions and `pdx doctor`.

    Only `pdx doctor` finds DTYPE, ENGINES and TRANSFER: they need the engines' arguments and logs.
    """

    NO_CONNECTOR = "ConnectorOff"
    VERSION = "VersionsDiffer"
    MODEL = "ModelsDiffer"
    BLOCK_SIZE = "BlockSizesDiffer"
    DTYPE = "DtypesDiffer"
    ENGINES = "EnginesDiffer"
    """vLLM refuses the KV because of one of the four above, or of another difference, and does not report which."""
    SIDE_CHANNEL_HOST = "SideChannelHostWrong"
    POOL = "PoolUnreachable"
    PORTS = "PortsBlocked"
    TRANSFER = "TransferFailed"
    """The handshake succeeds, and the transfer fails."""
    WRONG_KV = "WrongKV"
    NOT_REPORTED = "NotReported"


_LOST: Final = "if the failure remains after the repair, delete D's pod: NIXL does not reopen a lost connection"
ADVICE: Final[Mapping[Cause, str]] = MappingProxyType(
    {
        Cause.NO_CONNECTOR: "check that --kv-transfer-config is among its arguments: a policy, a webhook or its image "
        "may have removed it",
        Cause.VERSION: "the two run different versions of vLLM, which refuse each other's KV; use one image for both",
        Cause.MODEL: "the two were started with different model strings, which vLLM compares; use one for both",
        Cause.BLOCK_SIZE: "the two have KV blocks of different sizes; set one size for both (spec.engine.blockSize)",
        Cause.DTYPE: "the two have different dtypes of weights or of KV; set the dtype in spec.engine, for both",
        Cause.ENGINES: "vLLM refuses the KV; use the same image, model and engine arguments for both",
        Cause.SIDE_CHANNEL_HOST: "P sends an address that is not its own; correct VLLM_NIXL_SIDE_CHANNEL_HOST",
        Cause.POOL: "the two do not share their KV pool; check that both reach it",
        Cause.PORTS: "one does not reach the other; open all ports between engines (network policies, "
        f"firewalls), and both logs name the error; {_LOST}",
        Cause.TRANSFER: "the two reach each other, and the transfer fails; KV goes over ports and devices that the "
        f"connector's transport chooses (UCX_TLS, UCX_NET_DEVICES), and RDMA needs its memlock limit; {_LOST}",
        Cause.WRONG_KV: "the KV that arrives does not belong to the prompt; take this pair out of service and "
        "compare its engines",
        Cause.NOT_REPORTED: "start the engines with --enable-prompt-tokens-details, which PDX sets in new revisions",
    }
)
"""What a person can do about each cause."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A pair within which KV does not move."""

    prefill: str
    decode: str
    seen: str
    """The observation, as half a sentence."""
    cause: Cause

    @property
    def sentence(self) -> str:
        """The pair, the observation and the advice as one sentence, without a full stop."""
        return f"{self.prefill} to {self.decode}: {self.seen}; {ADVICE[self.cause]}"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one gateway for all its pairs."""

    verdict: Verdict
    why: str = ""
    """Why the verdict is UNKNOWN, as half a sentence."""
    pairs: int = 0
    """Verified pairs. If not all pairs were probed: at most as many as cover every engine."""
    possible: int = 0
    """All pairs."""
    broken: tuple[Broken, ...] = ()
    """The first few broken pairs."""
    broken_pairs: int = 0

    def as_json(self) -> dict[str, Any]:
        """All fields as JSON values."""
        return asdict(self)

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> Self:
        """The reverse of `as_json`. Raises KeyError, TypeError or ValueError for anything else."""
        broken = tuple(
            Broken(str(each["prefill"]), str(each["decode"]), str(each["seen"]), Cause(each["cause"]))
            for each in body["broken"]
        )
        counts = {name: int(body[name]) for name in ("pairs", "possible", "broken_pairs")}
        return cls(verdict=Verdict(body["verdict"]), why=str(body["why"]), broken=broken, **counts)


def combined(findings: Iterable[Finding]) -> Finding | None:
    """The common result of several gateways of one object; None if no gateway has one.

    A pair that one gateway reports as broken is broken: the others may not have probed it yet.
    """
    order = (Verdict.BROKEN, Verdict.VERIFIED, Verdict.UNKNOWN)
    ranked = sorted(findings, key=lambda found: (order.index(found.verdict), -found.broken_pairs, -found.pairs))
    return ranked[0] if ranked else None
