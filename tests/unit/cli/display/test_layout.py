"""The screen of `pdx top` at several widths, and its keys."""

import math
from dataclasses import replace
from typing import Any

import pytest

from pdx_cli.display import keys
from pdx_cli.display.keys import View, fitted, pressed, read_keys, screen
from pdx_cli.display.layout import Page, Title, page, problems, ranked
from pdx_cli.display.legend import Sort
from pdx_cli.display.lines import count, duration, percent, shortened
from pdx_cli.sources.engine_load import LoadFigures
from pdx_cli.sources.experience import Experience, Limit
from pdx_cli.sources.figures import EndpointFigures, Figures, PairFigures, PhaseFigures

TITLE = Title("qwen", "namespace llm", "12:00:00", 2)


def engine(name: str, role: str = "decode", state: str = "Warm", reason: str = "", **load: Any) -> EndpointFigures:
    return EndpointFigures(name, role, "a", state, reason, 1, LoadFigures(**load))


def pair(prefill: str, decode: str, verdict: str = "verified", **more: Any) -> PairFigures:
    return PairFigures(prefill, decode, verdict, **{"remote": 1.0, "seconds": {}, "age": 7.0, "detail": "", **more})


ENGINES = tuple(
    engine(f"{role}-{i}", role, kv_usage=i / 10, running=i) for role in ("prefill", "decode") for i in range(3)
)
PAIRS = tuple(pair(f"prefill-{p}", f"decode-{d}") for p in range(3) for d in range(3))
HEALTHY = Figures(
    mode="Disaggregated",
    wiring="NIXL PrefillFirst",
    gateways=1,
    ready=1,
    silent=(),
    in_flight={"requests": 3, "queued": 0},
    seconds=2.0,
    outcomes={"split": (2.5, 18), "whole": (0.0, 0)},
    bursts={"whole: burst": (0.5, 6)},
    problems={"shed: full": (0.0, 4)},
    phases=(PhaseFigures("first_token", 2.5, (0.012, 0.02, 0.5)), PhaseFigures("total", 2.5, (1.0, 2.0, math.nan))),
    endpoints=ENGINES,
    pairs=PAIRS,
    kv="",
)
BROKEN = replace(
    HEALTHY,
    endpoints=(*ENGINES[:2], engine("prefill-2", "prefill", "Suspect", "connection refused"), *ENGINES[3:]),
    pairs=(
        pair("prefill-1", "decode-0", "broken", detail="PortsBlocked: no token came"),
        *PAIRS[:4],
        *(pair("prefill-2", f"decode-{d}", is_down=True) for d in range(2)),
    ),
    kv="KV DOES NOT MOVE in 1 of 9 pairs",
)


def text(shown: Page) -> list[str]:
    return [each.plain.rstrip() for each in (*shown.head, *shown.body)]


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 200])
def test_no_line_is_longer_than_the_screen(width: int) -> None:
    long = replace(
        BROKEN, endpoints=tuple(replace(e, name=f"a-long-deployment-{e.name}-abcdef") for e in BROKEN.endpoints)
    )
    for figures in (HEALTHY, BROKEN, long):
        for each in (*page(TITLE, figures, width).head, *page(TITLE, figures, width).body):
            assert len(each.plain) <= width
    for each in screen(View(is_help=True), page(TITLE, HEALTHY, width), width, 24):
        assert len(each.plain) <= width


def test_state_and_problems_come_first() -> None:
    lines = text(page(TITLE, BROKEN, 80))
    assert lines[0].startswith("qwen (namespace llm)  Disaggregated NIXL PrefillFirst")
    assert lines[1] == "DEGRADED  5 of 6 engines, 1 of 1 gateway ready  KV verified in 4 of 7 pairs"
    assert lines[2] == "✗ prefill-2 is Suspect: connection refused"
    assert lines[3].startswith("✗ KV does not move in 1 of 7 pairs: prefill-1 → decode-0: PortsBlocked")
    head = next(i for i, each in enumerate(lines) if each.startswith("ENGINE"))
    assert lines[head + 1].startswith("prefill-2"), "the engine that does not serve"


