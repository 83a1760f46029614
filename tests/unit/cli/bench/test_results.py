"""Results as JSON, with the keys of other tools, and as a page."""

import json
import math
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pdx_api.vllm_metrics import Mean
from pdx_cli.bench.analysis.arms import Arm, ArmResult, Sample
from pdx_cli.bench.analysis.bottleneck import Bottleneck
from pdx_cli.bench.analysis.counters import EngineTotals
from pdx_cli.bench.analysis.steps import Slo, step_result
from pdx_cli.bench.load.records import Failure, Record
from pdx_cli.bench.results.document import DocumentError, Run, document, read
from pdx_cli.bench.results.files import ResultDirectory, regenerate
from pdx_cli.bench.results.other_tools import as_inference_perf, as_vllm
from pdx_cli.bench.results.page import page
from pdx_cli.bench.results.text import lines, moved
from pdx_cli.errors import InputError

SLO = Slo(1.0, 0.05)
RECORDS = [
    *(
        Record(
            i, i / 10, i / 10, i / 10 + 0.3, i / 10 + 1.3, i / 10 + 1.3, 500, 26, (0.04,) * 25, timing={"first": 0.299}
        )
        for i in range(40)
    ),
    Record(40, 4.0, 4.0, failure=Failure.STATUS, detail="503: shed", ended=4.1, prompt_tokens=500),
    Record(41, 0.0, 0.0, 0.1, 0.2, 0.2, 9, 2, warm_up=True),
]


def result(name: str, *, split: bool, share: bool = True) -> ArmResult:
    phases = {"queue": 0.1, "prefill": 0.15, "transfer": 0.02, "first_step": 0.02, "gateway": 0.005, "outside": 0.001}
    step = replace(step_result(RECORDS, SLO, 10.0, 0, 4.0, 0.001, is_valid=True), phases=phases)
    over = replace(step, rate=20.0, good=5, stopped=True)
    arm = Arm(name, split=split, prefill=2, decode=2, yours=split)
    return ArmResult(
        arm,
        (10.0, 10.5),
        (step, over) if share else (over,),
        Bottleneck.PREFILL,
        EngineTotals(queue=Mean(4, 40), prompt_tokens=20_000, computed_tokens=20_000, cached_tokens=600),
        EngineTotals(prompt_tokens=20_000, external_tokens=19_900, transfer=Mean(1, 40), transfer_bytes=4e9),
        (*(Sample(500, 0.3 + i / 100, 0.04) for i in range(30)), Sample(500, math.inf, math.inf)),
        timeline={"prefill-0": [(1.0, 3.0, 2.0), (2.0, 4.0, 0.0)], "decode-0": [(1.0, 9.0, 0.0)]},
    )


RUN = Run(
    name="qwen <1>",
    date="2026-11-23T00:00:00",
    version="0.1.0",
    model="m&m",
    load="prompts of 500 tokens, answers of 26",
    slo=SLO,
    step_seconds=60.0,
    warm_up=10.0,
    repeats=2,
    seed=0,
    results=(result("aggregated 4", split=False), result("P:D 2:2", split=True)),
    devices=4,
)


def test_a_run_is_read_as_it_was_written() -> None:
    text = json.dumps(document(RUN), allow_nan=False)
    again = read(json.loads(text))
    assert document(again) == document(RUN)
    assert again.results[1].samples[-1] == RUN.results[1].samples[-1], "a failed request"
    assert again.verdict == RUN.verdict
    assert page(again) == page(RUN)


def test_a_result_from_before_a_member_existed_has_its_default() -> None:
    body = json.loads(json.dumps(document(RUN)))
    for arm in body["arms"]:
        del arm["interval"]
    assert document(read(body)) == document(RUN)
    del body["arms"][0]["name"]
    with pytest.raises(DocumentError):
        read(body)


@pytest.mark.parametrize("body", [[], {}, {"format": 1}, {"format": 9}, {"format": 1, "slo": 3}, None])
def test_what_is_no_result(body: object) -> None:
    with pytest.raises(DocumentError, match=r"name its result\.json|format 9"):
        read(body)


