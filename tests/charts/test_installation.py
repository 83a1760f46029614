"""What the chart tells and checks after an installation: the schema's descriptions, the notes, and `helm test`."""

import importlib.util
import json
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any

import pytest
import yaml

from scripts.chart_values import described, documented_values
from tests.charts.chart import CHART, NAMESPACE, Chart

SCRIPT = CHART / "files" / "tests" / "installation.py"
VALUES = (CHART / "values.yaml").read_text()
SCHEMA = json.loads((CHART / "values.schema.json").read_text())


def _without_description(node: dict[str, Any], path: str) -> list[str]:
    found = [] if node.get("description") else [path]
    for name, each in node.get("properties", {}).items():
        found += _without_description(each, f"{path}.{name}")
    return found


def test_every_value_has_a_description_and_it_is_the_comment() -> None:
    parts = {name: each for name, each in SCHEMA["properties"].items() if name != "global"}
    shown = [path for name, each in parts.items() for path in _without_description(each, name)]
    assert not [path for path in shown if path in {value.path for value in documented_values(VALUES)}]
    assert described(VALUES, SCHEMA) == (CHART / "values.schema.json").read_text(), "make generate"
    assert SCHEMA["properties"]["crds"]["properties"]["install"]["description"].startswith("Install the CRD")


@pytest.fixture
def script() -> ModuleType:
    """What the test's pod runs, as a module."""
    spec = importlib.util.spec_from_file_location("installation", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _test_pod(chart: Chart, *arguments: str) -> dict[str, Any]:
    (pod,) = (body for body in chart.objects(*arguments) if body["kind"] == "Pod")
    return pod


def test_helm_test_runs_the_script_with_the_operators_image_and_rights(chart: Chart) -> None:
    pod = _test_pod(chart)
    (operator,) = (body for body in chart.objects() if body["kind"] == "Deployment")
    template = operator["spec"]["template"]["spec"]
    (container,) = pod["spec"]["containers"]
    *_, text, lease, namespace, path, seconds = container["command"]
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    assert container["image"] == template["containers"][0]["image"]
    assert pod["spec"]["serviceAccountName"] == template["serviceAccountName"]
    assert container["securityContext"] == template["containers"][0]["securityContext"]
    assert text.strip() == SCRIPT.read_text().strip()
    assert f"--lease-name={lease}" in template["containers"][0]["args"]
    assert (namespace, path, seconds) == (NAMESPACE, "/apis/pdx.dev/v1alpha1/pddeployments", "120")


def test_helm_test_reads_only_what_a_namespaced_operator_may(chart: Chart) -> None:
    (container,) = _test_pod(chart, "--set", "watchNamespaces={team-a,team-b}")["spec"]["containers"]
    assert container["command"][-2] == "/apis/pdx.dev/v1alpha1/namespaces/team-a/pddeployments"


def test_manifests_for_kubectl_have_no_test(chart: Chart) -> None:
    rendered = chart.run("template", "pdx", str(CHART), "--skip-tests")
    assert "Pod" not in {body["kind"] for body in yaml.safe_load_all(rendered) if body}


@pytest.mark.parametrize(
    ("age", "identity", "passes"), [(5, "pdx-operator-0", True), (300, "pdx-operator-0", False), (5, "", False)]
)
def test_an_operator_that_does_not_renew_its_lease_fails_the_test(
    script: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    age: float,
    identity: str,
    passes: bool,
) -> None:
    renewed = (datetime.now(UTC) - timedelta(seconds=age)).isoformat().replace("+00:00", "Z")
    answers = {"leases": {"spec": {"renewTime": renewed, "holderIdentity": identity}}, "pddeployments": {"items": []}}
    monkeypatch.setattr(script, "fetched", lambda path: next(body for name, body in answers.items() if name in path))
    if passes:
        script.main("pdx-operator", NAMESPACE, "/apis/pdx.dev/v1alpha1/pddeployments", "0")
        assert capsys.readouterr().out == "The operator pdx-operator-0 works. There is no PDDeployment yet.\n"
    else:
        with pytest.raises(ValueError, match="nobody has renewed the Lease pdx-operator"):
            script.main("pdx-operator", NAMESPACE, "/pddeployments", "0")


@pytest.mark.parametrize(("settings", "flag"), [((), ""), (("--set", "watchNamespaces={team-a}"), " -n team-a")])
def test_the_notes_have_the_next_three_commands_of_this_installation(
    chart: Chart, settings: tuple[str, ...], flag: str
) -> None:
    output = chart.run("install", "mine", str(CHART), "--namespace", "there", "--dry-run=client", *settings)
    notes = output.partition("NOTES:\n")[2]
    commands = [line.strip() for line in notes.splitlines() if line.startswith("  kubectl ")][:3]
    assert commands == [
        "kubectl -n there rollout status deployment/mine-pdx-operator",
        f"kubectl{flag} apply -f - <<EOF",
        f"kubectl{flag} wait --for=condition=KVTransferVerified pdd/qwen --timeout=30m",
    ]
    body = yaml.safe_load(notes.partition("<<EOF\n")[2].partition("  EOF")[0])
    assert body["kind"] == "PDDeployment"
    assert "helm test mine -n there" in notes
