"""What did the gateway refuse or retry, and why?"""

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
                    "shed: overload. refused and refused_by_engine: a client's mistake. unavailable, broken, idle, "
                    "expired: engines failed. internal: the gateway did. client_left: nobody's fault.",
                    Unit.PER_SECOND,
                    (Query(rate("pdx_requests_total", _NOT_ANSWERED, by="outcome"), "{{outcome}}"),),
                    stacked=True,
                    plotted=True,
                ),
                Panel(
                    "Shed, by reason",
                    "queue_full and queue_timeout: more engines are wanted. client_limit: one client. bytes: large "
                    "bodies fill the gateway's memory.",
                    Unit.PER_SECOND,
                    (Query(rate("pdx_requests_shed_total", by="reason"), "{{reason}}"),),
                ),
                Panel(
                    "Requests that wait",
                    "In the gateways' queues; at the limit they are shed.",
                    Unit.COUNT,
                    (Query(total("pdx_requests_queued", by="pod"), "{{pod}}"),),
                ),
                Panel(
                    "Wait in the gateway's queue",
                    "95th percentile of those who waited.",
                    Unit.SECONDS,
                    (Query(quantile(0.95, "pdx_phase_seconds", phase("queue")), "p95"),),
                ),
            ),
        ),
        (
            "Retried",
            (
                Panel(
                    "Attempts that failed, by reason",
                    "Before the first event of an answer; each was tried elsewhere if the budget allowed it.",
                    Unit.PER_SECOND,
                    (Query(rate("pdx_retries_total", by="reason"), "{{reason}}"),),
                    plotted=True,
                ),
                Panel(
                    "Retries not made",
                    "Because the retry budget was used up: so much fails that trying again would make it worse.",
                    Unit.PER_SECOND,
                    (Query(rate("pdx_retries_refused_total"), "not made"),),
                ),
                Panel(
                    "Prefilled by D instead, by reason",
                    "no_prefill: no P was ready. failed: what was tried over a P. refused: a leg, by a 4xx. nothing: "
                    "P answered without KV.",
                    Unit.PER_SECOND,
                    (Query(rate("pdx_local_prefills_total", by="reason"), "{{reason}}"),),
                ),
                Panel(
                    "Endpoints left out, by cause",
                    "lost, hung, failures; kept: the last one, picked on in spite of them.",
                    Unit.EVENTS,
                    (Query(rate("pdx_ejections_total", by="reason"), "{{reason}}"),),
                ),
            ),
        ),
        (
            "Cleaned up",
            (
                Panel(
                    "Hand-offs that nobody wanted any more",
                    "By how they were settled. lease: P's blocks wait for the end of their lease. decode_lost: D's "
                    "blocks are gone until it restarts.",
                    Unit.EVENTS,
                    (Query(rate("pdx_settlements_total", by="result"), "{{result}}"),),
                ),
                Panel(
                    "Being settled",
                    "Hand-offs whose engines are still to be freed. A number that stands is an engine that hangs.",
                    Unit.COUNT,
                    (Query(total("pdx_settlements_in_flight"), "settling"),),
                ),
            ),
        ),
    ),
)
