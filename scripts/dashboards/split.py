"""Is the P/D split working, and is P or D the bottleneck?"""

from typing import Final

from scripts.dashboards.model import (
    DECODE,
    ENGINES,
    OWN,
    PREFILL,
    Board,
    Kind,
    Panel,
    Query,
    Unit,
    mean,
    phase,
    quantiles,
    rate,
    ratio,
    total,
)

_ANSWERED: Final = rate("pdx_requests_total", f'{OWN},outcome=~"split|whole"')
_ARRIVED: Final = rate("vllm:prompt_tokens_by_source_total", f'{DECODE},source!="local_compute"')
_PREFILLED: Final = rate("vllm:prompt_tokens_total", PREFILL)
_WAITING: Final = f'{ENGINES},reason="capacity"'

BOARD: Final = Board(
    "pdx-split",
    "P/D split",
    "Is the P/D split working, and is P or D the bottleneck?",
    (
        (
            "At a glance",
            (
                Panel(
                    "KV that arrives",
                    "Prompt tokens that D had not to compute, for each that P computed. Near 100 %: KV moves. Near 0: "
                    "D computes every prompt again, and P works for nothing.",
                    Unit.SHARE,
                    (Query(f"clamp_max({ratio(_ARRIVED, _PREFILLED)}, 1)", "arrives"),),
                    Kind.NUMBER,
                    bad_below=0.5,
                ),
                Panel(
                    "Split requests",
                    "Share of answered requests that used P and D. The rest was not to be split, or could not be.",
                    Unit.SHARE,
                    (Query(ratio(rate("pdx_requests_total", f'{OWN},outcome="split"'), _ANSWERED), "split"),),
                    Kind.NUMBER,
                ),
                Panel(
                    "Warm P",
                    "Prefill engines that take requests.",
                    Unit.COUNT,
                    (Query(f'max(sum by (pod) (pdx_endpoints{{{OWN},role="prefill",state="Warm"}}))', "P"),),
                    Kind.NUMBER,
                    bad_below=1,
                ),
                Panel(
                    "Warm D",
                    "Decode engines that take requests.",
                    Unit.COUNT,
                    (Query(f'max(sum by (pod) (pdx_endpoints{{{OWN},role="decode",state="Warm"}}))', "D"),),
                    Kind.NUMBER,
                    bad_below=1,
                ),
            ),
        ),
        (
            "Does KV move?",
            (
                Panel(
                    "Where D's prompt tokens come from",
                    "external_kv_transfer came from P, local_cache_hit was there already, local_compute was prefilled "
                    "on D. Much local_compute beside split requests is a split in name only.",
                    Unit.EVENTS,
                    (Query(rate("vllm:prompt_tokens_by_source_total", DECODE, by="source"), "{{source}}"),),
                    stacked=True,
                    plotted=True,
                ),
                Panel(
                    "From outside, by D",
                    "Share of each D's prompt tokens of the last half minute that came from outside, as gateways "
                    "read it of the engine. Near 0 beside split requests: none reaches this D. Canaries are included.",
                    Unit.SHARE,
                    (Query(f"max by (endpoint) (pdx_remote_prompt_tokens_ratio{{{OWN}}})", "{{endpoint}}"),),
                ),
                Panel(
                    "Pairs, by what canaries saw",
                    "Prompts of the gateway's own, sent through pairs of P and D. One broken makes the condition "
                    "KVTransferVerified False; /pdx/canary of a gateway names the pair and the likely cause.",
                    Unit.COUNT,
                    (Query(f"max by (verdict) (pdx_transfer_probe_pairs{{{OWN}}})", "{{verdict}}"),),
                ),
                Panel(
                    "Canaries",
                    "moved: D read KV from P. recomputed, wrong_text, failed: it did not. busy, not_reported: unknown.",
                    Unit.EVENTS,
                    (Query(rate("pdx_transfer_probes_total", by="result"), "{{result}}"),),
                ),
                Panel(
                    "Since KV was last seen to move",
                    "By canaries. Beyond a few minutes nothing proves that the split works.",
                    Unit.SECONDS,
                    (Query(f"time() - max(pdx_transfer_probe_last_success_timestamp_seconds{{{OWN}}})", "seconds"),),
                ),
                Panel(
                    "Parts of a canary",
                    "Mean seconds: P's prefill, the hand-off, and D's answer to the same prompt alone.",
                    Unit.SECONDS,
                    (Query(mean("pdx_transfer_probe_seconds", by="phase"), "{{phase}}"),),
                ),
                Panel(
                    "Why requests are not split",
                    "path, parameters, short: not meant to be. no_prefill: no P was ready.",
                    Unit.PER_SECOND,
                    (Query(rate("pdx_not_split_total", by="reason"), "{{reason}}"),),
                ),
                Panel(
                    "Hand-off",
                    "Of streams: P's answer to D's first event (push: D's whole wait): transfer and D's queue. Compare "
                    "with the transfer itself.",
                    Unit.SECONDS,
                    quantiles("pdx_phase_seconds", phase("handoff")),
                    plotted=True,
                ),
                Panel(
                    "Transfer of KV",
                    "Seconds in NIXL alone, by the engine that moves: D in pull, P in push. When the hand-off is much "
                    "longer, D's queue is what waits.",
                    Unit.SECONDS,
                    quantiles("vllm:nixl_xfer_time_seconds", ENGINES),
                ),
                Panel(
                    "KV moved",
                    "Bytes each second, all pairs together; compare with what the network can.",
                    Unit.BYTES_PER_SECOND,
                    (Query(rate("vllm:nixl_bytes_transferred_sum", ENGINES), "bytes"),),
                ),
                Panel(
                    "Split requests that D prefilled",
                    "Requests that could have been split and were not, by why. failed and nothing: look at the pods.",
                    Unit.PER_SECOND,
                    (Query(rate("pdx_local_prefills_total", by="reason"), "{{reason}}"),),
                ),
                Panel(
                    "KV held on P",
                    "Prefills that are done and that no D has fetched yet. It follows the traffic; a number that stays "
                    "when traffic goes is KV that nobody fetches.",
                    Unit.COUNT,
                    (Query(total("pdx_prefill_kv_pinned"), "held"),),
                    plotted=True,
                ),
                Panel(
                    "KV that got lost",
                    "Transfers that failed, and prefills whose lease ended before a D read them. Not 0: see the pods.",
                    Unit.EVENTS,
                    (
                        Query(rate("vllm:nixl_num_failed_transfers_total", ENGINES), "failed transfers"),
                        Query(rate("vllm:nixl_num_kv_expired_reqs_total", ENGINES), "expired leases"),
                    ),
                    plotted=True,
                ),
            ),
        ),
        (
            "P or D?",
            (
                Panel(
                    "Requests that wait, for each that runs",
                    "By the engines' own numbers. The role that stands above 1 is the bottleneck; if the other is near "
                    "0, the ratio of P to D does not fit the traffic.",
                    Unit.COUNT,
                    (
                        Query(
                            f"{total('vllm:num_requests_waiting_by_reason', _WAITING, by='pdx_dev_role')} / "
                            f"clamp_min({total('vllm:num_requests_running', ENGINES, by='pdx_dev_role')}, 1)",
                            "{{pdx_dev_role}}",
                        ),
                    ),
                    bad_above=1,
                    plotted=True,
                ),
                Panel(
                    "KV cache in use",
                    "Mean of each role. P fills when its KV is not fetched; D near 100 % preempts.",
                    Unit.SHARE,
                    (Query(f"avg by (pdx_dev_role) (vllm:kv_cache_usage_perc{{{ENGINES}}})", "{{pdx_dev_role}}"),),
                    bad_above=0.9,
                ),
                Panel(
                    "Wait in the engines' queues",
                    "Mean seconds until an engine begins to compute. On D the wait for KV is part of it.",
                    Unit.SECONDS,
                    (Query(mean("vllm:request_queue_time_seconds", ENGINES, by="pdx_dev_role"), "{{pdx_dev_role}}"),),
                ),
                Panel(
                    "Work in the engines",
                    "Mean seconds of computing: P's prefill and D's decode.",
                    Unit.SECONDS,
                    (
                        Query(mean("vllm:request_prefill_time_seconds", PREFILL), "prefill on P"),
                        Query(mean("vllm:request_decode_time_seconds", DECODE), "decode on D"),
                    ),
                ),
                Panel(
                    "Requests of each engine",
                    "Legs in flight for each warm endpoint of a role, as the gateway counts them.",
                    Unit.COUNT,
                    (
                        Query(
                            f"{total('pdx_legs_in_flight', by='role')} / "
                            f'clamp_min(max by (role) (pdx_endpoints{{{OWN},state="Warm"}}), 1)',
                            "{{role}}",
                        ),
                    ),
                ),
                Panel(
                    "Time in P",
                    "From sending the prompt to P's answer: its queue and its work.",
                    Unit.SECONDS,
                    quantiles("pdx_phase_seconds", phase("prefill")),
                ),
            ),
        ),
    ),
)