def test_everything_that_matters_fits_on_80_by_24() -> None:
    shown = [each.plain for each in screen(View(), page(TITLE, BROKEN, 80), 80, 24)]
    assert len(shown) == 24
    for part in (
        "DEGRADED",
        "TTFT p50 12 ms",
        "TPOT",
        "prefill-2",
        "decode-2",
        "4 of 7 pairs verified",
        "2 of 7 pairs have an engine that does not serve",
        "q quit",
    ):
        assert any(part in each for each in shown), part


def test_verified_pairs_are_one_line() -> None:
    lines = [each for each in text(page(TITLE, HEALTHY, 80)) if "→" in each or "pairs" in each.lower()]
    assert len(lines) == 2, "the status and the pairs"
    assert "9 of 9 pairs verified, oldest probe 7 s ago, remote at least 100%" in lines[1]


def test_a_healthy_deployment_is_ok_and_has_no_problem() -> None:
    assert text(page(TITLE, HEALTHY, 80))[1].startswith(
        "OK  6 of 6 engines, 1 of 1 gateway ready  KV verified in 9 of 9"
    )
    assert list(problems(HEALTHY)) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"silent": ("qwen-gateway-1: no answer",)}, "gateway qwen-gateway-1: no answer"),
        (
            {"pairs": tuple(pair("p", f"d{age}", stale=True, age=age) for age in (80.0, 99.0))},
            "2 of 2 pairs have had no result for up to 99 s",
        ),
        ({"pairs": (pair("p", "d", outdated=True),)}, "1 of 1 pair has an engine that restarted"),
        (
            {"endpoints": (engine("d", prompt_rate=9.0, remote=0.0, recomputes=True),)},
            "no KV arrived since the last update: decode engines computed the prompts of split requests",
        ),
        ({"ready": 0}, "no gateway is ready: clients receive 503"),
        (
            {
                "phases": (),
                "experience": Experience(ttft=5.0, phases={"prefill": 0.5, "handoff": 4.0}),
                "limits": {"ttft": Limit(1.0, "normal is", 0.3)},
            },
            "TTFT is 5 s for half of the streams; normal is 300 ms; most of it is the phase handoff",
        ),
        (
            {
                "experience": Experience(seconds=120.0, ttft=0.5, ttft_p90=2.6, queued=9),
                "limits": {"ttft": Limit(1.0, "normal is", 0.3)},
            },
            "TTFT is 2.6 s for a tenth of the streams of the last 2 minutes; normal is 300 ms; "
            "9 requests wait in the queue",
        ),
        ({"problems": {"shed: full": (1.5, 4)}}, "shed: full: 1.5/s"),
        ({"outcomes": {"broken": (1.5, 4)}}, "3 requests lost the engine during the answer since the last update"),
        ({"outcomes": {"idle": (0.5, 4)}}, "1 request got no more events during the answer since the last update"),
        ({"pairs": (pair("p", "d", stale=True, age=99.0),)}, "1 of 1 pair has had no result for 99 s"),
        (
            {"endpoints": (replace(engine("d"), silent="did not answer within 1.5 s"),)},
            "d did not answer within 1.5 s; the gateway still reports Warm",
        ),
    ],
)
def test_problems(change: dict[str, Any], problem: str) -> None:
    assert problem in problems(replace(HEALTHY, **change))


def test_many_problems_leave_room_for_the_engines() -> None:
    down = tuple(engine(f"d-{i}", state="Suspect") for i in range(40))
    shown = [each.plain for each in screen(View(), page(TITLE, replace(HEALTHY, endpoints=down), 80), 80, 24)]
    assert any("and 36 more problems" in each for each in shown)
    assert sum(each.startswith("d-") for each in shown) >= 10


@pytest.mark.parametrize(
    ("sort", "first"),
    [(Sort.STATE, "prefill-2"), (Sort.NAME, "decode-0"), (Sort.KV, "decode-2"), (Sort.QUEUE, "decode-2")],
)
def test_sorting(sort: Sort, first: str) -> None:
    assert ranked(BROKEN.endpoints, sort)[0].name == first


def test_a_narrow_screen_drops_columns_and_a_wide_one_adds_the_reason() -> None:
    heads = {width: page(TITLE, BROKEN, width).head[-1].plain for width in (40, 80, 120)}
    assert "KV" in heads[40]
    assert "REMOTE" not in heads[40]
    assert "REMOTE" in heads[80]
    assert "REASON" in heads[120]


