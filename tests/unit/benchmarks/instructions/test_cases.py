"""The requests that are counted, and when an answer is whole."""

import json
from pathlib import Path

import pytest

from benchmarks.instructions.cases import CASES, SDK_HEADERS
from benchmarks.instructions.client import AnswerError, is_complete
from benchmarks.instructions.proof import WASTES, Waste, copy_with

_BODIES = {case.name: case.request().partition(b"\r\n\r\n")[2] for case in CASES}


def test_the_bodies_are_as_their_titles_state() -> None:
    assert len(json.loads(_BODIES["completion"])["prompt"]) == 4096
    assert 100_000 < len(_BODIES["chat"]) < 115_000
    assert _BODIES["chat"].count(b"{") + _BODIES["chat"].count(b"[") == 300
    assert _BODIES["completion"] == _BODIES["connections"] == _BODIES["queue"]


def test_each_request_has_seventeen_headers() -> None:
    for case in CASES:
        assert case.request().partition(b"\r\n\r\n")[0].count(b"\r\n") == 17 == len(SDK_HEADERS) + 1


@pytest.mark.parametrize(
    ("answer", "complete"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-le", False),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{", False),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", True),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n", False),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", True),
    ],
)
def test_an_answer_is_whole_when_its_framing_ends(answer: bytes, complete: bool) -> None:
    assert is_complete(answer) is complete


def test_another_status_than_200_ends_the_count() -> None:
    with pytest.raises(AnswerError, match="503"):
        is_complete(b"HTTP/1.1 503 Service Unavailable\r\n\r\n")


@pytest.mark.parametrize("waste", WASTES, ids=lambda waste: waste.function)
def test_each_waste_still_has_its_place(waste: Waste, tmp_path: Path) -> None:
    copy_with(waste, tmp_path)
    assert waste.new in (tmp_path / waste.file).read_text()
