"""`python -m benchmarks.bench CAMPAIGN`: resumable; a run adds a line to the results of the day. Use an idle machine.

agreement-sim   `pdx bench` and `vllm bench serve` with the same requests, on simulated engines
agreement-vllm  the same on real vLLM on the CPU
compare         `pdx bench --compare` twice on real vLLM on the CPU
streams         one generator with 1,000 streams
saved           the saved result of the figure, in virtual time
figure          the figure of the README, from the saved result
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from benchmarks.bench import agreement, compare, figure, saved, streams
from benchmarks.bench.lines import read
from benchmarks.campaigns import commands, recorded
from pdx_cli.local.engines import EngineKind
from pdx_cli.main import main as pdx

RESULTS: Final = Path(__file__).parent / "results"
CAMPAIGNS: Final = ("agreement-sim", "agreement-vllm", "compare", "streams", "saved", "figure")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a campaign and print what it shows; 1 if its criterion does not hold."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench", description=__doc__, formatter_class=form)
    parser.add_argument("campaign", choices=CAMPAIGNS)
    day = datetime.now(UTC).date().isoformat()
    parser.add_argument("--date", default=day, help="of the results to go on with (default: today)")
    options = parser.parse_args(arguments)
    if options.campaign == "saved":
        saved.save(figure.RESULT, options.date)
        return 0
    if options.campaign == "figure":
        figure.write()
        return 0
    results = RESULTS / f"{options.date}-{options.campaign}.jsonl"
    with tempfile.TemporaryDirectory() as folder:
        lines, holds = _run(options.campaign, Path(folder), results)
    sys.stdout.write("\n".join(lines) + "\n")
    return 0 if holds else 1


def _run(campaign: str, folder: Path, results: Path) -> tuple[list[str], bool]:
    """What the results show, and whether the criterion holds."""
    if campaign == "streams":
        streams.run(results)
        found = read(results)
        return list(streams.table(found)), streams.holds(found)
    model = folder / "model"
    if pdx(["tiny-model", str(model)]):
        raise SystemExit("The tiny model could not be made.")
    if campaign == "compare":
        compare.run(model, folder, results)
        runs = read(results)
        return list(compare.table(runs)), compare.holds(runs)
    kind = EngineKind(campaign.removeprefix("agreement-"))
    asyncio.run(agreement.run(agreement.PLANS[kind], model, folder, results))
    lines = read(results)
    shown = agreement.table(lines) if kind is EngineKind.SIM else agreement.spread_table(lines)
    return list(shown), agreement.holds(lines, kind)


if __name__ == "__main__":
    command = f"python3 -m benchmarks.bench {' '.join(sys.argv[1:])}"
    sys.exit(recorded(command, main, whole=command in commands()))
