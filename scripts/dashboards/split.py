"""The dashboard of the P/D split."""

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
    failed_transfers,
    mean,
    of_transfers,
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
                    "Prompt tokens that D did not compute, per prompt token that P computed. Near 100 %: KV moves. "
                    "Near "
                    "0: D computes every prompt again, and the work of P is lost.",
                    Unit.SHARE,
                    (Query(f"clamp_max({ratio(_ARRIVED, _PREFILLED)}, 1)", "arrives"),),
                    Kind.NUMBER,
                    bad_below=0.5,
                ),
                Panel(
                    "Split requests",
                    "Share of answered requests that used P and D. The others were whole: see the reasons below.",
                    Unit.SHARE,
                    (Query(ratio(rate("pdx_requests_total", f'{OWN},outcome="split"'), _ANSWERED), "split"),),
                    Kind.NUMBER,
                ),
                Panel(
                    "Warm P",
                    "Prefill engines that the gateways select.",
                    Unit.COUNT,
                    (Query(f'max(sum by (pod) (pdx_endpoints{{{OWN},role="prefill",state="Warm"}}))', "P"),),
                    Kind.NUMBER,
                    bad_below=1,
                ),
                Panel(
                    "Warm D",
                    "Decode engines that the gateways select.",
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
                    "external_kv_transfer: read from P. local_cache_hit: cached on D. local_compute: prefilled on D. "
                    "Much local_compute although requests are split: KV does not move.",
                    Unit.EVENTS,
                    (Query(rate("vllm:prompt_tokens_by_source_total", DECODE, by="source"), "{{source}}"),),
                    stacked=True,
                    plotted=True,
                ),
                Panel(
                    "Remote prompt tokens by D",
                    "Share of each D's prompt tokens of the last 30 s whose KV it loaded from other engines; gateways "
                    "read it from the engine's counters. Near 0 although requests are split: no KV reaches this D.",
                    Unit.SHARE,
                    (Query(f"max by (endpoint) (pdx_remote_prompt_tokens_ratio{{{OWN}}})", "{{endpoint}}"),),
                ),
                Panel(
                    "Pairs by verdict",
                    "Result of the transfer probes of each pair. One broken pair makes the condition "
                    "KVTransferVerified False; /pdx/verification of a gateway names the pair and the likely cause.",
                    Unit.COUNT,
                    (Query(f"max by (verdict) (pdx_transfer_probe_pairs{{{OWN}}})", "{{verdict}}"),),
                ),
                Panel(
                    "Transfer probes",
                    "moved: D read KV from P. recomputed, wrong_text, failed: it did not. busy, not_reported: unknown.",
                    Unit.EVENTS,
                    (Query(rate("pdx_transfer_probes_total", by="result"), "{{result}}"),),
                ),
                Panel(
                    "Since KV was last seen to move",
                    "By a transfer probe. After more than a few minutes nothing proves that the split works.",
                    Unit.SECONDS,
                    (Query(f"time() - max(pdx_transfer_probe_last_success_timestamp_seconds{{{OWN}}})", "seconds"),),
                ),
                Panel(
                    "Phases of a transfer probe",
                    "Mean seconds: P's prefill, the hand-off, and D's answer to the same prompt alone.",
                    Unit.SECONDS,
                    (Query(mean("pdx_transfer_probe_seconds", by="phase"), "{{phase}}"),),
                ),
                Panel(
                    "Why requests are not split",
                    "path, parameters, short: the gateway does not split such requests. no_prefill: no P was "
                    "ready. suspended: no KV reaches D. long_queue: D's queue is longer than a push survives. burst, "
                    "sooner: see Bursts.",
                    Unit.PER_SECOND,
                    (Query(rate("pdx_not_split_total", by="reason"), "{{reason}}"),),
                ),
                Panel(
                    "Bursts",
                    "Requests that D serves alone by the objectives. burst: the wait at every P would have used up the "
                    "TTFT; many of them show that P's are too few. sooner: D finishes the prompt first.",
                    Unit.PER_SECOND,
                    (Query(rate("pdx_not_split_total", f'{OWN},reason=~"burst|sooner"', by="reason"), "{{reason}}"),),
                ),
                Panel(
                    "Hand-off",
                    "Of streams: from P's answer to D's first event (push: all of D's wait). It contains the transfer "
                    "and D's queue; compare it with the transfer alone.",
                    Unit.SECONDS,
                    quantiles("pdx_phase_seconds", phase("handoff")),
                    plotted=True,
                ),
                Panel(
                    "Transfer of KV",
                    "Seconds in NIXL or Mooncake alone, measured by the engine that moves KV: D in pull, P in push and "
                    "with Mooncake. If the hand-off is much longer, requests wait in D's queue.",
                    Unit.SECONDS,
                    quantiles(of_transfers("xfer_time_seconds"), ENGINES),
                ),
                Panel(
                    "KV moved",
                    "Bytes per second of all pairs; compare with the bandwidth of the network.",
                    Unit.BYTES_PER_SECOND,
                    (Query(rate(of_transfers("bytes_transferred_sum"), ENGINES), "bytes"),),
                ),
                Panel(
                    "Split requests that D prefilled",
                    "Requests that could be split but were prefilled by D, by reason. failed and no_kv: inspect the "
                    "pods.",
                    Unit.PER_SECOND,
                    (Query(rate("pdx_local_prefills_total", by="reason"), "{{reason}}"),),
                ),
                Panel(
                    "KV pinned on P",
                    "Finished prefills whose KV no D has read yet. It follows the traffic. If it stays when the "
                    "traffic "
                    "ends, no D reads this KV.",
                    Unit.COUNT,
                    (Query(total("pdx_prefill_kv_pinned"), "pinned"),),
                    plotted=True,
                ),
                Panel(
                    "KV that got lost",
                    "Failed transfers, and prefills whose lease ended before a D read them. Above 0: inspect the pods.",
                    Unit.EVENTS,
                    (
                        Query(failed_transfers(), "failed transfers"),
                        Query(rate(of_transfers("num_kv_expired_reqs_total"), ENGINES), "expired leases"),
                    ),
                    plotted=True,
                ),
            ),
        ),
        (
            "P or D?",
            (
                Panel(
                    "Used share of the leg limit",
                    "The gateways limit the legs at an engine to what it can run. The role that stays near 100 % while "
                    "requests wait in the gateways is the bottleneck.",
                    Unit.SHARE,
                    (
                        Query(
                            f"sum by (role) (pdx_legs_in_flight{{{OWN}}} and pdx_leg_limit{{{OWN}}}) "
                            f"/ {total('pdx_leg_limit', by='role')}",
                            "{{role}}",
                        ),
                    ),
                    bad_above=0.95,
                    plotted=True,
                ),
                Panel(
                    "Waiting per running request",
                    "In the engines' own queues, from their metrics. The gateways keep these queues short: above 1, "
                    "other clients use the engines, or a limit of the gateway is set too high.",
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
                    "Mean of each role. P fills up if D's do not read its KV; a D near 100 % preempts requests.",
                    Unit.SHARE,
                    (Query(f"avg by (pdx_dev_role) (vllm:kv_cache_usage_perc{{{ENGINES}}})", "{{pdx_dev_role}}"),),
                    bad_above=0.9,
                ),
                Panel(
                    "Wait in the engines' queues",
                    "Mean seconds until an engine begins to compute. On D this includes the wait for KV.",
                    Unit.SECONDS,
                    (Query(mean("vllm:request_queue_time_seconds", ENGINES, by="pdx_dev_role"), "{{pdx_dev_role}}"),),
                ),
                Panel(
                    "Work in the engines",
                    "Mean seconds of computation: prefill on P and decode on D.",
                    Unit.SECONDS,
                    (
                        Query(mean("vllm:request_prefill_time_seconds", PREFILL), "prefill on P"),
                        Query(mean("vllm:request_decode_time_seconds", DECODE), "decode on D"),
                    ),
                ),
                Panel(
                    "Requests of each engine",
                    "Legs in flight per warm endpoint of a role, counted by the gateways.",
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
                    "From the sending of the prompt to P's answer: P's queue and its computation.",
                    Unit.SECONDS,
                    quantiles("pdx_phase_seconds", phase("prefill")),
                ),
            ),
        ),
    ),
)
