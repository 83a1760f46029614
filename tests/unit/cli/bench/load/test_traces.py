"""Files that are no trace: one sentence with what to name instead. What is read: tests/unit/benchmarks/goodput."""

import gzip
from pathlib import Path

import pytest

from pdx_cli.bench.load.traces import TraceError, read

HEAD = "arrival_ms,input_tokens,output_tokens\n"


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("a.csv", bytes(range(256)), "cannot be read: it is no text; name a CSV file"),
        ("a.csv.gz", HEAD.encode(), "cannot be read: gzip has not compressed it; name a CSV file"),
        ("a.csv.gz", gzip.compress(HEAD.encode(), mtime=0)[:20], "cannot be read: it is incomplete; name a CSV file"),
        ("a.csv", b"", "has no column arrival_ms: its first line must name the columns"),
        ("a.csv", HEAD.encode(), "has no request: give it at least one row"),
        ("a.csv", f"{HEAD}0,x,1\n".encode(), "Line 2 of the trace a.csv has no number of 0 or more"),
    ],
)
def test_what_is_no_trace(name: str, content: bytes, part: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(TraceError, match=part):
        read(file)


def test_a_directory_is_no_trace(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read: Is a directory; name a CSV file"):
        read(tmp_path)
