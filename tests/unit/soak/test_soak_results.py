"""The results of a long run, and the judgement of clients' answers."""

import json
from pathlib import Path

import pytest

from benchmarks.soak.clients import Answer, ClientRequest, Saw, judge
from benchmarks.soak.results import HERE, LAST, last_results, read, record, replaced, table

REQUEST = ClientRequest(1, chat=False, stream=True, prompt="request 1", tokens=3)
PIECES = [REQUEST.expected[i : i + 4] for i in range(0, 12, 4)]


def _events(*texts: str, end: str = "data: [DONE]\n\n") -> bytes:
    events = [{"choices": [{"text": text, "finish_reason": None}]} for text in texts]
    return ("".join(f"data: {json.dumps(event)}\n\n" for event in events) + end).encode()


ERROR = 'data: {"error": {"message": "lost"}}\n\ndata: [DONE]\n\n'


@pytest.mark.parametrize(
    ("body", "whole", "saw"),
    [
        (_events(*PIECES), True, Saw.TEXT),
        (_events(*PIECES), False, Saw.BROKEN),
        (_events(*PIECES[:2]), True, Saw.WRONG),
        (_events(*PIECES, end=""), True, Saw.WRONG),
        (_events(*PIECES[:2], end=ERROR), True, Saw.BROKEN),
        (_events(*PIECES[:2], end="data: {not json\n\n"), True, Saw.GARBLED),
        (_events(PIECES[0], " 000"), False, Saw.WRONG),
        (_events(*PIECES[:1], end="").replace(b"null", b'"abort"') + b"data: [DONE]\n\n", True, Saw.CUT_SHORT),
    ],
)
def test_a_stream_is_judged_by_its_text_and_its_end(body: bytes, whole: bool, saw: Saw) -> None:
    assert judge(REQUEST, Answer(200, {}, body, whole)) is saw


@pytest.mark.parametrize(
    ("status", "head", "saw"),
    [
        (429, {"retry-after": "1"}, Saw.SHED),
        (503, {"retry-after": "1"}, Saw.SHED),
        (503, {}, Saw.FAILED),
        (500, {}, Saw.FAILED),
        (404, {}, Saw.REFUSED),
        (0, {}, Saw.NOTHING),
    ],
)
def test_what_is_no_answer(status: int, head: dict[str, str], saw: Saw) -> None:
    assert judge(REQUEST, Answer(status, head)) is saw


def test_a_line_is_dated_and_shown(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text((HERE / "README.md").read_text())
    line = {"order": "Concurrent", "clients": {"left": 1234, "answered": 5}, "leasesExpired": 2, "stopped": 77}
    record("hang-ups", line, tmp_path)
    kept = json.loads((tmp_path / "hang-ups.jsonl").read_text())
    assert kept.keys() == {"date", "machine", *line}
    assert (
        f"| {kept['date']} | Concurrent | 1,234 | 5 | 77 | 2 | {kept['machine']} |"
        in (tmp_path / "README.md").read_text()
    )


@pytest.mark.parametrize("name", [path.stem for path in sorted(HERE.glob("*.jsonl"))])
def test_the_committed_tables_are_those_of_the_committed_lines(name: str) -> None:
    text = (HERE / "README.md").read_text()
    assert replaced(text, name, table(name, read(name))) == text
    assert f"| {name} | {read(name)[-1]['date']} |" in text


def test_the_last_results_are_those_of_the_committed_lines() -> None:
    text = (HERE / "README.md").read_text()
    assert replaced(text, LAST, last_results(text)) == text


def test_a_readme_without_a_place_is_an_error() -> None:
    with pytest.raises(ValueError, match="no place for the table faults"):
        replaced("", "faults", "")
