"""`pdx check-vllm`: compares the code of a vLLM with what PDX assumes of it, without importing it."""

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pdx_api.vllm.assumptions import OPEN, Difference, Value, assumptions, differences, expected
from pdx_api.vllm.versions import TESTED, VERSIONS, abilities, minor
from pdx_cli import streams, usage
from pdx_cli.contract.check import Broken, compare, read
from pdx_cli.contract.sources import DISTRIBUTIONS, opened
from pdx_cli.errors import ExitCode, InputError
from pdx_cli.inputs import formats

EPILOG: Final = """\
examples:
  pdx check-vllm .venv/lib/python3.11/site-packages/vllm
  pdx check-vllm vllm-0.33.0-cp38-abi3-manylinux_2_28_x86_64.whl
  pdx check-vllm 0.33.0                     download the wheel (up to 500 MB), read it, and delete it

vLLM is read, never imported, so a wheel for GPUs can be checked on any machine. A report lists each assumption of PDX
that does not hold: what it is, vLLM's file, and PDX's file that relies on it. Differences that PDX knows are listed
with what it does about them, and are not failures. -o json prints what was read, as a file that the command reads,
too."""


@dataclass(frozen=True, slots=True)
class Report:
    """What was found in one vLLM."""

    version: str
    """As in its package: `0.33.0`; empty: unknown."""
    compared: str
    """The version with which it was compared, as `0.33`."""
    values: Mapping[str, Value]

    @property
    def broken(self) -> list[Broken]:
        """The assumptions that do not hold."""
        return compare(self.values, expected(self.compared))

    @property
    def known(self) -> list[Difference]:
        """The differences of this version that PDX knows, and that were found."""
        broken = {each.assumption.id for each in self.broken}
        return [each for each in differences() if each.version == self.compared and each.id not in broken]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `pdx check-vllm`."""
    parser.add_argument(
        "vllm",
        type=usage.text("name a folder with vLLM, a wheel, or a version such as 0.32.0"),
        metavar="PATH|WHEEL|VERSION",
        help="an installed vLLM's folder, a wheel, or a version to download",
    )
    parser.add_argument(
        "--distribution",
        choices=DISTRIBUTIONS,
        default=DISTRIBUTIONS[0],
        help="which package a VERSION is downloaded from (default: %(default)s)",
    )
    formats.add_arguments(parser, "text", "json")
    parser.epilog = EPILOG


def run(args: argparse.Namespace) -> int:
    """Read vLLM's code and print the report; 1 if an assumption does not hold."""
    report = _extract(args.vllm) if args.vllm.endswith(".json") else _read(args.vllm, args.distribution)
    if args.format == "json":
        print(
            formats.printed({"version": report.version, "values": report.values}, args.format, streams.encoding()),
            end="",
        )
    else:
        print(_text(report))
    return ExitCode.FAILED if report.broken else ExitCode.DONE


def _read(given: str, distribution: str) -> Report:
    with opened(given, distribution) as source:
        return report_of(source.version, read(source))


def _extract(given: str) -> Report:
    try:
        content: Any = json.loads(Path(given).read_text(encoding="utf-8"))
        return report_of(str(content["version"]), dict(content["values"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{given} is no result of `pdx check-vllm -o json`; name one, a folder or a wheel.") from error


def report_of(version: str, values: Mapping[str, Value]) -> Report:
    """The report about values that were read."""
    return Report(version, abilities(minor(version)).version, values)


def _text(report: Report) -> str:
    title = f"vLLM {report.version or 'of unknown version'}"
    lines = []
    if minor(report.version) not in VERSIONS:
        lines.append(f"{title} is not among the versions that PDX knows; it is compared with {report.compared}.")
    if report.known:
        lines += ["", f"Known differences from the tested version: {len(report.known)}"]
        lines += [f"  {each.id}\n      {each.effect}" for each in report.known]
    broken = report.broken
    if broken:
        lines += ["", f"Assumptions that do not hold: {len(broken)}"]
    for each in broken:
        where = " or ".join(f"vllm/{path}" for path in each.assumption.paths)
        lines.append(f"  {each}\n      in {where}; {each.assumption.place} relies on it")
    return "\n".join([*lines, "", f"{title}: {_sum(report)}."]).strip("\n")


def _sum(report: Report) -> str:
    """The numbers of assumptions, as a clause."""
    held, known = len(assumptions()) - len(report.broken), len(report.known)
    clause = f"{held - known} of {len(assumptions())} assumptions hold"
    if not known:
        return clause
    clause += f" as in {TESTED}, {known} differ as PDX expects"
    not_handled = sum(each.effect.startswith(OPEN) for each in report.known)
    return f"{clause}, {not_handled} of them not handled yet" if not_handled else clause
