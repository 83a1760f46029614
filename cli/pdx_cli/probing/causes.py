"""Why KV does not move between two engines, and what a person can do, whoever runs them. Pure."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from pdx_api.verification import Cause


class Reason(StrEnum):
    """Why the result is not that KV moved. Those that a gateway finds, too, have its names (`Cause`)."""

    UNUSABLE = "Unusable"
    """An engine does not answer, or the URLs are not those of a pair."""
    NO_CONNECTOR = Cause.NO_CONNECTOR.value
    OTHER_CONNECTOR = "OtherConnector"
    OTHER_ORDER = "OtherOrder"
    PREFILL_FAILS = "PrefillFails"
    DECODE_FAILS = "DecodeFails"
    VERSION = Cause.VERSION.value
    MODEL = Cause.MODEL.value
    BLOCK_SIZE = Cause.BLOCK_SIZE.value
    SIDE_CHANNEL_HOST = Cause.SIDE_CHANNEL_HOST.value
    POOL = Cause.POOL.value
    HANDOFF = Cause.HANDOFF.value
    PORTS = Cause.PORTS.value
    WRONG_KV = Cause.WRONG_KV.value
    NOT_REPORTED = Cause.NOT_REPORTED.value


ADVICE: Final[Mapping[Reason, str]] = MappingProxyType(
    {
        Reason.NO_CONNECTOR: "start it with --kv-transfer-config",
        Reason.OTHER_CONNECTOR: "compare kv_connector in --kv-transfer-config of both engines with --connector",
        Reason.OTHER_ORDER: "probe with the order for which the engines were started, or start both for this one",
        Reason.PREFILL_FAILS: "see the prefill engine's log",
        Reason.DECODE_FAILS: "nothing is shown about KV; see the decode engine's log, and probe again",
        Reason.VERSION: "the two run different versions of vLLM, which reject each other's KV; give both one version",
        Reason.MODEL: "the two were started with different model strings; give both the same --model",
        Reason.BLOCK_SIZE: "the two have KV blocks of different sizes; give both the same --block-size",
        Reason.SIDE_CHANNEL_HOST: "the prefill engine announces an address that is not its own; correct "
        "VLLM_NIXL_SIDE_CHANNEL_HOST",
        Reason.POOL: "the two do not share their store of KV, or run another connector: check that both reach the "
        "store, and compare --kv-transfer-config of both",
        Reason.HANDOFF: "compare --kv-transfer-config of both engines with --connector and --order; if they match, "
        "open all ports between the engines, and see the decode engine's log",
        Reason.PORTS: "one engine does not reach the other: open all ports between them (network policies, firewalls), "
        "see both logs, and restart the decode engine if it fails after that, because NIXL does not reconnect",
        Reason.WRONG_KV: "the decode engine receives KV of another prompt; take the pair out of service and compare "
        "versions and arguments of both engines",
        Reason.NOT_REPORTED: "start the decode engine with --enable-prompt-tokens-details, or probe it while it "
        "serves nothing else",
    }
)
"""What to do about each reason. `UNUSABLE` has a sentence of its own for each case."""
