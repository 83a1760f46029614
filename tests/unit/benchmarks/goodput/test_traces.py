"""Traces: what is read, and what is refused with which sentence."""

import gzip
from pathlib import Path

import pytest

from benchmarks.goodput.synthetic import SYNTHETIC, generate
from benchmarks.goodput.traces import Chains, TraceError, read

HEAD = "arrival_ms,input_tokens,output_tokens,prefix_blocks\n"


def trace(folder: Path, text: str, name: str = "some.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_rows_become_requests_and_equal_ids_equal_beginnings(tmp_path: Path) -> None:
    found = read(trace(tmp_path, HEAD + "1000,1100,5,7 8 9\n3000,1100,0,7 8 10\n1500,20,3,\n"))
    assert [(each.index, each.at, each.prompt, each.output) for each in found.requests] == [
        (0, 0.0, 1100, 5),
        (1, 0.5, 20, 3),
        (2, 2.0, 1100, 1),
    ]
    one, alone, other = (each.prefix for each in found.requests)
    assert [end for _, end in one] == [512, 1024, 1088], "of the last block, what fills blocks of 16"
    assert (one[:2], one[2] == other[2]) == (other[:2], False)
    assert [end for _, end in alone] == [16]
    assert found.rate == 1.5
    assert found.shared == pytest.approx(1024 / 2220)


def test_a_compressed_trace_is_read_and_time_passes_faster_at_a_higher_rate(tmp_path: Path) -> None:
    path = tmp_path / "some.csv.gz"
    path.write_bytes(gzip.compress(b"arrival_ms,input_tokens,output_tokens\n0,10,1\n1000,10,1\n2000,10,1\n"))
    found = read(path)
    assert found.name == "some"
    assert [at for at, _ in found.at_rate(3.0)] == [0.0, 0.5, 1.0]


def test_the_same_ids_behind_another_beginning_are_other_blocks() -> None:
    chains = Chains()
    assert chains.prefix([1, 2], 1024)[1] != chains.prefix([3, 2], 1024)[1]
    assert chains.alone(600)[0] != chains.alone(600)[0]
    assert chains.prefix([1], 15) == (), "no full block"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "has no column arrival_ms"),
        ("arrival_ms,input_tokens\n0,1\n", "has no column output_tokens"),
        (HEAD, "has no request"),
        (HEAD + "0,zero,1,\n", "Line 2 .* no number of 0 or more in the column input_tokens"),
        (HEAD + "0,5,1,\n-1,5,1,\n", "Line 3 .* column arrival_ms"),
        (HEAD + "nan,5,1,\n", "Line 2 .* column arrival_ms"),
        (HEAD + "0,0,1,\n", "some.csv:2: input_tokens is 0; write 1 or more"),
        (HEAD + "0,5\n", "Line 2 .* column output_tokens"),
        (HEAD + "0,5,1,1 x\n", "Line 2 .* prefix_blocks that are no numbers"),
        (HEAD + "0,5,1,-4\n", "Line 2 .* negative id"),
    ],
)
def test_a_bad_trace_is_refused_with_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(TraceError, match=sentence):
        read(trace(tmp_path, text))


def test_a_missing_file_and_one_that_is_not_compressed_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="There is no trace"):
        read(tmp_path / "none.csv")
    with pytest.raises(TraceError, match="cannot be read"):
        read(trace(tmp_path, HEAD, "some.csv.gz"))


def test_synthetic_traces_depend_on_the_seed_alone_and_share_what_they_claim() -> None:
    assert generate("agents", 3, 100) == generate("agents", 3, 100)
    assert generate("agents", 3, 100) != generate("agents", 4, 100)
    shared = {name: generate(name, 1, 300).shared for name in SYNTHETIC}
    assert shared["no-sharing"] == 0
    assert shared["shared-prompt"] > 0.8
    assert shared["agents"] > 0.8
