"""Whether an engine works on its requests: samples of its metrics -> stalled or not."""

from dataclasses import replace

import pytest

from pdx_api.names import Role
from pdx_api.vllm_metrics import EngineMetrics
from pdx_proxy.balancing.load_reports import LoadReport
from pdx_proxy.config.settings import Address, EndpointSpec
from pdx_proxy.endpoints.endpoint import Endpoint, State
from pdx_proxy.endpoints.events import Cause, Suspect
from pdx_proxy.endpoints.snapshot import Snapshot
from pdx_proxy.health.progress import Observed, Progress, StallDetector, has_work, observe
from pdx_proxy.health.reports import Report, Round

BUSY = Progress(running=1, waiting=0, kv_use=0.5, prompt_tokens=100, generated_tokens=20)
IDLE = replace(BUSY, running=0)
LIMIT = 30.0


def samples_of(*values: Progress) -> Observed:
    """Observe one sample every ten seconds."""
    seen: Observed | None = None
    for number, value in enumerate(values):
        seen = observe(seen, value, 10.0 * number)
    assert seen is not None
    return seen


CASES: list[tuple[str, tuple[Progress, ...], bool]] = [
    ("hung", (BUSY,) * 4, True),
    ("not for long enough", (BUSY,) * 3, False),
    ("idle", (IDLE,) * 9, False),
    ("only waiting, for a push for example", (replace(IDLE, waiting=3),) * 9, False),
    ("decoding", tuple(replace(BUSY, generated_tokens=n) for n in range(9)), False),
    ("one prompt prefilled in chunks", tuple(replace(BUSY, kv_use=n / 100) for n in range(13)), False),
    ("prompts end", tuple(replace(BUSY, prompt_tokens=n) for n in range(9)), False),
    ("it hangs after some work", (replace(BUSY, kv_use=0.1), replace(BUSY, kv_use=0.2), *(BUSY,) * 4), True),
    ("a request ends", (BUSY, BUSY, replace(BUSY, running=2), replace(BUSY, running=2)), False),
]


@pytest.mark.parametrize(("values", "stalled"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_a_stall(values: tuple[Progress, ...], stalled: bool) -> None:
    assert samples_of(*values).stalled(10.0 * (len(values) - 1), LIMIT) is stalled


PREFILLING = EngineMetrics(
    running=1.0, waiting=0.0, kv_use=0.0014655593551539114, prompt_tokens=0.0, generated_tokens=0.0
)


def test_the_metrics_of_a_prefill_in_chunks() -> None:
    """Recorded from vLLM 0.32 between two chunks of a prompt; the next page differed in the use of the cache only."""
    first, second = Progress.of(PREFILLING), Progress.of(replace(PREFILLING, kv_use=0.0019540791402051783))
    assert first == Progress(1.0, 0.0, 0.0014655593551539114, 0.0, 0.0)
    assert second is not None
    assert not samples_of(first, first, first, second).stalled(30.0, LIMIT)
    assert Progress.of(replace(PREFILLING, kv_use=None)) is None


def test_an_engine_without_progress_is_stalled_and_a_long_prefill_is_not() -> None:
    hung, busy = (
        Endpoint(EndpointSpec(Address(host, 1), role), State.WARM, generation=1)
        for host, role in (("d", Role.DECODE), ("p", Role.PREFILL))
    )
    stalls, snapshot = StallDetector(LIMIT), Snapshot.of([hung, busy])
    forever, suspects = StallDetector(0.0), []
    for now in range(0, 130, 10):
        frozen = (Report(hung, PREFILLING, now),) if now <= 30 else ()
        prefilling = Report(busy, replace(PREFILLING, kv_use=now / 1000), now)
        scraped = Round(now, snapshot, latest=(*frozen, prefilling))
        suspects += stalls.update(scraped).suspects
        assert forever.update(scraped).suspects == []
    assert suspects == [Suspect("d:1", 1, "1 requests run and have made no progress for 30 s", Cause.STALLED)]


@pytest.mark.parametrize(
    ("values", "may_be"),
    [
        ((replace(IDLE, waiting=3),) * 3, True),
        (tuple(replace(IDLE, waiting=n) for n in range(1, 4)), True),
        ((BUSY,) * 3, True),
        ((IDLE,) * 9, False),
        ((*(IDLE,) * 9, replace(IDLE, waiting=3)), False),
        ((*(IDLE,) * 9, *(replace(IDLE, waiting=3),) * 3), True),
        ((replace(IDLE, waiting=3),) * 2, False),
        (tuple(replace(IDLE, waiting=3, generated_tokens=n) for n in range(9)), False),
        (tuple(replace(IDLE, waiting=3, kv_use=n / 100) for n in range(9)), False),
    ],
    ids=[
        "waits",
        "more arrive",
        "runs",
        "idle",
        "idle until now",
        "waits after it was idle",
        "not for long",
        "tokens",
        "KV arrives",
    ],
)
def test_an_engine_that_may_be_paused(values: tuple[Progress, ...], may_be: bool) -> None:
    assert samples_of(*values).may_be_paused(10.0 * (len(values) - 1)) is may_be


def test_engines_that_may_be_paused_are_no_suspects() -> None:
    endpoint = Endpoint(EndpointSpec(Address("d", 1), Role.DECODE), State.WARM, generation=1)
    stalls, snapshot = StallDetector(LIMIT), Snapshot.of([endpoint])
    waits = replace(PREFILLING, running=0.0, waiting=2.0)
    found = [stalls.update(Round(at, snapshot, latest=(Report(endpoint, waits, at),))) for at in (0, 10, 20, 100)]
    assert [each.maybe_paused for each in found] == [[], [], [endpoint.start], [endpoint.start]]
    assert not any(each.suspects for each in found)


NOTHING, RUNS, WAITS = LoadReport(0, 0, 0.4), LoadReport(1, 0, 0.4), LoadReport(0, 1, 0.4)


@pytest.mark.parametrize(
    ("reports", "legs", "expected"),
    [
        ([], 0, False),
        ([NOTHING], 0, False),
        ([NOTHING], 1, True),
        ([], 1, True),
        ([RUNS], 0, True),
        ([WAITS], 0, True),
        ([NOTHING, RUNS], 0, True),
    ],
    ids=["no report", "none", "a leg", "a leg, no report", "runs", "waits", "a rank runs"],
)
def test_work_that_explains_silence(reports: list[LoadReport], legs: int, expected: bool) -> None:
    assert has_work(reports, legs) is expected