def test_the_keys_of_vllm_bench_serve() -> None:
    found = as_vllm(RECORDS, SLO, rate=10.0, model="m", date="d")
    keys = "request_throughput request_goodput output_throughput total_token_throughput completed failed duration"
    assert set(keys.split()) <= set(found)
    for name in ("ttft", "tpot", "itl", "e2el"):
        assert {f"{kind}_{name}_ms" for kind in ("mean", "median", "std", "p99")} <= set(found)
    assert (found["completed"], found["failed"], found["num_prompts"]) == (40, 1, 41)
    assert (found["request_throughput"], found["request_goodput"]) == pytest.approx((40 / 5.2, 40 / 5.2))
    assert (found["median_ttft_ms"], found["median_tpot_ms"]) == pytest.approx((300, 40))
    assert len(found["ttfts"]) == len(found["errors"]) == 41
    assert found["max_concurrent_requests"] == 14
    json.dumps(found, allow_nan=False)


def test_the_keys_of_inference_perf() -> None:
    found = as_inference_perf(RECORDS, SLO, rate=10.0)
    assert set(found) == {"benchmark_time_seconds", "load_summary", "successes", "failures"}
    latency = found["successes"]["latency"]
    assert latency["time_to_first_token"]["median"] == pytest.approx(0.3)
    assert set(latency) == {
        *("request_latency", "normalized_time_per_output_token", "time_per_output_token"),
        *("time_to_first_token", "inter_token_latency"),
    }
    assert found["successes"]["goodput_metrics"]["goodput_percentage"] == 100
    assert found["failures"]["by_label"] == {"status": 1}
    assert found["load_summary"]["requested_rate"] == 10.0


def test_the_page_is_whole_and_loads_nothing() -> None:
    text = page(RUN)
    assert not re.search(r"https?://|@import|url\(|<script|<link|src=", text)
    assert "prefers-color-scheme: dark" in text
    assert "qwen &lt;1&gt;" in text
    assert "m&amp;m" in text
    plots = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(plots) == 3 + 1 + 2 * 2
    for each in plots:
        ET.fromstring(each)
    for title in ("Good requests over rate", "Time to first token", "Time per output token", "the engines over time"):
        assert title in text
    assert "nan" not in text
    assert "inf" not in re.sub(r"information|inference", "", text)


def test_a_page_of_an_arm_without_a_good_step() -> None:
    text = page(replace(RUN, results=(result("P:D 2:2", split=True, share=False),), has_phases=False, partial=True))
    assert "interrupted" in text
    assert "Only TTFT and TPOT were measured" in text


def test_the_lines_of_a_terminal() -> None:
    shown = list(lines(RUN))
    assert any("P:D 2:2 (yours)" in line and "10.2 ± 0.25" in line for line in shown)
    assert any("KV moved: 100 % of 20k prompt tokens, 4 GB/s a transfer" in line for line in shown)
    assert any(line.startswith("Verdict: No measurable difference") for line in shown)


def test_a_failed_transfer_that_both_roles_count_is_one() -> None:
    arm = RUN.results[1]
    both = replace(
        arm,
        prefill=replace(arm.prefill, failed_transfers=2),
        decode=replace(arm.decode, failed_transfers=3),
    )
    assert "3 transfers failed" in "".join(moved(both))


def test_files(tmp_path: Path) -> None:
    files = ResultDirectory(tmp_path / "out", SLO, "m", "d")
    files.add(RUN.results[1].arm, RUN.results[1].steps[0], RECORDS)
    files.close()
    files.finish(RUN)
    rows = [json.loads(line) for line in (tmp_path / "out" / "requests.jsonl").read_text().splitlines()]
    assert len(rows) == len(RECORDS)
    assert rows[0]["itl"] == [0.04] * 25
    assert (rows[0]["good"], rows[0]["arm"], rows[0]["timing"]) == (True, "P:D 2:2", {"first": 0.299})
    assert (rows[40]["failure"], rows[40]["ttft"], rows[40]["good"]) == ("status", None, False)
    before = (tmp_path / "out" / "report.html").read_text()
    (tmp_path / "out" / "report.html").unlink()
    assert regenerate(tmp_path / "out").read_text() == before
    assert (tmp_path / "out" / "vllm-P-D-2-2.json").is_file()
    assert (tmp_path / "out" / "summary_lifecycle_metrics-P-D-2-2.json").is_file()


