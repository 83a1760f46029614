"""Metrics pages that a broken or hostile engine may send, from a seeded generator."""

import random
from typing import Final

_NAMES: Final = (
    "cache_config_info",
    "e2e_request_latency_seconds_count",
    "e2e_request_latency_seconds_sum",
    "external_prefix_cache_queries_total",
    "generation_tokens_total",
    "inter_token_latency_seconds_count",
    "inter_token_latency_seconds_sum",
    "kv_cache_usage_perc",
    "nixl_bytes_transferred_sum",
    "num_requests_running",
    "num_requests_waiting",
    "num_requests_waiting_by_reason",
    "prefix_cache_hits_total",
    "prompt_tokens_by_source_total",
    "prompt_tokens_total",
    "request_success_total",
    "time_to_first_token_seconds_count",
    "time_to_first_token_seconds_sum",
)
_ODD: Final = (
    *("NaN", "-NaN", "+Inf", "-Inf", "1e308", "-1e308", "1e309", "1e13", "1e12", "-1", "-0.0", "5e-324", "1e-300"),
    *("", "x", "1 1", "0x10", "1e", "9" * 5000, "1" * 23, "0." + "0" * 200 + "1", "\u0661", "\udcff", "1_0"),
)
_SETTINGS: Final = (
    *("16", "None", "0", "-1", "9" * 15, "9" * 16, "1e5", "", "a" * 20_000),
    '"' * 9,
)


def random_page(rng: random.Random) -> bytes:
    """Return a page: most metrics with ordinary numbers, some without, some odd; at times cut, doubled or not text."""
    lines = []
    for name in _NAMES:
        for rank in rng.choice((("0",), ("0", "1"), ("1",), ("77",), ("0", "0"), ())):
            lines += _lines(name, rank, rng)
    rng.shuffle(lines)
    page = "\n".join(lines).encode(errors="surrogateescape")
    match rng.randrange(12):
        case 0:
            return page[: rng.randrange(len(page) + 1)]
        case 1:
            return page + b"\n" + page
        case 2:
            return page.replace(b"engine", b"\xff\xfe\x00")
        case 3:
            return page.replace(b"\n", rng.choice((b"\r\n", b"", b"\n\n", b"\x00")))
        case 4:
            return rng.randbytes(rng.randrange(200))
    return page


def _lines(name: str, rank: str, rng: random.Random) -> list[str]:
    labels = [f'engine="{rank}"']
    if name == "cache_config_info":
        labels += [f'{key}="{rng.choice(_SETTINGS)}"' for key in ("block_size", "num_gpu_blocks")]
        if rng.random() < 0.5:
            labels.append(f'kv_cache_size_tokens="{rng.choice(_SETTINGS)}"')
    kinds = {
        "num_requests_waiting_by_reason": ("reason", ("capacity", "deferred")),
        "prompt_tokens_by_source_total": ("source", ("external_kv_transfer", "local_compute", "local_cache_hit")),
    }
    label, values = kinds.get(name, ("model_name", ("m",)))
    return [f'vllm:{name}{{{",".join(labels)},{label}="{value}"}} {_number(name, rng)}' for value in values]


def _number(name: str, rng: random.Random) -> str:
    if rng.random() < 0.06:
        return rng.choice(_ODD)
    return repr(rng.random()) if name.endswith("perc") else repr(float(rng.randrange(10 ** rng.randrange(1, 13))))