def test_keys_scroll_and_sort() -> None:
    shown = page(TITLE, HEALTHY, 80)
    height = len(shown.head) + 4
    view = View()
    for key in ("down", "j", "pgdn"):
        view = pressed(view, key, 3)
    assert view.offset == 5
    assert fitted(pressed(view, "end", 3), shown, height).offset == len(shown.body) - 3
    assert pressed(pressed(view, "home", 3), "up", 3).offset == 0
    assert [pressed(view, key, 3).sort for key in ("s", "S")] == [Sort.NAME, Sort.OUTPUT]
    assert pressed(pressed(view, "?", 3), "x", 3).is_help is False
    footer = screen(view, shown, 80, height)[-1].plain
    assert f"lines 6-8 of {len(shown.body)}" in footer


@pytest.mark.parametrize("width", range(20, 82))
def test_the_footer_has_whole_items_only(width: int) -> None:
    shown = page(TITLE, HEALTHY, width)
    footer = screen(View(), shown, width, len(shown.head) + 4)[-1].plain
    assert len(footer) == width
    items = ["q quit", "? help", f"↑↓ lines 1-3 of {len(shown.body)}", "s sort: state"]
    found = footer.strip().split("  ")
    assert found == items[: len(found)]
    assert len(found) == len(items) or len(f" {'  '.join(items[: len(found) + 1])}") > width


def test_the_footer_offers_to_scroll_only_if_lines_are_hidden() -> None:
    shown = page(TITLE, HEALTHY, 50)
    all_lines = len(shown.head) + len(shown.body) + 1
    assert screen(View(), shown, 50, all_lines)[-1].plain.rstrip() == " q quit  ? help  s sort: state"
    small = screen(View(), shown, 50, 12)[-1].plain
    assert small.startswith(f" q quit  ? help  ↑↓ lines 1-{12 - len(shown.head) - 1} of {len(shown.body)}")


def test_before_the_second_sample_no_figure_covers_an_interval() -> None:
    first = replace(
        HEALTHY,
        seconds=0.0,
        outcomes={"split": (0.0, 18)},
        bursts={},
        phases=(PhaseFigures("first_token", 0.0, (math.nan,) * 3),),
    )
    lines = text(page(TITLE, first, 80))
    assert lines[2].startswith("Requests  split -/s")
    assert lines[3].startswith("Latency   TTFT p50 -  p90 -  p99 -   TPOT -")
    assert [each.split() for each in lines if each.startswith(("first_token", "split"))] == [
        ["first_token", "-", "-", "-", "-"],
        ["split", "-", "18"],
    ]


def test_events_are_no_outcomes() -> None:
    shown = replace(HEALTHY, problems={"ejected: lost": (0.0, 1), "retried: lost": (0.0, 0)})
    lines = text(page(TITLE, shown, 80))
    tables = [each.split() for each in lines[next(i for i, each in enumerate(lines) if each.startswith("OUTCOME")) :]]
    assert [row[0] for row in tables if row] == ["OUTCOME", "split", "whole:", "EVENT", "ejected:"]


def test_a_deployment_without_requests() -> None:
    idle = replace(HEALTHY, outcomes={"split": (0.0, 0)}, bursts={}, problems={"shed: full": (0.0, 0)})
    lines = text(page(TITLE, idle, 80))
    assert [each.split()[0] for each in lines[-2:]] == ["OUTCOME", "no"]
    assert not any(each.startswith("EVENT") for each in lines)


def test_a_pair_that_was_never_proved_has_no_age() -> None:
    shown = text(
        page(
            TITLE,
            replace(HEALTHY, pairs=(pair("p", "d", "unknown", age=None, detail="the prefill engine is gone"),)),
            80,
        )
    )
    assert "  p → d  unknown: the prefill engine is gone" in shown


def test_a_long_message_has_several_lines() -> None:
    shown = page(TITLE, HEALTHY, 30)
    lines = screen(View(), shown, 30, 24, "The gateway cannot be queried: h:1 did not answer. Retrying.")
    assert len(lines) == 24
    assert [each.plain.strip() for each in lines[-3:]] == [
        "The gateway cannot be",
        "queried: h:1 did not answer.",
        "Retrying.",
    ]
    assert [each.plain for each in lines[: len(shown.head)]] == [each.plain for each in shown.head]
    endless = screen(View(), shown, 30, 24, "word " * 200)
    assert len(endless) == 24
    assert endless[-1].plain.rstrip().endswith("…")


