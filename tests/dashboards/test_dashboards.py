"""Dashboards are valid JSON for Grafana, and their metrics exist."""

import importlib.util
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pdx_api.vllm.assumptions import expected
from pdx_api.vllm.versions import NEWEST
from pdx_operator.app.metrics import Metrics
from pdx_sim.core import timings
from scripts.dashboards import BOARDS, dashboards
from scripts.dashboards.model import ENGINES, WINDOW, Board, Panel, Query, Unit, failed_transfers
from tests.dashboards.survey import filled

ROOT = Path(__file__).parents[2]
PANELS = [pytest.param(board, panel, id=f"{board.uid}: {panel.title}") for board in BOARDS for panel in board.panels]
METRIC = re.compile(r"\b(?:pdx_(?!dev_)\w+|vllm:\w+|up\b)")


def vllm_source(*path: str) -> Path:
    """A file of the installed vLLM, which is not imported."""
    found = importlib.util.find_spec("vllm")
    assert found is not None
    assert found.submodule_search_locations
    return Path(next(iter(found.submodule_search_locations)), *path)


def vllm_metrics() -> dict[str, str]:
    """vLLM's metrics: name -> gauge, counter or histogram. Mooncake's are those of the newest version."""
    files = [
        vllm_source("v1", "metrics", "loggers.py"),
        vllm_source("distributed", "kv_transfer", "kv_connector", "v1", "nixl", "stats.py"),
    ]
    declared = re.compile(r'_(gauge|counter|histogram)_cls\(\s*name="(vllm:\w+)"')
    newer = {name.removeprefix("metric "): str(kind) for name, kind in expected(NEWEST.version).items() if kind}
    of_mooncake = {name: kind for name, kind in newer.items() if name.startswith("vllm:mooncake_")}
    return {match[2]: match[1] for path in files for match in declared.finditer(path.read_text())} | of_mooncake


def documented_metrics() -> set[str]:
    """The gateway's and the operator's metrics as the documents name them."""
    texts = [(ROOT / "docs" / name).read_text() for name in ("gateway/metrics.md", "operator.md")]
    own = re.findall(r"^# TYPE (\w+)", Metrics(lambda: 0.0).render().decode(), re.MULTILINE)
    return {*own, *(name for text in texts for name in re.findall(r"`(pdx_\w+)", text))}


def plain(name: str) -> str:
    """A histogram's series as its metric."""
    return re.sub(r"_(bucket|sum|count)$", "", name)


def test_dashboards_have_names_of_their_own() -> None:
    names = [(board.uid, board.title, board.question) for board in BOARDS]

    assert all(len(set(column)) == len(BOARDS) for column in zip(*names, strict=True))
    assert all(board.uid.startswith("pdx-") and board.question.endswith("?") for board in BOARDS)


def test_a_failed_transfer_that_both_roles_count_is_one(tmp_path: Path, programs: dict[str, Path]) -> None:
    counts = (
        ("transfers", '{pod="p"}', 15),
        ("recvs", '{pod="p"}', 0),
        ("transfers", '{pod="d"}', 0),
        ("recvs", '{pod="d"}', 15),
    )
    series = [
        {"series": f"vllm:mooncake_num_failed_{kind}_total{labels}", "values": f"0+{rise}x60"}
        for kind, labels, rise in counts
    ]
    question = {
        "expr": failed_transfers().replace(ENGINES, "").replace(WINDOW, "1m"),
        "eval_time": "10m",
        "exp_samples": [{"labels": "{}", "value": 1}],
    }
    test = {"interval": "15s", "input_series": series, "promql_expr_test": [question]}
    (tmp_path / "test.yaml").write_text(json.dumps({"tests": [test]}))
    done = subprocess.run(
        [programs["promtool"], "test", "rules", tmp_path / "test.yaml"], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("board", "panel"), PANELS)
def test_panels_have_descriptions(board: Board, panel: Panel) -> None:
    assert panel.unit in list(Unit)
    assert len(panel.answers) > 20
    assert panel.answers.endswith(".")
    assert panel.queries
    for query in panel.queries:
        shown = set(re.findall(r"{{(\w+)}}", query.legend))
        kept = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", query.expr)))) - {"le"}
        assert query.legend
        assert shown <= kept, "a legend names labels that are there"


@pytest.mark.parametrize(("board", "panel"), PANELS)
def test_every_metric_exists(board: Board, panel: Panel) -> None:
    documented, of_vllm = documented_metrics(), vllm_metrics()
    for query in panel.queries:
        names = METRIC.findall(query.expr)
        assert names
        for name in names:
            if name.startswith("pdx_"):
                assert {name, plain(name)} & documented, name
            elif name.startswith("vllm:"):
                assert_shape(name, of_vllm)


def assert_shape(name: str, of_vllm: dict[str, str]) -> None:
    """A series of vLLM has the ending of its kind."""
    if name.endswith("_total"):
        assert of_vllm[name.removesuffix("_total")] == "counter", name
    elif plain(name) != name:
        assert of_vllm[plain(name)] == "histogram", name
    else:
        assert of_vllm[name] == "gauge", name


def test_the_simulator_has_vllm_s_buckets() -> None:
    spec = importlib.util.spec_from_file_location("buckets", vllm_source("v1", "metrics", "buckets.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    assert timings.LATENCY == module.REQUEST_LATENCY_BUCKETS
    assert timings.FIRST == module.TIME_TO_FIRST_TOKEN_BUCKETS
    assert timings.BETWEEN == module.INTER_TOKEN_LATENCY_BUCKETS


@pytest.mark.parametrize("name", dashboards())
def test_the_json_is_what_grafana_takes(name: str) -> None:
    document: dict[str, Any] = json.loads(dashboards()[name])
    panels = document["panels"]

    assert "id" not in document
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert next(variable["name"] for variable in document["templating"]["list"]) == "datasource"
    cells = [cell for panel in panels for cell in _cells(panel["gridPos"])]
    assert len(set(cells)) == len(cells), "panels overlap"
    assert max(x for x, _ in cells) < 24
    for panel in panels:
        for target in panel.get("targets", []):
            assert target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def _cells(at: dict[str, int]) -> list[tuple[int, int]]:
    return [(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])]


def test_variables_are_filled() -> None:
    queries: list[Query] = [query for board in BOARDS for panel in board.panels for query in panel.queries]

    assert not [query for query in queries if "$" in filled(query.expr)]
