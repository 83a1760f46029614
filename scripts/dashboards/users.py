"""The dashboard of health and latency for users."""

from typing import Final

from scripts.dashboards.model import (
    DECODE,
    OWN,
    Board,
    Kind,
    Panel,
    Query,
    Unit,
    mean,
    phase,
    quantile,
    quantiles,
    rate,
)
from scripts.dashboards.model import ratio as share
from scripts.dashboards.model import total as now

_FAILED: Final = f'{OWN},outcome=~"unavailable|broken|idle|expired|exhausted|internal"'
_REFUSED: Final = f'{OWN},outcome=~"shed|refused|refused_by_engine"'
_ALL: Final = rate("pdx_requests_total")

BOARD: Final = Board(
    "pdx-users",
    "Users",
    "Is it healthy and fast for users?",
    (
        (
            "At a glance",
            (
                Panel(
                    "Requests",
                    "Requests that ended, per second.",
                    Unit.PER_SECOND,
                    (Query(_ALL, "requests"),),
                    Kind.NUMBER,
                ),
                Panel(
                    "Failed",
                    "Share of requests without an answer from an engine, or with an incomplete one; above 1 % users "
                    "notice.",
                    Unit.SHARE,
                    (Query(share(rate("pdx_requests_total", _FAILED), _ALL), "failed"),),
                    Kind.NUMBER,
                    bad_above=0.01,
                ),
                Panel(
                    "Refused",
                    "Share of requests that were shed (429, 503) or refused with a 4xx.",
                    Unit.SHARE,
                    (Query(share(rate("pdx_requests_total", _REFUSED), _ALL), "refused"),),
                    Kind.NUMBER,
                    bad_above=0.05,
                ),
                Panel(
                    "Engines that answer",
                    "Warm engines that can answer clients; 0 means that no client is served.",
                    Unit.COUNT,
                    (Query(f'max(sum by (pod) (pdx_endpoints{{{OWN},role!="prefill",state="Warm"}}))', "warm"),),
                    Kind.NUMBER,
                    bad_below=1,
                ),
            ),
        ),
        (
            "What users get",
            (
                Panel(
                    "How requests end",
                    "Every request ends in exactly one outcome. split and whole were answered; the others were not.",
                    Unit.PER_SECOND,
                    (Query(rate("pdx_requests_total", by="outcome"), "{{outcome}}"),),
                    stacked=True,
                    plotted=True,
                ),
                Panel(
                    "First token",
                    "From the request to the first event of a streamed answer: the wait that users notice.",
                    Unit.SECONDS,
                    quantiles("pdx_phase_seconds", phase("first_token")),
                    plotted=True,
                ),
                Panel(
                    "Whole time of a request",
                    "From the last byte of a request to the last byte of its answer. Long answers take long: compare "
                    "with the time between tokens.",
                    Unit.SECONDS,
                    quantiles("pdx_phase_seconds", phase("total")),
                ),
                Panel(
                    "Time between tokens",
                    "The speed of the text that users notice, measured by the engines that decode.",
                    Unit.SECONDS,
                    quantiles("vllm:inter_token_latency_seconds", DECODE),
                    plotted=True,
                ),
                Panel(
                    "Response chunks",
                    "Written to clients per second: about one for every event of a stream. 0 although requests are "
                    "open: the streams stand still.",
                    Unit.EVENTS,
                    (Query(rate("pdx_response_chunks_total"), "chunks"),),
                ),
                Panel(
                    "Tokens out",
                    "Tokens generated per second by engines that answer clients.",
                    Unit.EVENTS,
                    (
                        Query(
                            rate("vllm:generation_tokens_total", DECODE, by="pdx_dev_deployment"),
                            "{{pdx_dev_deployment}}",
                        ),
                    ),
                ),
            ),
        ),
        (
            "Why it is slow",
            (
                Panel(
                    "Where the time goes",
                    "Mean seconds of each phase: queue (of requests that waited), the way to P, P, hand-off. "
                    "Begin with the largest.",
                    Unit.SECONDS,
                    (Query(mean("pdx_phase_seconds", f'{OWN},phase!~"total|first_token"', by="phase"), "{{phase}}"),),
                    plotted=True,
                ),
                Panel(
                    "Open requests",
                    "Requests in flight, and those of them that wait in the queue. A queue that does not shrink is "
                    "overload.",
                    Unit.COUNT,
                    (Query(now("pdx_requests_in_flight"), "in flight"), Query(now("pdx_requests_queued"), "queued")),
                ),
                Panel(
                    "Wait in the gateway's queue",
                    "95th percentile of the requests that waited. Engines have further queues.",
                    Unit.SECONDS,
                    (Query(quantile(0.95, "pdx_phase_seconds", phase("queue")), "p95"),),
                ),
            ),
        ),
    ),
)
