"""The dashboard of single pods."""

from typing import Final

from scripts.dashboards.model import (
    DECODE,
    ENGINES,
    OWN,
    Board,
    Panel,
    Query,
    Unit,
    failed_transfers,
    mean,
    of_transfers,
    quantile,
    rate,
    ratio,
    total,
)

_ARRIVED: Final = rate("vllm:prompt_tokens_by_source_total", f'{DECODE},source!="local_compute"', by="pod")
_PROMPTS: Final = rate("vllm:prompt_tokens_total", DECODE, by="pod")
_BAD_ENDS: Final = f'{ENGINES},finished_reason=~"error|abort"'
_POD: Final = "{{pod}}"

BOARD: Final = Board(
    "pdx-pods",
    "Pods",
    "Which pod is bad?",
    (
        (
            "Is it there?",
            (
                Panel(
                    "Scrapes that answer",
                    "0: the container does not answer. It is down, or a network policy blocks Prometheus.",
                    Unit.COUNT,
                    (
                        Query(
                            f"min by (pod, container, pdx_dev_role) (up{{{OWN}}})",
                            "{{pod}} {{container}} ({{pdx_dev_role}})",
                        ),
                    ),
                    bad_below=1,
                ),
                Panel(
                    "Endpoints that are not warm",
                    "Endpoints that gateways do not select, by state. If one stays Suspect, /pdx/state of a gateway "
                    "has the reason.",
                    Unit.COUNT,
                    (
                        Query(
                            f'max by (role, state) (pdx_endpoints{{{OWN},state!="Warm"}})',
                            "{{role}} {{state}}",
                        ),
                    ),
                ),
                Panel(
                    "Ejections",
                    "How often gateways ejected an endpoint, by reason. Repeated ejections mean that it flaps.",
                    Unit.EVENTS,
                    (Query(rate("pdx_ejections_total", by="reason"), "{{reason}}"),),
                ),
            ),
        ),
        (
            "Does it carry its share?",
            (
                Panel(
                    "Requests by endpoint",
                    "Legs in flight, counted by the gateways. An endpoint far above the others is slow; one at 0 is "
                    "not selected.",
                    Unit.COUNT,
                    (Query(total("pdx_legs_in_flight", by="endpoint, role"), "{{endpoint}} ({{role}})"),),
                    plotted=True,
                ),
                Panel(
                    "Selections by policy",
                    "The policy that decided. LeastRequests, although another policy is configured: the request had no "
                    "affinity key, or the engines report no load.",
                    Unit.PER_SECOND,
                    (Query(rate("pdx_endpoint_selections_total", by="role, policy"), "{{role}} {{policy}}"),),
                ),
                Panel(
                    "Waiting requests",
                    "In the engine's own queue, for any reason.",
                    Unit.COUNT,
                    (Query(total("vllm:num_requests_waiting", ENGINES, by="pod"), _POD),),
                ),
                Panel(
                    "KV cache in use",
                    "The fullest rank of each pod.",
                    Unit.SHARE,
                    (Query(f"max by (pod) (vllm:kv_cache_usage_perc{{{ENGINES}}})", _POD),),
                    bad_above=0.9,
                ),
                Panel(
                    "Preemptions",
                    "Requests that lost their KV blocks to others and are computed again.",
                    Unit.EVENTS,
                    (Query(rate("vllm:num_preemptions_total", ENGINES, by="pod"), _POD),),
                ),
            ),
        ),
        (
            "Is it slow?",
            (
                Panel(
                    "p95 time to first token",
                    "Measured by the engine, its queue included. On P it is the prefill, on D the wait for KV.",
                    Unit.SECONDS,
                    (Query(quantile(0.95, "vllm:time_to_first_token_seconds", ENGINES, by="pod"), _POD),),
                    plotted=True,
                ),
                Panel(
                    "p95 time between tokens",
                    "Only engines that decode.",
                    Unit.SECONDS,
                    (Query(quantile(0.95, "vllm:inter_token_latency_seconds", DECODE, by="pod"), _POD),),
                ),
                Panel(
                    "Mean time of a KV transfer",
                    "A pod far above the others has a bad network path to its peers.",
                    Unit.SECONDS,
                    (Query(mean(of_transfers("xfer_time_seconds"), ENGINES, by="pod"), _POD),),
                ),
            ),
        ),
        (
            "Does KV reach it?",
            (
                Panel(
                    "Remote prompt tokens",
                    "Share of a D's prompt tokens that it did not compute. A D far below the others receives no KV.",
                    Unit.SHARE,
                    (Query(ratio(_ARRIVED, _PROMPTS), _POD),),
                    plotted=True,
                ),
                Panel(
                    "Pinned KV by P",
                    "Finished prefills whose KV no D has read yet. If one P is far above the others, D's do not "
                    "reach it.",
                    Unit.COUNT,
                    (Query(total("pdx_prefill_kv_pinned", by="endpoint"), "{{endpoint}}"),),
                ),
                Panel(
                    "KV leaked on D",
                    "Push orders: hand-offs whose blocks D keeps although no push came. Only a restart of D frees "
                    "them soon.",
                    Unit.COUNT,
                    (Query(total("pdx_decode_kv_leaked", by="endpoint"), "{{endpoint}}"),),
                ),
                Panel(
                    "Failed transfers and expired leases",
                    "Failures are counted on the engine that moves KV (D in pull, P in push), with Mooncake also on a "
                    "D that does not receive it; leases on P.",
                    Unit.EVENTS,
                    (
                        Query(failed_transfers(by="pod"), "{{pod}} failed"),
                        Query(rate(of_transfers("num_kv_expired_reqs_total"), ENGINES, by="pod"), "{{pod}} expired"),
                    ),
                ),
                Panel(
                    "Bad ends",
                    "Requests that the engine ended with an error or an abort. A client that disconnects causes an "
                    "abort too.",
                    Unit.EVENTS,
                    (
                        Query(
                            rate("vllm:request_success_total", _BAD_ENDS, by="pod, finished_reason"),
                            "{{pod}} {{finished_reason}}",
                        ),
                    ),
                ),
            ),
        ),
    ),
)
