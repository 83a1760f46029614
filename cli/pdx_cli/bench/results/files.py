"""Writes the results of a run into a directory: JSON, one line for each request, other tools' keys, and the report."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import IO, Any, Final

from pdx_cli.bench.analysis.arms import Arm
from pdx_cli.bench.analysis.search import GOAL
from pdx_cli.bench.analysis.steps import Slo, StepResult
from pdx_cli.bench.arguments import RESULT
from pdx_cli.bench.load.records import Record
from pdx_cli.bench.results.document import DocumentError, Run, document, read
from pdx_cli.bench.results.other_tools import as_inference_perf, as_vllm
from pdx_cli.bench.results.page import page
from pdx_cli.errors import CommandError, InputError

REQUESTS: Final = "requests.jsonl"
REPORT: Final = "report.html"


class ResultDirectory:
    """The files of one run. Close it once."""

    def __init__(self, path: Path, slo: Slo, model: str, date: str) -> None:
        """Create the directory; raises CommandError."""
        self.path = path
        self._slo = slo
        self._model = model
        self._date = date
        self._best: dict[str, tuple[int, float]] = {}
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._requests: IO[str] = (path / REQUESTS).open("w", encoding="utf-8")
        except OSError as error:
            raise CommandError(
                f"{path} cannot store the results: {error.strerror}; name another with --output."
            ) from error

    def close(self) -> None:
        """Close the file of requests."""
        self._requests.close()

    def add(self, arm: Arm, step: StepResult, records: Sequence[Record]) -> None:
        """Write the requests of a step, and other tools' files if it is the arm's best so far."""
        for record in records:
            line = {"arm": arm.name, "rate": step.rate, "repeat": step.repeat, **_plain(record, self._slo)}
            self._requests.write(json.dumps(line) + "\n")
        self._requests.flush()
        best = self._best.get(arm.name)
        is_good = step.share >= GOAL
        if best is None or (is_good and (step.repeat, step.rate) >= best):
            self._best[arm.name] = (step.repeat, step.rate if is_good else 0.0)
            self._write_others(arm, step, records)

    def _write_others(self, arm: Arm, step: StepResult, records: Sequence[Record]) -> None:
        name = "".join(c if c.isalnum() else "-" for c in arm.name).strip("-")
        vllm = as_vllm(records, self._slo, rate=step.rate, model=self._model, date=self._date)
        self._write(f"vllm-{name}.json", vllm)
        perf = as_inference_perf(records, self._slo, rate=step.rate)
        self._write(f"summary_lifecycle_metrics-{name}.json", perf)

    def finish(self, run: Run) -> None:
        """Write the result and the report."""
        self._write(RESULT, document(run))
        (self.path / REPORT).write_text(page(run), encoding="utf-8")

    def _write(self, name: str, body: Mapping[str, Any]) -> None:
        (self.path / name).write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")


def regenerate(file: Path) -> Path:
    """Write the report of a saved result beside it; raises InputError."""
    source = file / RESULT if file.is_dir() else file
    try:
        run = read(json.loads(source.read_text(encoding="utf-8")), source)
    except OSError as error:
        raise InputError(f"{source} cannot be read: {error.strerror}; name the result.json of a run.") from error
    except DocumentError as error:
        raise InputError(str(error)) from error
    except ValueError as error:
        raise InputError(f"{source} is no JSON; name the result.json of a run.") from error
    target = source.with_name(REPORT)
    try:
        target.write_text(page(run), encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{target} cannot be written: {error.strerror}.") from error
    return target


def _plain(record: Record, slo: Slo) -> dict[str, Any]:
    values = {each.name: getattr(record, each.name) for each in fields(record)}
    values |= {"failure": str(record.failure) if record.failure else None, "gaps": None, "timing": dict(record.timing)}
    del values["gaps"]
    failed = record.failure is not None
    found = {
        **values,
        "good": slo.is_good(record),
        "ttft": None if record.ttft < 0 else record.ttft,
        "tpot": None if failed else record.tpot,
        "itl": list(record.gaps),
    }
    return {name: _rounded(value) for name, value in found.items()}


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    return value
