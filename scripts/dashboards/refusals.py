"""The dashboard of refusals, retries and settlements."""

from typing import Final

from scripts.dashboards.model import OWN, Board, Panel, Query, Unit, phase, quantile, rate, total

_NOT_ANSWERED: Final = f'{OWN},outcome!~"split|whole"'

BOARD: Final = Board(
    "pdx-refusals",
    "Refusals and retries",
    "What did the gateway refuse or retry, and why?",
    (
        (
            "Refused",
            (
                Panel(
                    "Requests without an answer",
                    "shed: overload. refused, refused_by_engine: an error of the client. unavailable, broken, idle, "
                    "expired: engines failed. exhausted: the gateway is out of ports, files "
                    "or memory. internal: the gateway failed. client_left: the client disconnected.",
                    Unit.PER_SECOND,
                    (Query(rate("pdx_requests_total", _NOT_ANSWERED, by="outcome"), "{{outcome}}"),),
                    stacked=True,
                    plotted=True,
                ),
                Panel(
                    "Shed requests by reason",
                    "queue_full, queue_timeout: there are too few engines. client_limit: one client has too many open "
                    "requests. bytes: large bodies fill the gateway's buffers.",
                    Unit.PER_SECOND,
                    (Query(rate("pdx_requests_shed_total", by="reason"), "{{reason}}"),),
                ),
                Panel(
                    "Refused after engines died",
                    "request: engines died while they served the same body. client: engines died of requests of its "
                    "client, and those that it may use are not free.",
                    Unit.PER_SECOND,
                    (Query(rate("pdx_requests_quarantined_total", by="reason"), "{{reason}}"),),
                ),
                Panel(
                    "Waiting requests",
                    "In the gateways' queues. Requests above the limit are shed.",
                    Unit.COUNT,
                    (Query(total("pdx_requests_queued", by="pod"), "{{pod}}"),),
                ),
                Panel(
                    "Wait in the gateway's queue",
                    "95th percentile of the requests that waited.",
                    Unit.SECONDS,
                    (Query(quantile(0.95, "pdx_phase_seconds", phase("queue")), "p95"),),
                ),
            ),
        ),
        (
            "Retried",
            (
                Panel(
                    "Failed attempts by reason",
                    "Before the first event of an answer. Each is repeated elsewhere if the retry budget allows it.",
                    Unit.PER_SECOND,
                    (Query(rate("pdx_retries_total", by="reason"), "{{reason}}"),),
                    plotted=True,
                ),
                Panel(
                    "Refused retries",
                    "The retry budget was used up: so many attempts fail that repeating them would add load.",
                    Unit.PER_SECOND,
                    (Query(rate("pdx_retries_refused_total"), "refused"),),
                ),
                Panel(
                    "Why D prefilled instead",
                    "no_prefill: no P was ready. suspended: no KV reaches D. long_queue: D's queue is longer than a "
                    "push survives. failed: the attempts with a P failed. refused: an engine answered a leg with a "
                    "4xx. no_kv: P answered without KV.",
                    Unit.PER_SECOND,
                    (Query(rate("pdx_local_prefills_total", by="reason"), "{{reason}}"),),
                ),
                Panel(
                    "Ejections by reason",
                    "lost, timeout, stalled: the endpoint is gone or hung. overridden: the endpoint failed too, but "
                    "stays in use, because half of its role is ejected or no other can replace it.",
                    Unit.EVENTS,
                    (Query(rate("pdx_ejections_total", by="reason"), "{{reason}}"),),
                ),
            ),
        ),
        (
            "Cleaned up",
            (
                Panel(
                    "Hand-offs that ended early",
                    "By how they were settled. lease: P's blocks wait for the end of their lease. decode_lost: D "
                    "keeps its blocks until it restarts.",
                    Unit.EVENTS,
                    (Query(rate("pdx_settlements_total", by="result"), "{{result}}"),),
                ),
                Panel(
                    "Being settled",
                    "Hand-offs whose blocks are not released yet. If the number does not fall, an engine hangs.",
                    Unit.COUNT,
                    (Query(total("pdx_settlements_in_flight"), "settling"),),
                ),
            ),
        ),
    ),
)
