"""Time to first token by length of the prompt, with and without splitting, and NIXL's own times of the transfers."""

import argparse
import asyncio
import statistics
import sys
from collections.abc import AsyncGenerator
from typing import Any, Final

import aiohttp

from benchmarks.gpu.client import Engines, aggregated, both_metrics, gateway, growth, prompt, split, stream

LENGTHS: Final = (256, 1024, 4096, 8192, 16384, 30_000)
_HEAD: Final = (
    "tokens | TTFT, ms: P alone | gateway, whole | gateway, split | NIXL, ms | posting, ms | MiB | descriptors | GB/s\n"
)


async def run(
    session: aiohttp.ClientSession, engines: Engines, options: argparse.Namespace
) -> AsyncGenerator[dict[str, Any]]:
    """Yield a row for each length: `options.repeats` requests of each of the three ways, in turn."""
    async with (
        gateway(session, *aggregated(engines)) as whole,
        gateway(session, *split(engines, options.order, probes=0)) as parted,
    ):
        ways = {"prefill": engines.prefill, "whole": whole.url, "split": parted.url}
        await _warm_up(session, ways)
        sys.stdout.write(_HEAD)
        for length in (each for each in LENGTHS if each <= options.longest):
            yield await _measure(session, engines, ways, length, options.repeats)


async def _warm_up(session: aiohttp.ClientSession, ways: dict[str, str]) -> None:
    """Warm up each engine, and make the pair's first handshake."""
    for seed in range(4):
        for way, url in enumerate(ways.values()):
            await stream(session, url, prompt(600, 10_000_000 + 10 * seed + way), 8)


async def _measure(
    session: aiohttp.ClientSession, engines: Engines, ways: dict[str, str], length: int, repeats: int
) -> dict[str, Any]:
    ttft: dict[str, list[float]] = {way: [] for way in ways}
    before = await both_metrics(session, engines)
    for number in range(repeats):
        for index, (way, url) in enumerate(ways.items()):
            answer = await stream(session, url, prompt(length, 100_000 * index + length + number), 4)
            ttft[way].append(1e3 * answer.ttft)
    await asyncio.sleep(1)  # the engines count a transfer when it has ended
    grown = growth(before, await both_metrics(session, engines))
    count = grown.get("nixl_xfer_time_seconds_count", 0.0)
    if count != repeats:
        raise RuntimeError(f"{count:.0f} transfers for {repeats} split requests of {length} tokens")
    seconds, size = grown.get("nixl_xfer_time_seconds_sum", 0.0), grown.get("nixl_bytes_transferred_sum", 0.0)
    row = {
        "tokens": length,
        "ttft_ms": ttft,
        "transfer_ms": 1e3 * seconds / count,
        "post_ms": 1e3 * grown.get("nixl_post_time_seconds_sum", 0.0) / count,
        "bytes": size / count,
        "descriptors": grown.get("nixl_num_descriptors_sum", 0.0) / count,
        "gigabytes_per_second": size / seconds / 1e9,
        "metrics": grown,
    }
    medians = " | ".join(f"{statistics.median(values):10.1f}" for values in ttft.values())
    sys.stdout.write(
        f"{length:6} | {medians} | {row['transfer_ms']:8.2f} | {row['post_ms']:8.2f} | {size / count / 2**20:6.0f} | "
        f"{row['descriptors']:8.0f} | {row['gigabytes_per_second']:6.1f}\n"
    )
    sys.stdout.flush()
    return row
