"""The lines of `pdx status` about one run, at several widths."""

import re
from dataclasses import replace

import pytest

from pdx_api.verification import Finding, Verdict
from pdx_cli.display.overview import Report, _in_flight, _kv, _summary, _table
from pdx_cli.runs.run_record import Process
from tests.unit.cli.runs.records import RUN

NAMES = ("lmcache-server-prefill-0", "prefill-0", "gateway")


@pytest.mark.parametrize("silent", [{}, {"prefill-0": "/health did not answer within 3 s"}])
@pytest.mark.parametrize("columns", [32, 40, 50, 60, 70, 80, 200])
def test_a_narrow_table_keeps_the_ports(columns: int, silent: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pdx_cli.runs.reaper.has_members", lambda _: True)
    processes = tuple(Process(name, 2**22, f"http://127.0.0.1:{31_000 + i}", "") for i, name in enumerate(NAMES))
    state = {"endpoints": [{"url": "http://127.0.0.1:31001", "state": "Warm", "inFlight": 2}]}
    head, *lines = (
        each.plain for each in _table(Report(replace(RUN, processes=processes), state, silent, 0.0), columns)
    )
    rows = [each for each in lines if not each.startswith("    ")]
    for number, row in enumerate(rows):
        assert re.search(rf":{31_000 + number}( |$)", row), row
    assert all(len(each) <= columns for each in (head, *lines))
    is_column = bool(silent) and columns == 200
    assert ("  reason" in head) is ("  /health did" in rows[1]) is is_column
    reason = f"{silent['prefill-0']}; the gateway still reports Warm" if silent else ""
    below = "" if is_column else reason
    assert " ".join(each.strip() for each in lines if each.startswith("    ")) == below, "no reason is cut"


LEGS = {"requests": 3, "queued": 0, "settling": 0, "prefill": 1, "decode": 3}


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_narrow_status_shows_every_word(width: int) -> None:
    report = Report(replace(RUN, name="a-long-name-of-a-run"), {"ready": True, "inFlight": LEGS}, {}, 0.0)
    *lines, logs = _summary(report, width)
    assert all(len(each) <= width for each in lines)
    assert " ".join(" ".join(lines).split()) == (
        "a-long-name-of-a-run: tiny, NIXL PrefillFirst, sim, up 0 s http://127.0.0.1:1/v1 "
        "ready; in flight: 3 requests, 0 queued, 0 settling, 1 prefill, 3 decode"
    )
    assert logs == "  logs: /logs"


def test_a_wide_status_shows_the_endpoint_and_its_requests_on_one_line() -> None:
    _, line, _ = _summary(Report(RUN, {"ready": True, "inFlight": LEGS}, {}, 0.0), 120)
    assert line == ("  http://127.0.0.1:1/v1   ready; in flight: 3 requests, 0 queued, 0 settling, 1 prefill, 3 decode")


def test_at_60_columns_the_table_drops_the_host_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pdx_cli.runs.reaper.has_members", lambda _: True)
    processes = tuple(replace(RUN.processes[0], name=f"prefill-{i}", url=f"http://127.0.0.1:3100{i}") for i in (0, 1))
    lines = [each.plain for each in _table(Report(replace(RUN, processes=processes), None, {}, 0.0), 60)]
    assert lines == [
        "  process    state    in flight  pid      address",
        "  prefill-0  running             4194305  127.0.0.1:31000",
        "  prefill-1  running             4194305  127.0.0.1:31001",
    ]


@pytest.mark.parametrize(
    ("states", "sentence"),
    [
        (("Warm", "Warm"), "KV moves: verified in 1 of 1 pair"),
        (("Warming", "Warm"), "KV not proved now: 1 engine does not serve"),
        (("Warming", "Cold"), "KV not proved now: 2 engines do not serve"),
    ],
)
def test_status_claims_only_what_the_engines_present_state_allows(states: tuple[str, ...], sentence: str) -> None:
    finding = Finding(Verdict.VERIFIED, pairs=1, possible=1).as_json()
    endpoints = [{"name": f"h:{number}", "state": state} for number, state in enumerate(states)]
    assert _kv({"mode": "Disaggregated", "kvTransfer": finding, "endpoints": endpoints}) == sentence


def test_one_request_in_flight_is_singular() -> None:
    state = {"ready": True, "inFlight": {"requests": 1, "decode": 1}}
    assert _in_flight(Report(RUN, state, {}, 0.0)) == "ready; in flight: 1 request, 1 decode"


@pytest.mark.parametrize(("serving", "text"), [(False, "does not answer yet"), (True, "does not answer")])
def test_a_gateway_that_has_served_is_not_expected_to_start(serving: bool, text: str) -> None:
    assert _in_flight(Report(replace(RUN, serving=serving), None, {}, 0.0)) == f"(the gateway {text})"


def test_an_engine_that_hangs_is_not_shown_as_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pdx_cli.runs.reaper.has_members", lambda _: True)
    finding = Finding(Verdict.VERIFIED, pairs=1, possible=1).as_json()
    endpoints = [{"name": "127.0.0.1:1", "url": "http://127.0.0.1:1/", "state": "Warm", "inFlight": 2}]
    state = {"mode": "Disaggregated", "kvTransfer": finding, "endpoints": endpoints}
    silent = {"prefill-0": "/health did not answer within 3 s"}
    _, row = _table(Report(RUN, state, silent, 0.0), 200)
    assert re.fullmatch(
        r"  prefill-0 +Silent +2 .* /health did not answer within 3 s; the gateway still reports Warm", row.plain
    )
    assert _kv(state, silent) == "KV not proved now: 1 engine does not serve"
