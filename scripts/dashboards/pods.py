"""Which pod is bad?"""

from typing import Final

from scripts.dashboards.model import DECODE, ENGINES, OWN, Board, Panel, Query, Unit, mean, quantile, rate, ratio, total

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
                    "0: the container does not answer: it is down, or a network policy keeps Prometheus out.",
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
                    "Engines that gateways do not pick, by state. Suspect for long: /pdx/state of a gateway says why.",
                    Unit.COUNT,
                    (
                        Query(
                            f'max by (role, state) (pdx_endpoints{{{OWN},state!="Warm"}})',
                            "{{role}} {{state}}",
                        ),
                    ),
                ),
                Panel(
                    "Endpoints left out",
                    "How often gateways stopped picking an endpoint, by cause. One that comes again and again flaps.",
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
                    "Legs in flight as gateways count them. One far above its like is slow; one at 0 is not picked.",
                    Unit.COUNT,
                    (Query(total("pdx_legs_in_flight", by="endpoint, role"), "{{endpoint}} ({{role}})"),),
                    plotted=True,
                ),
                Panel(
                    "Choices, by policy",
                    "The policy that decided: LeastRequests where another was asked for means that it had no key or "
                    "no numbers.",
                    Unit.PER_SECOND,
                    (Query(rate("pdx_endpoint_selections_total", by="role, policy"), "{{role}} {{policy}}"),),
                ),
                Panel(
                    "Requests that wait",
                    "In the engine's own queue, whatever for.",
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
                    "Requests thrown out for want of KV blocks, to be computed again.",
                    Unit.EVENTS,
                    (Query(rate("vllm:num_preemptions_total", ENGINES, by="pod"), _POD),),
                ),
            ),
        ),
        (
            "Is it slow?",
            (
                Panel(
                    "First token, p95",
                    "By the engine's own clock, its queue included. A P's is its prefill, a D's the arrival of KV.",
                    Unit.SECONDS,
                    (Query(quantile(0.95, "vllm:time_to_first_token_seconds", ENGINES, by="pod"), _POD),),
                    plotted=True,
                ),
                Panel(
                    "Between tokens, p95",
                    "Of engines that decode.",
                    Unit.SECONDS,
                    (Query(quantile(0.95, "vllm:inter_token_latency_seconds", DECODE, by="pod"), _POD),),
                ),
                Panel(
                    "Transfer of KV, mean",
                    "One pod far above the others has a bad path to its peers.",
                    Unit.SECONDS,
                    (Query(mean("vllm:nixl_xfer_time_seconds", ENGINES, by="pod"), _POD),),
                ),
            ),
        ),
        (
            "Does KV reach it?",
            (
                Panel(
                    "Prompt tokens from outside",
                    "Share of a D's prompt tokens that it had not to compute. One far below the others is cut off.",
                    Unit.SHARE,
                    (Query(ratio(_ARRIVED, _PROMPTS), _POD),),
                    plotted=True,
                ),
                Panel(
                    "KV held, by P",
                    "Prefills that no D has fetched yet. One P far above its like is not reached by D's.",
                    Unit.COUNT,
                    (Query(total("pdx_prefill_kv_pinned", by="endpoint"), "{{endpoint}}"),),
                ),
                Panel(
                    "KV lost on D",
                    "Push orders: hand-offs whose blocks a D holds in vain. Only a restart of that D frees them soon.",
                    Unit.COUNT,
                    (Query(total("pdx_decode_kv_leaked", by="endpoint"), "{{endpoint}}"),),
                ),
                Panel(
                    "Failed transfers and expired leases",
                    "Failures count where KV is moved (D in pull, P in push), leases on P.",
                    Unit.EVENTS,
                    (
                        Query(rate("vllm:nixl_num_failed_transfers_total", ENGINES, by="pod"), "{{pod}} failed"),
                        Query(rate("vllm:nixl_num_kv_expired_reqs_total", ENGINES, by="pod"), "{{pod}} expired"),
                    ),
                ),
                Panel(
                    "Bad ends",
                    "Requests that the engine ended with an error or an abort; a client that leaves is an abort too.",
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