NARROW = replace(
    HEALTHY,
    endpoints=tuple(replace(each, load=replace(each.load, tpot=0.0123)) for each in ENGINES),
    phases=(PhaseFigures("first_token", 2.5, (0.0375, 0.0475, 0.0498)),),
)


def test_50_columns_show_all_of_the_state_and_of_the_latency() -> None:
    shown = page(TITLE, NARROW, 50)
    head, rest = text(shown), "\n".join(each.plain for each in shown.body)
    assert head[0] == "qwen (namespace llm)  NIXL PrefillFirst   12:00:00"
    assert head[1:3] == ["OK  6 of 6 engines, 1 of 1 gateway ready", "  KV verified in 9 of 9 pairs"]
    assert "TTFT p50 37.5 ms  p99 49.8 ms   TPOT 12.3 ms" in head
    assert "first_token        2.5  37.5 ms  47.5 ms  49.8 ms" in rest
    assert "…" not in "\n".join(head[: len(shown.head)])


@pytest.mark.parametrize("width", [50, 80])
def test_a_narrow_screen_shows_the_whole_reason(width: int) -> None:
    """The worst problem, the result of KV, and the cause of a pair, each on several lines."""
    reason = "127.0.0.1:12345/health answered 500: the engine core has died, see its log for the root cause"
    down = replace(
        BROKEN,
        endpoints=(engine("prefill-0", "prefill", "Suspect", reason), *ENGINES[1:]),
        pairs=(pair("prefill-0", "decode-0", "broken", detail=f"HandoffFails: decode engine: {reason}"),),
        kv="KV not verified: waiting until a prefill and a decode engine serve",
    )
    lines = " ".join(" ".join(text(page(TITLE, down, width))).split())
    assert f"✗ prefill-0 is Suspect: {reason} ✗ KV does not move in 1 of 1 pair" in lines
    assert down.kv in lines
    assert lines.index("✗ prefill-0") < lines.index(down.kv)
    assert f"broken, 7 s ago HandoffFails: decode engine: {reason}" in lines


def test_a_small_screen_keeps_the_names_of_the_columns() -> None:
    shown = page(TITLE, replace(BROKEN, silent=("g: no answer, for a reason of many words " * 3,)), 50)
    lines = [each.plain.rstrip() for each in screen(View(), shown, 50, 10)]
    assert len(shown.head) > 8
    assert lines[-3].startswith("ENGINE")
    assert lines[-2].startswith("prefill-2")


def test_the_help_of_a_narrow_screen_names_every_key() -> None:
    lines = [each.plain for each in screen(View(is_help=True), Page((), ()), 50, 12)]
    for key in ("q, Ctrl-C", "↑ ↓ k j", "PgUp PgDn", "Home, End", "s, S", "space", "?"):
        assert any(each.startswith(f"{key} ") and not each.endswith("…") for each in lines), key


def test_keys_of_a_terminal() -> None:
    assert read_keys(b"\x1b[A\x1b[B\x1b[5~\x1b[6~\x1b[Hq?\x1b") == [
        "up",
        "down",
        "pgup",
        "pgdn",
        "home",
        "q",
        "?",
        "escape",
    ]


@pytest.mark.parametrize("height", [5, 10, 24, 60])
def test_a_screen_fills_its_lines(height: int) -> None:
    for figures in (HEALTHY, BROKEN):
        for view in (View(), View(offset=99), View(is_help=True)):
            assert len(screen(view, page(TITLE, figures, 80), 80, height)) == height


def test_the_help_names_the_source_of_every_figure() -> None:
    assert all(len(each) <= 80 for each in keys.HELP.splitlines())
    for metric in (
        "vllm:kv_cache_usage_perc",
        "vllm:num_requests_waiting",
        "first_token",
        "inter_token_latency_seconds",
    ):
        assert metric in keys.HELP


