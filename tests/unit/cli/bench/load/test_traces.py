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
        ("a.csv", HEAD.replace(",", ";").encode(), "a.csv: the first line has no comma; separate the columns by comm"),
        ("a.csv", HEAD.capitalize().encode(), r"a.csv: the first line has 'Arrival_ms'; did you mean arrival_ms\?"),
        ("a.csv", HEAD.replace("output", "0utput").encode(), r"has '0utput_tokens'; did you mean output_tokens\?"),
        ("a.csv", f"arrival_ms,{HEAD}0,1,5,5\n".encode(), "a.csv: column arrival_ms appears twice; leave out one of"),
        ("a.csv", f"{HEAD}0,0.5,5\n".encode(), "a.csv:2: input_tokens is 0.5; write 1 or more"),
        ("a.csv", f"{HEAD}0,5,5\n\n0,5,5,,9\n".encode(), "a.csv:4 has 5 values, the first line 3 columns; leave out"),
    ],
)
def test_what_is_no_trace(name: str, content: bytes, part: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(TraceError, match=part):
        read(file)


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_a_trace_that_excel_has_saved(name: str, tmp_path: Path) -> None:
    """With a byte order mark, and empty cells behind the last column."""
    content = f"\ufeff{HEAD}0,5,7,,\n".encode()
    file = tmp_path / name
    file.write_bytes(gzip.compress(content, mtime=0) if name.endswith(".gz") else content)
    assert [(each.prompt, each.output) for each in read(file).requests] == [(5, 7)]


def test_a_directory_is_no_trace(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read: Is a directory; name a CSV file"):
        read(tmp_path)
