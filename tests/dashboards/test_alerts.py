"""Alerts in promtool: when they fire and when they stay silent. Each has a runbook."""

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from scripts.alerts import ALERTS, rules_file
from tests.dashboards.alert_cases import CASES, Case
from tests.unit.operator.render.manifests_of import rendered

ROOT = Path(__file__).parents[2]
SECTIONS = ["## What users see", "## Confirm", "## Mitigate", "## Repair"]


def test_every_alert_is_shown_to_fire_and_to_stay_silent() -> None:
    shown = {(case.alert, case.fires) for case in CASES}

    assert shown == {(alert.name, fires) for alert in ALERTS for fires in (True, False)}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.alert}: {case.situation}")
def test_it_fires_or_stays_silent(case: Case, tmp_path: Path, programs: dict[str, Path]) -> None:
    (tmp_path / "pdx.rules.yaml").write_text(rules_file(), encoding="utf-8")
    question = {
        "expr": f'count(ALERTS{{alertname="{case.alert}",alertstate="firing"}})',
        "eval_time": f"{case.minutes}m",
        "exp_samples": [{"labels": "{}", "value": 1}] if case.fires else [],
    }
    test = {
        "interval": "15s",
        "input_series": [{"series": name, "values": values} for name, values in case.series.items()],
        "promql_expr_test": [question],
    }
    (tmp_path / "test.yaml").write_text(json.dumps({"rule_files": ["pdx.rules.yaml"], "tests": [test]}))
    done = subprocess.run(
        [programs["promtool"], "test", "rules", tmp_path / "test.yaml"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_finds_the_rules_sound(tmp_path: Path, programs: dict[str, Path]) -> None:
    path = tmp_path / "pdx.rules.yaml"
    path.write_text(rules_file(), encoding="utf-8")
    done = subprocess.run(
        [programs["promtool"], "check", "rules", "--lint=all", "--lint-fatal", path],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", sorted({alert.name for alert in ALERTS}))
def test_runbooks_have_steps(name: str) -> None:
    text = (ROOT / "docs" / "runbooks" / f"{name}.md").read_text(encoding="utf-8")
    parts = _sections(text)

    assert text.startswith(f"# {name}\n")
    assert list(parts) == SECTIONS
    assert all(len(part) > 80 for part in parts.values())
    assert parts["## Confirm"].count("```sh\n") == 1


PATCH = re.compile(r"patch pdd NAME --type merge -p '(.*)'$", re.MULTILINE)


@pytest.mark.parametrize("name", sorted({alert.name for alert in ALERTS}))
def test_mitigations_restart_no_engine(name: str) -> None:
    text = (ROOT / "docs" / "runbooks" / f"{name}.md").read_text(encoding="utf-8")
    for patch in PATCH.findall(text):
        for part, change in json.loads(patch)["spec"].items():
            role = {"resources": {"limits": {"nvidia.com/gpu": 1}}} if part == "decode" else {}
            before, after = rendered(**{part: role}), rendered(**{part: role | change})
            assert before != after
            for key in (("Deployment", "prefill"), ("Deployment", "decode")):
                assert before[key]["spec"]["template"] == after[key]["spec"]["template"]


def test_every_runbook_has_its_alert() -> None:
    found = {path.stem for path in (ROOT / "docs" / "runbooks").glob("*.md")}

    assert found == {alert.name for alert in ALERTS}


def _sections(text: str) -> Mapping[str, Any]:
    parts = [part.partition("\n") for part in text.split("\n## ")[1:]]
    return {f"## {title}": body.strip() for title, _, body in parts}
