"""Inspects an engine before the hand-off: its model, its version and its metrics."""

import asyncio
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pdx_api.names import Role
from pdx_api.vllm_metrics import EngineMetrics, read_metrics
from pdx_cli.probing.question import Question
from pdx_cli.sources.answers import names_of, parsed, version_of
from pdx_cli.sources.client import AnswerError, Client

if TYPE_CHECKING:  # the gateway's code is imported once both engines answer
    from pdx_proxy.verification.diagnosis import Facts

_SECONDS: Final = 10.0
_REDIRECTS: Final = range(300, 400)
_KEY_STATUSES: Final = (401, 403)
_START: Final = {
    "its certificate is not trusted": "set SSL_CERT_FILE to the file with its certificate authority",
    "it does not speak TLS": "write http:// instead of https://",
    "it does not speak HTTP": "write https:// if it serves TLS, or another port",
    "its host name cannot be resolved": "correct the host name",
}
"""Why an engine does not answer -> what to do."""


class UnusableError(Exception):
    """An engine cannot be probed. The text is a clause for its line: what was seen, and what to do."""

    def __init__(self, role: Role, clause: str) -> None:
        super().__init__(clause)
        self.role = role


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What an engine reports about itself."""

    url: str
    names: tuple[str, ...]
    """The names that a request may have as `model`, adapters included."""
    max_model_len: int | None
    ranks: int
    """Data-parallel ranks behind its URL."""
    facts: "Facts"
    metrics: EngineMetrics

    @property
    def has_nixl(self) -> bool:
        """Whether its connector reports NIXL's metrics."""
        return self.metrics.has_nixl


async def inspect_both(client: Client, question: Question) -> tuple[dict[Role, EngineFacts], dict[Role, str]]:
    """Inspect both engines; return those that can be probed, and why others cannot."""
    roles = (Role.PREFILL, Role.DECODE)
    found = await asyncio.gather(*(inspect(client, question, role) for role in roles), return_exceptions=True)
    usable: dict[Role, EngineFacts] = {}
    unusable: dict[Role, str] = {}
    for role, engine in zip(roles, found, strict=True):
        if isinstance(engine, EngineFacts):
            usable[role] = engine
        elif isinstance(engine, UnusableError):
            unusable[role] = str(engine)
        else:
            raise engine
    return usable, unusable


async def inspect(client: Client, question: Question, role: Role) -> EngineFacts:
    """Inspect one engine; raises UnusableError."""
    url = question.url(role)
    try:
        models = await client.text(f"{url}/v1/models", seconds=_SECONDS)
    except AnswerError as error:
        raise UnusableError(role, _clause(role, url, error)) from error
    names = names_of(models.encode())
    if not names:
        raise UnusableError(role, _not_an_engine(url, "it lists no models"))
    version, metrics = await asyncio.gather(_page(client, f"{url}/version"), _page(client, f"{url}/metrics"))
    report = read_metrics((metrics or "").encode())
    if not _is_engine(version, metrics, report):
        seen = "it has no metrics of a vLLM engine, as a gateway or router has none"
        raise UnusableError(role, _not_an_engine(url, seen))
    length = next(card for card in parsed(models.encode())["data"] if isinstance(card, dict)).get("max_model_len")
    pages = (each.encode() for each in (version or "", models, metrics or ""))
    limit = length if isinstance(length, int) else None
    from pdx_proxy.verification.diagnosis import read_facts

    return EngineFacts(url, names, limit, ranks_of(metrics or ""), read_facts(*pages), report)


def ranks_of(metrics: str) -> int:
    """Return how many data-parallel ranks a page of metrics has."""
    return len(set(re.findall(r'\bengine="(\d+)"', metrics))) or 1


def _is_engine(version: str | None, metrics: str | None, report: EngineMetrics) -> bool:
    """Whether the pages are those of an engine, which reports its KV cache, unless its statistics are disabled."""
    if metrics is None:
        return False
    silent = "\nvllm:" not in metrics and version_of((version or "").encode()) is not None
    return bool(report.cache_settings) or silent


async def _page(client: Client, url: str) -> str | None:
    """Return a page; None unless it answers 200."""
    try:
        return await client.text(url, seconds=_SECONDS)
    except AnswerError:
        return None


def _clause(role: Role, url: str, error: AnswerError) -> str:
    if error.status in _KEY_STATUSES:
        return f"requires a key (status {error.status}); set VLLM_API_KEY, or write --api-key KEY"
    if error.status in _REDIRECTS:
        return f"redirects to {error.location or 'another URL'}; write the base URL of that"
    if error.status is not None and error.status >= 500:
        return f"answers {error.status}; wait until it is ready, or see its log"
    if error.status is not None:
        return _not_an_engine(url, f"/v1/models answers {error.status}")
    why = str(error).removeprefix(f"{url}/v1/models ")
    remedy = next((do for start, do in _START.items() if start in why), f"start it, or correct --{role}")
    return f"{why}; {remedy}"


def _not_an_engine(url: str, seen: str) -> str:
    return f"answers, but {url} is not an engine: {seen}; write the URL of `vllm serve` itself"
