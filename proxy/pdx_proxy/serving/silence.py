"""Limits the silence of an engine that may generate for long without sending anything, as with hidden reasoning."""

from typing import Final

from pdx_api.vllm_metrics import read_metrics
from pdx_proxy.engines.leg import Leg
from pdx_proxy.engines.probe import page_of
from pdx_proxy.engines.upstreams import Engines
from pdx_proxy.http.upstream.failures import DeadlineExceeded

_METRICS_SECONDS: Final = 2.0
"""How long the engine may take to report what it does."""


async def await_end(engines: Engines, leg: Leg, idle: float) -> None:
    """Wait until the relayed answer is complete. Raises DeadlineExceeded for an engine that works on nothing.

    After each `idle` seconds without a part of the answer, the engine's metrics must show that requests run, and that
    tokens have been generated since the last such look. Metrics do not show which request runs: while the engine works
    for others, only the client and the deadline of the request end the wait.
    """
    before: float | None = None
    while True:
        try:
            await leg.relayed(idle)
            return
        except DeadlineExceeded:
            page = await page_of(engines, leg.endpoint, "/metrics", _METRICS_SECONDS)
            metrics = read_metrics(page, leg.endpoint.spec.rank)
            if not metrics.running or metrics.generated_tokens in (None, before):
                raise
            before = metrics.generated_tokens
