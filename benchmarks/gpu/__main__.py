"""`python -m benchmarks.gpu STEP --prefill URL --decode URL --result FILE`: measure two engines through the gateway.

equality  the texts of the gateway, of P alone and of D alone in one order, and what a transfer probe reports
transfer  time to first token by length of the prompt: P alone, the gateway without and with splitting; NIXL's times
load      requests at 1, 2 and 4 per second, first aggregated, then split

README.md describes how to start the engines, and has the results. FILE holds the rows measured so far.
"""

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

import aiohttp

from benchmarks.campaigns import commands, recorded
from benchmarks.gpu import equality, load, transfer
from benchmarks.gpu.client import Engines

STEPS: Final[dict[str, Callable[..., AsyncGenerator[dict[str, Any]]]]] = {
    "equality": equality.run,
    "transfer": transfer.run,
    "load": load.run,
}
SIZES: Final = frozenset({"--prompts", "--repeats", "--longest", "--seconds"})
"""Options that make another measurement than that of README.md."""


def main() -> int:
    """Run one step."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__, formatter_class=form)
    parser.add_argument("step", choices=STEPS)
    parser.add_argument("--prefill", required=True, metavar="URL", help="P")
    parser.add_argument("--decode", required=True, metavar="URL", help="D")
    parser.add_argument("--order", default="PrefillFirst", help="order of the split requests (%(default)s)")
    parser.add_argument("--result", type=Path, required=True, metavar="FILE", help="where the rows go, as JSON")
    parser.add_argument("--prompts", type=int, default=24, help="of the step equality (%(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="for each length of the step transfer (%(default)s)")
    parser.add_argument("--longest", type=int, default=30_000, help="prompt of transfer and load, tokens (%(default)s)")
    parser.add_argument("--seconds", type=float, default=15, help="of each run of the step load (%(default)s)")
    try:
        asyncio.run(_measure(parser.parse_args()))
    except asyncio.CancelledError:
        return 143
    return 0


async def _measure(options: argparse.Namespace) -> None:
    measuring = asyncio.current_task()
    assert measuring is not None
    # SIGTERM alone would leave the gateways behind.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, measuring.cancel)
    rows = list[dict[str, Any]]()
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(120)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, read_bufsize=1 << 20) as session:
        step = STEPS[options.step](session, Engines(options.prefill, options.decode), options)
        async with aclosing(step):
            async for row in step:
                rows.append(row)
                result = {"step": options.step, "order": options.order, "rows": rows}
                options.result.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    command = f"python3 -m benchmarks.gpu {' '.join(sys.argv[1:2])}"
    shortened = {word.partition("=")[0] for word in sys.argv} & SIZES
    sys.exit(recorded(command, main, whole=command in commands() and not shortened))
