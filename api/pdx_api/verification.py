"""Whether KV travels, as a gateway has found it: what it tells on its admin port and the operator reads. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, Self

VERDICT_PATH: Final = "/pdx/canary/verdict"
"""Path on the gateway's admin port. `?after=STAMP&wait=SECONDS` answers when there is news, or the time is over."""
LONGEST_WAIT: Final = 60.0
"""Seconds that one such request may wait."""


class Verdict(StrEnum):
    """What is known of pairs of engines."""

    VERIFIED = "verified"
    """KV was seen to travel."""
    BROKEN = "broken"
    """It was seen not to."""
    UNKNOWN = "unknown"
    """Nothing has been seen yet, or nothing can be."""


class Cause(StrEnum):
    """Why KV does not travel between two engines, in the words of canaries, of conditions and of `pdx doctor`.

    DTYPE, ENGINES and TRANSFER the doctor alone finds: they take engines' arguments and logs.
    """

    NO_CONNECTOR = "ConnectorOff"
    VERSION = "VersionsDiffer"
    MODEL = "ModelsDiffer"
    BLOCK_SIZE = "BlockSizesDiffer"
    DTYPE = "DtypesDiffer"
    ENGINES = "EnginesDiffer"
    """In something of these: vLLM refuses the KV and does not say of what."""
    SIDE_CHANNEL_HOST = "SideChannelHostWrong"
    POOL = "PoolUnreachable"
    PORTS = "PortsBlocked"
    TRANSFER = "TransferFailed"
    """Behind the handshake."""
    WRONG_KV = "WrongKV"
    NOT_TOLD = "NotReported"


_LOST: Final = "if it stays when that is mended, delete D's pod: NIXL takes up no connection that it has lost"
ADVICE: Final[Mapping[Cause, str]] = MappingProxyType(
    {
        Cause.NO_CONNECTOR: "look for --kv-transfer-config among its arguments: a policy, a webhook or its image may "
        "have taken it away",
        Cause.VERSION: "the two run different versions of vLLM, which refuse each other's KV; give them one image",
        Cause.MODEL: "the two were started with different model strings, which vLLM compares; give them one",
        Cause.BLOCK_SIZE: "the two have KV blocks of different sizes; give both one (spec.engine.blockSize)",
        Cause.DTYPE: "the two have another dtype of weights or of KV; set it in spec.engine, for both",
        Cause.ENGINES: "vLLM refuses the KV; give both the same image, model and engine arguments",
        Cause.SIDE_CHANNEL_HOST: "P tells an address that is not its own; correct VLLM_NIXL_SIDE_CHANNEL_HOST",
        Cause.POOL: "the two do not share their store of KV; look whether both reach it",
        Cause.PORTS: "one does not reach the other; between engines all ports must be open (network policies, "
        f"firewalls), and both logs name the error; {_LOST}",
        Cause.TRANSFER: "the two reach each other, and the transfer fails; KV goes over ports and devices that the "
        f"connector's transport chooses (UCX_TLS, UCX_NET_DEVICES), and RDMA needs its memlock limit; {_LOST}",
        Cause.WRONG_KV: "the KV that arrives is not that of the prompt; take this pair out of service and look for "
        "differences between its engines",
        Cause.NOT_TOLD: "start the engines with --enable-prompt-tokens-details, as those of a new revision are",
    }
)
"""What a person can do about each."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A pair between which KV does not travel."""

    prefill: str
    decode: str
    seen: str
    """What was seen, as half a sentence."""
    cause: Cause

    @property
    def sentence(self) -> str:
        """All of it for a person, without a full stop."""
        return f"{self.prefill} to {self.decode}: {self.seen}; {ADVICE[self.cause]}"


@dataclass(frozen=True, slots=True)
class Finding:
    """What a gateway knows of all its pairs."""

    verdict: Verdict
    why: str = ""
    """Why nothing is known, as half a sentence."""
    pairs: int = 0
    """Pairs that were seen to work, no more than it takes to cover every engine unless all of them were."""
    possible: int = 0
    """Pairs that there are."""
    broken: tuple[Broken, ...] = ()
    """The first few of those that are broken."""
    broken_pairs: int = 0

    def as_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> Self:
        """The reverse of `as_json`; KeyError, TypeError or ValueError for anything else."""
        broken = tuple(
            Broken(str(each["prefill"]), str(each["decode"]), str(each["seen"]), Cause(each["cause"]))
            for each in body["broken"]
        )
        counts = {name: int(body[name]) for name in ("pairs", "possible", "broken_pairs")}
        return cls(verdict=Verdict(body["verdict"]), why=str(body["why"]), broken=broken, **counts)


def combined(findings: Iterable[Finding]) -> Finding | None:
    """What several gateways of one object know together; None when none has said anything.

    A pair that one of them has seen broken is broken: the others may not have tried it yet.
    """
    order = (Verdict.BROKEN, Verdict.VERIFIED, Verdict.UNKNOWN)
    ranked = sorted(findings, key=lambda found: (order.index(found.verdict), -found.broken_pairs, -found.pairs))
    return ranked[0] if ranked else None
