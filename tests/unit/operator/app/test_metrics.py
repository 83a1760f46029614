"""The operator's metrics: objects, reconciles, requests to the API server; and its log format."""

import json
import logging
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pdx_api.names import API_VERSION, KIND, LogFormat
from pdx_operator.app.main import _configure_logs, parse_arguments
from pdx_operator.app.metrics import Metrics
from pdx_operator.app.object_summary import ObjectSummaries
from pdx_operator.app.settings import Settings
from pdx_operator.kube.cache import Cache
from pdx_operator.kube.resources import Key

NOW = 1_000_000_000.0
"""2001-09-09T01:46:40Z."""


def _object(name: str, version: int, *, generation: int = 1, status: dict[str, Any] | None = None) -> dict[str, Any]:
    metadata = {"namespace": "ns", "name": name, "uid": name, "generation": generation}
    body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {**metadata, "resourceVersion": str(version)}}
    return {**body, "status": status} if status is not None else body


def _status(
    reason: str, progressing: str = "True", *, observed: int = 1, since: str = "2001-09-09T01:45:00Z"
) -> dict[str, Any]:
    ready = {"type": "Ready", "status": "True", "reason": "Serving", "lastTransitionTime": since}
    moves = {"type": "Progressing", "status": progressing, "reason": reason, "lastTransitionTime": since}
    return {"observedGeneration": observed, "conditions": [ready, moves]}


class Page:
    """A cache, and the metrics of its objects."""

    def __init__(self) -> None:
        summaries = ObjectSummaries()
        self.cache = Cache(lambda key, spec_changed: None, summaries.observe)
        self.metrics = Metrics(lambda: NOW)
        self.metrics.add_objects(summaries.by_name)

    def __getitem__(self, name: str) -> dict[tuple[str, ...], float]:
        """The samples of a name that are not 0."""
        families = text_string_to_metric_families(self.metrics.render().decode())
        samples = [sample for family in families for sample in family.samples if sample.name == name and sample.value]
        return {tuple(value for _, value in sorted(sample.labels.items())): sample.value for sample in samples}


@pytest.fixture
def page() -> Page:
    return Page()


def test_objects_by_condition(page: Page) -> None:
    page.cache.upsert_object(_object("a", 1, status=_status("Complete", "False")))
    page.cache.upsert_object(_object("b", 2, status=_status("RollingOut")))
    page.cache.upsert_object(_object("new", 3))
    found = page["pdx_operator_objects"]
    assert {key: count for key, count in found.items() if key[0] in ("Ready", "Progressing")} == {
        ("Ready", "True"): 2,
        ("Ready", "Unknown"): 1,
        ("Progressing", "True"): 1,
        ("Progressing", "False"): 1,
        ("Progressing", "Unknown"): 1,
    }
    assert found["Degraded", "Unknown"] == 3
    assert page["pdx_operator_rollouts"] == {("Complete",): 1, ("RollingOut",): 1, ("Unknown",): 1}
    page.cache.delete_object(Key("ns", "b"), "b")
    assert page["pdx_operator_rollouts"] == {("Complete",): 1, ("Unknown",): 1}
    assert page["pdx_operator_rollout_seconds"] == {}


def test_how_long_a_rollout_lasts(page: Page) -> None:
    page.cache.upsert_object(_object("a", 1, status=_status("RollingOut")))
    page.cache.upsert_object(_object("b", 2, status=_status("Complete", "False")))
    page.cache.upsert_object(_object("c", 3, status=_status("Starting", since="yesterday")))
    assert page["pdx_operator_rollout_seconds"] == {("ns/a",): 100}
    page.cache.upsert_object(_object("a", 4, status=_status("Complete", "False")))
    assert page["pdx_operator_rollout_seconds"] == {}


def test_unreconciled_objects(page: Page) -> None:
    page.cache.upsert_object(_object("a", 1, generation=2, status=_status("Complete", "False", observed=1)))
    page.cache.upsert_object(_object("b", 2))
    page.cache.upsert_object(_object("c", 3, status=_status("Complete", "False")))
    assert page["pdx_operator_unreconciled_objects"] == {(): 2}
    page.cache.upsert_object(_object("a", 4, generation=2, status=_status("Complete", "False", observed=2)))
    assert page["pdx_operator_unreconciled_objects"] == {(): 1}


def test_labels_are_bounded(page: Page) -> None:
    odd = {"type": "Progressing", "status": "Perhaps", "reason": "Whatever you like"}
    page.cache.upsert_object(_object("a", 1, status={"conditions": [odd, {"type": "Mine", "status": "True"}]}))
    assert {key[0] for key in page["pdx_operator_rollouts"]} == {"Unknown"}
    assert {key[1] for key in page["pdx_operator_objects"]} == {"Unknown"}
    assert "Mine" not in page.metrics.render().decode()


def test_reconciles_and_requests(page: Page) -> None:
    page.metrics.count_reconcile("ok", 0.02)
    page.metrics.count_reconcile("failed", 2.0)
    page.metrics.count_reconcile("ok", 0.03)
    page.metrics.count_request("PATCH", 201)
    page.metrics.count_request("GET", 0)
    assert page["pdx_operator_reconcile_seconds_count"] == {("ok",): 2, ("failed",): 1}
    assert page["pdx_operator_last_reconcile_timestamp_seconds"] == {("ok",): NOW, ("failed",): NOW}
    assert page["pdx_operator_api_requests_total"] == {("201", "PATCH"): 1, ("0", "GET"): 1}


def test_the_log_may_be_json(capsys: pytest.CaptureFixture[str]) -> None:
    given = parse_arguments(["--log-format", "JSON"])
    assert given.log_format is LogFormat.JSON
    level = logging.getLogger().level
    _configure_logs(given)
    try:
        logging.getLogger("pdx_operator.controller.reconciler").warning("%s: failed", "ns/a")
        try:
            raise ValueError("odd")
        except ValueError:
            logging.getLogger("pdx_operator.controller.reconciler").exception("reconcile failed")
        first, second = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
        _configure_logs(Settings(gateway_image="g"))
        logging.getLogger("pdx_operator.controller.reconciler").warning("%s: failed", "ns/a")
        assert capsys.readouterr().err.endswith(" WARNING ns/a: failed\n")
    finally:
        logging.getLogger().setLevel(level)
    assert (first["level"], first["message"], first["time"][-1]) == ("warning", "ns/a: failed", "Z")
    assert "ValueError: odd" in second["exception"]
