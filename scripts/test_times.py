"""The time that tests took, by folder, and the slowest tests: `python -m scripts.test_times FILE`.

FILE holds what `pytest --times FILE` wrote. Several runs may share it.
"""

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

SLOWEST: Final = 20


def folder_of(test: str) -> str:
    """`tests/unit` for `tests/unit/api/test_parse.py::test_x`."""
    return "/".join(test.split("::")[0].split("/")[:2])


def table(lines: list[dict[str, Any]]) -> list[str]:
    """The two tables as lines of text. A test's time includes its set-up and tear-down."""
    seconds: dict[str, float] = defaultdict(float)
    spans: dict[str, tuple[float, float]] = {}
    for line in lines:
        seconds[line["test"]] += line["seconds"]
        folder, begin = folder_of(line["test"]), line["start"]
        first, last = spans.get(folder, (begin, begin))
        spans[folder] = min(first, begin), max(last, begin + line["seconds"])
    counts: dict[str, int] = defaultdict(int)
    sums: dict[str, float] = defaultdict(float)
    for test, taken in seconds.items():
        counts[folder_of(test)] += 1
        sums[folder_of(test)] += taken
    out = [f"{'folder':<18} {'tests':>6} {'wall s':>8} {'sum s':>8}"]
    for folder in sorted(sums, key=lambda name: -sums[name]):
        begin, end = spans[folder]
        out.append(f"{folder:<18} {counts[folder]:>6} {end - begin:>8.0f} {sums[folder]:>8.0f}")
    if spans:
        wall = max(end for _, end in spans.values()) - min(begin for begin, _ in spans.values())
        out.append(f"{'all':<18} {len(seconds):>6} {wall:>8.0f} {sum(sums.values()):>8.0f}")
    out += ["", f"the {SLOWEST} slowest tests (s)"]
    slowest = sorted(seconds.items(), key=lambda item: -item[1])[:SLOWEST]
    return [*out, *(f"{taken:>8.1f} {test}" for test, taken in slowest)]


def main() -> int:
    """Print the tables; 1 without a file."""
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_file():
        sys.stderr.write("usage: python -m scripts.test_times FILE\n")
        return 1
    lines = [json.loads(line) for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()]
    sys.stdout.write("\n".join(table(lines)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
