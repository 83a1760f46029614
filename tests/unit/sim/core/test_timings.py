"""The histograms of an engine have the text of Prometheus' own client."""

import re

from prometheus_client import CollectorRegistry, Histogram, generate_latest

from pdx_api.names import Role
from pdx_sim.core.timings import FIRST, Timings
from pdx_sim.core.timings import _Histogram as Own
from pdx_sim.settings import SimSettings

VALUES = (0.0, 0.001, 0.0015, 0.75, 3.0, 2560.0, 1e4)


def test_the_text_is_that_of_the_client_library() -> None:
    model = 'a "b" \\ c'
    registry = CollectorRegistry()
    theirs = Histogram("vllm:x", "Text.", ["engine", "model_name"], registry=registry, buckets=FIRST).labels("0", model)
    ours = Own("vllm:x", "Text.", FIRST, model)
    for value in VALUES:
        theirs.observe(value)
        ours.observe(value)
    expected = [line for line in generate_latest(registry).decode().splitlines() if "vllm:x_created" not in line]
    assert ours.text().splitlines() == expected


def test_each_histogram_is_on_the_page() -> None:
    page = Timings("m", 1024, "nixl").text()
    assert page.count("# TYPE ") == 8
    assert 'vllm:nixl_bytes_transferred_bucket{engine="0",le="8.589934592e+09",model_name="m"} 0.0' in page


def test_only_connectors_with_metrics_have_histograms_of_transfers() -> None:
    def names(**settings: str) -> set[str]:
        found = SimSettings(role=Role.PREFILL, **settings)  # type: ignore[arg-type]
        timings = Timings("m", 1, found.transfer_metrics)
        timings.moved(1.0, 1)
        return set(re.findall(r"^# TYPE vllm:(\w+)_xfer_time_seconds ", timings.text(), re.MULTILINE))

    assert names() == {"nixl"}
    assert names(connector="Mooncake", version="0.33.0") == {"mooncake"}
    assert names(connector="Mooncake", version="0.32.0") == set()
    assert names(connector="SharedStorage", storage="/x") == set()