def test_what_breaks_the_objective_is_red() -> None:
    slow = replace(
        HEALTHY,
        endpoints=(engine("d", tpot=0.2),),
        limits={"tpot": Limit(0.1, "the objective is", 0.1), "ttft": Limit(0.01, "the objective is", 0.01)},
    )
    late = replace(slow, experience=Experience(ttft=5.0, phases={"handoff": 4.0}))
    head, row = page(TITLE, late, 80).head, page(TITLE, late, 80).body[0]
    latency = next(each for each in head if each.plain.startswith("Latency"))
    assert ("200 ms", "red") in [(row.plain[span.start : span.end].strip(), span.style) for span in row.spans]
    assert {latency.plain[s.start : s.end].split()[0] for s in latency.spans if s.style == "red"} == {"TTFT", "200"}
    assert head[1].spans[0].style == "bold red"


def test_formats() -> None:
    assert [duration(s) for s in (0.000987, 0.00123, 0.5, 12.345, math.nan, None)] == [
        *("987 µs", "1.23 ms", "500 ms", "12.3 s", "-", "-")
    ]
    assert [percent(s) for s in (0.96, None)] == ["96%", "-"]
    numbers = (0, 0.5, 7.0, 9999, 12_345, 123_456, 2.5e6, None)
    assert [count(n) for n in numbers] == ["0", "0.5", "7", "9999", "12.3k", "123k", "2.5M", "-"]
    assert shortened("qwen-prefill-0123-abcde", 12) == "qwen-p…abcde"


@pytest.mark.parametrize("exponent", range(-7, 6))
@pytest.mark.parametrize("digits", [1.0, 1.23456, 9.994, 9.996, 9.9999])
def test_numbers_fit_their_columns(exponent: int, digits: float) -> None:
    value = digits * 10.0**exponent
    assert len(duration(value)) <= 7
    assert len(count(value)) <= 5
    assert len(count(value, digits=2)) <= 4
    busy = engine("d", running=int(value), waiting=int(value), output_rate=value, prompt_rate=value, tpot=value)
    for width in (80, 120):
        row = page(TITLE, replace(HEALTHY, endpoints=(busy,)), width).body[0].plain
        assert "…" not in row


PAST = tuple(pair("p", f"d{age:.0f}", is_down=True, age=age) for age in (72.0, 80.0))


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        pytest.param({"pairs": PAST}, "KV not proved now, last 72 s ago", id="engines do not serve"),
        pytest.param({"pairs": (pair("p", "d", outdated=True),)}, "KV not proved now, last 7 s ago", id="restarted"),
        pytest.param({"pairs": (pair("p", "d", "unknown"),)}, "KV not proved now", id="never"),
        pytest.param({"pairs": PAST, "kv": "KV DOES NOT MOVE in 1 of 2 pairs"}, "KV DOES NOT MOVE", id="broken"),
        pytest.param(
            {"endpoints": (engine("d", prompt_rate=9.0, remote=0.0, recomputes=True),)}, "KV not proved now", id="D's"
        ),
    ],
)
def test_the_title_claims_nothing_that_the_present_state_contradicts(change: dict[str, Any], shown: str) -> None:
    status = text(page(TITLE, replace(HEALTHY, **change), 120))[1]
    assert shown in status
    assert "verified" not in status
    assert "KV moves" not in status


def test_prompts_that_a_decode_engine_computes_for_itself_contradict_nothing() -> None:
    endpoints = (engine("d", prompt_rate=9.0, remote=0.0, recomputes=True),)
    for outcomes in ({"split": (0.0, 9), "whole": (2.0, 9)}, {"split": (1.0, 9), "whole": (2.0, 9)}):
        assert not replace(HEALTHY, endpoints=endpoints, outcomes=outcomes).recomputes


def test_one_is_singular() -> None:
    one = replace(HEALTHY, in_flight={"requests": 1}, endpoints=ENGINES[:1], pairs=PAIRS[:1])
    lines = text(page(TITLE, one, 80))
    assert lines[1] == "OK  1 of 1 engine, 1 of 1 gateway ready  KV verified in 1 of 1 pair"
    assert "in flight 1 request" in lines[2]
    assert "1 requests" not in lines[2]
    down = tuple(engine(f"d-{i}", state="Suspect") for i in range(5))
    assert any("and 1 more problem" in each for each in text(page(TITLE, replace(HEALTHY, endpoints=down), 80)))
    assert not any("more problems" in each for each in text(page(TITLE, replace(HEALTHY, endpoints=down), 80)))