@pytest.mark.parametrize("content", [None, "no json", "{}"])
def test_a_report_of_what_is_no_result(content: str | None, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(InputError, match=r"result\.json"):
        regenerate(file)


@pytest.mark.parametrize("name", ["name", "date", "version", "model", "load", "has_phases"])
def test_a_field_of_another_type_is_no_result(name: str, tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text(json.dumps({**document(RUN), name: 7}))
    with pytest.raises(InputError, match=r"x\.json is not a result of `pdx bench`; name its result\.json\.$"):
        regenerate(file)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("slo", "ttft"), "1"),
        (("arms", 0, "name"), 7),
        (("arms", 0, "goodputs"), ["many"]),
        (("arms", 0, "timeline", "prefill-0"), [[1, 2]]),
        (("arms", 0, "samples"), [["long", 1, 1]]),
        (("arms", 0, "steps", 0, "count"), None),
        (("arms", 0, "steps", 0, "phases", "queue"), "none"),
        (("arms", 0, "counters", "prefill", "queue", "sum"), "none"),
    ],
)
def test_a_value_of_another_type_inside_is_no_result(path: tuple[str | int, ...], value: object) -> None:
    body = json.loads(json.dumps(document(RUN)))
    part: Any = body
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = value
    with pytest.raises(DocumentError, match="x is not a result of `pdx bench`"):
        read(body, "x")


@pytest.mark.parametrize(
    "path",
    [
        ("devices",),
        ("has_phases",),
        ("arms", 0, "split"),
        ("arms", 0, "bottleneck"),
        ("arms", 0, "problem"),
        ("arms", 0, "timeline"),
        ("arms", 0, "counters", "prefill", "prompt_tokens"),
        ("arms", 0, "counters", "decode", "queue"),
        ("arms", 0, "counters", "decode", "queue", "count"),
        ("arms", 0, "steps", 0, "stopped"),
        ("arms", 0, "steps", 0, "phases"),
        ("arms", 0, "steps", 0, "ttft", "p99"),
    ],
)
def test_what_lacks_a_member_is_no_result(path: tuple[str | int, ...]) -> None:
    """A default in its place would be shown as measured, and could change the verdict."""
    body = json.loads(json.dumps(document(RUN)))
    part: Any = body
    for step in path[:-1]:
        part = part[step]
    del part[path[-1]]
    with pytest.raises(DocumentError, match="x is not a result of `pdx bench`"):
        read(body, "x")


@pytest.mark.parametrize("name", ["rate", "repeat", "seconds", "good", "prompt_tokens", "is_valid"])
def test_null_is_only_for_what_was_not_measured(name: str) -> None:
    body = json.loads(json.dumps(document(RUN)))
    body["arms"][0]["steps"][0][name] = None
    with pytest.raises(DocumentError, match="x is not a result of `pdx bench`"):
        read(body, "x")


def test_a_result_from_before_a_member_was_added_is_read() -> None:
    body = json.loads(json.dumps(document(RUN)))
    for each in body["arms"]:
        each.pop("interval", None)
    assert read(body).verdict == RUN.verdict


def test_the_format_of_another_version_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text(json.dumps({**document(RUN), "format": 9}))
    with pytest.raises(InputError, match=r"x\.json has format 9, and this version of PDX reads 1"):
        regenerate(file)


def test_numbers_that_json_does_not_have() -> None:
    """A step without an answer has no times: NaN, for which JSON has null."""
    nothing = step_result([], SLO, 10.0, 0, 4.0, math.nan, is_valid=True)
    run = replace(RUN, results=(replace(RUN.results[0], steps=(replace(nothing, phases={"queue": math.nan}),)),))
    again = read(json.loads(json.dumps(document(run), allow_nan=False)))
    assert document(again) == document(run)


def test_phases_of_a_url_without_metrics_are_not_shown() -> None:
    """A gateway of PDX may send phases to a `pdx bench` that has only its URL, and so no arm to put them in."""
    late = result("the server", split=True)
    late = replace(late, steps=tuple(replace(step, phases={"queue": 0.1, "outside": 0.09}) for step in late.steps))
    assert any("of TTFT are outside" in line for line in lines(replace(RUN, results=(late,))))
    assert not any("of TTFT are outside" in line for line in lines(replace(RUN, results=(late,), has_phases=False)))


def test_one_repeat_is_no_plural() -> None:
    assert next(iter(lines(replace(RUN, repeats=1)))).endswith("60 s a step, 1 repeat")
    assert "1 repeat.</p>" in page(replace(RUN, repeats=1))
    assert "2 repeats.</p>" in page(RUN)
