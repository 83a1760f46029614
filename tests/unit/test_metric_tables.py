"""Every metric of both programs has its row in the docs, with its labels, and every row its metric."""

import re
from collections.abc import Callable

import pytest

from pdx_api.names import Role
from pdx_operator.app.metrics import Metrics
from pdx_operator.app.object_summary import ObjectSummary
from pdx_proxy.config.settings import Address, EndpointSpec
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.process.exposition import render
from pdx_proxy.telemetry.counters import Counters, Phase
from tests.documents import ROOT

_TYPE = re.compile(r"^# TYPE (\S+) (\S+)$", re.MULTILINE)
_SAMPLE = re.compile(r"^([a-z_]+?)(?:_bucket|_sum|_count)?(?:{(.*)})? ", re.MULTILINE)


def gateway() -> str:
    """A page on which every metric of the gateway has a sample."""
    endpoints = [Endpoint(EndpointSpec(Address("127.0.0.1", 1 + i), role)) for i, role in enumerate(Role)]
    counters = Counters().report({})
    phases = {"alone": counters["phases"][Phase.TOTAL]}
    transfer_probes = {"results": {"moved": 1}, "phases": phases, "pairs": {"verified": 1}, "lastSuccess": 1.0}
    transfer_share = {"split": 1, "decode": {"d": {"promptTokens": 2, "outside": 1}}}
    limits = {endpoint.name: 2.0 for endpoint in endpoints}
    own = {"ejections": {"lost": 0}, "verification": transfer_probes, "arrivals": transfer_share, "legLimits": limits}
    own["slo"] = {"ttft": 2.0}
    prefill = {
        "backlog": {"p": 1},
        "counted": {"p": 1},
        "rates": {"p": 2.0},
        "rated": {"p": 1},
        "tokens": {"cached": 1, "computed": 2},
    }
    decode = {"itl": {"d": 0.02}, "measured": {"d": 1}}
    spans = {"exported": 1, "dropped": 0, "failed": 0, "limited": 0}
    return render({**counters, **own, "prefill": prefill, "decode": decode, "spans": spans}, endpoints).decode()


def operator() -> str:
    """The same of the operator."""
    metrics = Metrics(lambda: 1e9)
    progressing = {"type": "Progressing", "status": "True", "lastTransitionTime": "2001-01-01T00:00:00Z"}
    summary = ObjectSummary.of({"metadata": {"generation": 1}, "status": {"conditions": [progressing]}})
    metrics.add_objects(lambda: {"ns/m": summary})
    metrics.add_states(lambda: {"ns": True}, lambda: True)
    metrics.count_reconcile("ok", 0.1)
    metrics.count_request("GET", 200)
    return metrics.render().decode()


PROGRAMS = {"gateway/metrics.md": gateway, "operator.md": operator}


def rows(guide: str) -> dict[str, set[str]]:
    """The metrics of a page's table and their labels."""
    text = (ROOT / "docs" / guide).read_text()
    table = text[text.index("| metric | labels |") :].split("\n\n")[0].splitlines()[2:]
    cells = [row.split(" | ") for row in table]
    return {
        name: set(re.findall(r"`(\w+)`", labels))
        for names, labels, *_ in cells
        for name in re.findall(r"`(\w+)`", names)
    }


@pytest.mark.parametrize(("program", "page"), PROGRAMS.items())
def test_every_metric_has_its_row_and_every_row_its_metric(program: str, page: Callable[[], str]) -> None:
    found: dict[str, set[str]] = {name: set() for name, _ in _TYPE.findall(page())}
    for name, labels in _SAMPLE.findall(page()):
        found[name] |= set(re.findall(r'(\w+)="', labels)) - {"le"}
    assert found == rows(program)
    assert all(name.startswith("pdx_") for name in found)


def test_every_phase_has_its_row() -> None:
    text = (ROOT / "docs" / "gateway" / "metrics.md").read_text()
    table = text[text.index("| phase | counts |") :].split("\n\n")[0].splitlines()[2:]
    assert [re.findall(r"`(\w+)`", row.split(" | ")[0])[0] for row in table] == list(Phase)
