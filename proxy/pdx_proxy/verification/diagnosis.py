"""The likely cause of a failed transfer probe, from what both engines report about themselves. Pure.

It uses families only. What is special about a connector is data of its family (`pdx_api.connectors.families`).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, Final

import orjson

from pdx_api.connectors.families import Family, Identity, KVParams, Pool, Pull
from pdx_api.verification import Cause
from pdx_api.vllm_metrics import EngineMetrics, read_metrics, whole_number
from pdx_proxy.verification.record import Result

_TEXT: Final = 512
"""Characters of a longer text than any version or model has. It goes into logs and the object's status."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What an engine reports about itself; None for what it does not report."""

    version: str | None = None
    model: str | None = None
    """The model string it was started with."""
    block_size: int | None = None
    connector: bool | None = None
    """Whether it has a KV connector; None before it has computed a prompt."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the gateway has about a transfer probe that failed."""

    result: Result
    prefill: Facts = field(default_factory=Facts)
    decode: Facts = field(default_factory=Facts)
    announced_host: str | None = None
    """The host under which P announced itself to D (see `announced_host`)."""
    answered: bool = False
    """D answered the hand-off with an error."""
    no_params: bool = False
    """P answered without parameters, although its family has some."""

    @property
    def unconnected(self) -> str:
        """Which of the engines run without a KV connector, as a clause; empty if none does."""
        prefill = self.no_params or self.prefill.connector is False
        decode = self.decode.connector is False
        without = [name for name, off in (("the prefill engine", prefill), ("the decode engine", decode)) if off]
        verb = "runs" if len(without) == 1 else "run"
        return f"{' and '.join(without)} {verb} without a KV connector" if without else ""


def read_facts(version: bytes, models: bytes, metrics: bytes) -> Facts:
    """Read an engine's pages /version, /v1/models and /metrics; a page that it did not send is empty."""
    report = read_metrics(metrics)
    return Facts(
        version=_text_at(version, "version"),
        model=_text_at(models, "data", 0, "root"),
        block_size=whole_number(report.cache_settings.get("block_size")),
        connector=_has_connector(report),
    )


def announced_host(family: Family, identity: Identity | None, params: KVParams) -> str | None:
    """Return the host that D connects to, from P's identity or from the parameters that D received."""
    if identity is not None:
        return identity.host
    host = params.get(family.host_param) if isinstance(family, Pull) else None
    return None if host is None else str(host)


def likely_cause(family: Family, address: str, evidence: Evidence, wire: Callable[[str], str] = str) -> Cause:
    """Return the most certain cause that fits the evidence; `address` is the host of P's API.

    `wire` returns what the two must have in common of a version.
    """
    prefill, decode = evidence.prefill, evidence.decode
    if evidence.unconnected:
        return Cause.NO_CONNECTOR
    if _differ(*(wire(each.version or "") or None for each in (prefill, decode))):
        return Cause.VERSION
    if _differ(prefill.model, decode.model):
        return Cause.MODEL
    if _differ(prefill.block_size, decode.block_size):
        return Cause.BLOCK_SIZE
    if evidence.result is Result.WRONG_TEXT:
        return Cause.WRONG_KV
    if _is_other_address(evidence.announced_host, address):
        return Cause.SIDE_CHANNEL_HOST
    if isinstance(family, Pool):
        return Cause.POOL
    return Cause.HANDOFF if evidence.answered else Cause.PORTS


def _has_connector(metrics: EngineMetrics) -> bool | None:
    queries = metrics.external_queries
    return None if queries is None or not metrics.prompt_tokens else queries > 0


def _text_at(page: bytes, *path: str | int) -> str | None:
    try:
        value: Any = orjson.loads(page)
        for step in path:
            value = value[step]
    except (orjson.JSONDecodeError, IndexError, KeyError, TypeError):
        return None
    return value if isinstance(value, str) and len(value) <= _TEXT and value.isprintable() else None


def _differ(one: object, other: object) -> bool:
    return one is not None and other is not None and one != other


def _is_other_address(announced: str | None, address: str) -> bool:
    """Whether both are IP addresses and differ. Host names are not resolved."""
    try:
        return announced is not None and ip_address(announced) != ip_address(address)
    except ValueError:
        return False
