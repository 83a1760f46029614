"""What the chart renders to, and what it refuses; no cluster is needed."""

import json
import re
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from pdx_api.names import OPERATOR_LABELS, PORT_ADMIN, PORT_HTTP, PORT_METRICS
from pdx_operator.app.main import parse_arguments
from pdx_operator.app.permissions import ACCESS
from scripts.alerts import ALERTS, RUNBOOKS, rules_file
from scripts.chart_values import documented_values
from scripts.dashboards import dashboards
from scripts.release.names import read
from tests.charts.chart import (
    CHART,
    GOLDEN,
    NAMESPACE,
    POD_MONITORS,
    ROOT,
    RULES,
    SERVICE_MONITORS,
    SETS,
    Chart,
    HelmError,
    written,
)

RECORDED = ROOT / "tests" / "component" / "skew" / "previous" / "pdx-0.1.0.tgz"
NAMESPACED = GOLDEN / "namespaced.values.yaml"
REFUSED = [
    ("operator.replica=2", "at '/operator': additional properties 'replica' not allowed"),
    ("installCRDs=true", "at '': additional properties 'installCRDs' not allowed"),
    ("operator.image.pullPolicy=Sometimes", "value must be one of 'Always', 'IfNotPresent', 'Never'"),
    ("operator.image.repository=x:1", "at '/operator/image/repository': 'x:1' does not match pattern"),
    ("operator.image.digest=abc", "at '/operator/image/digest': 'abc' does not match pattern"),
    ("gateway.image.tag=3", "at '/gateway/image/tag': got number, want string"),
    ("watchNamespaces={Team}", "at '/watchNamespaces/0': 'Team' does not match pattern"),
    ("watchNamespaces=team", "at '/watchNamespaces': got string, want array"),
    ("watchNamespaces={a,a}", "at '/watchNamespaces': items at 0 and 1 are equal"),
    ("operator.healthPort=0", "at '/operator/healthPort': minimum: got 0, want 1"),
    ("operator.env[0].value=x", "at '/operator/env/0': missing property 'name'"),
    ("operator.resources.limit.cpu=1", "at '/operator/resources': additional properties 'limit' not allowed"),
    (r"commonLabels.app\.kubernetes\.io/part-of=ai", "invalid propertyName 'app.kubernetes.io/part-of'"),
    (r"operator.podLabels.app\.kubernetes\.io/name=llm", "invalid propertyName 'app.kubernetes.io/name'"),
    ("operator=null", "at '': missing property 'operator'"),
    ("operator.image.repository=null", "at '/operator/image': missing property 'repository'"),
    ("operator.nodeSelector.gpu=true", "at '/operator/nodeSelector/gpu': got boolean, want string"),
    ("imagePullSecrets={mirror}", "at '/imagePullSecrets/0': got string, want object"),
    ("crds.install=later", "at '/crds/install': got string, want boolean"),
    ("monitoring.podMonitor.interval=15", "at '/monitoring/podMonitor/interval': got number, want string"),
    ("serviceAccount.create=false", "serviceAccount.name must say which ServiceAccount the operator uses"),
    ("monitoring.podMonitor.enabled=true", "the cluster does not know PodMonitors (monitoring.coreos.com/v1): install"),
    ("monitoring.serviceMonitor.path=/x", "at '/monitoring/serviceMonitor': additional properties 'path' not allowed"),
    ("monitoring.rules.enabled=true", "does not know PrometheusRules (monitoring.coreos.com/v1): install"),
    ("monitoring.rules.firstTokenSeconds=-3", "at '/monitoring/rules/firstTokenSeconds': minimum: got -3, want 0"),
    ("monitoring.dashboards.labels=x", "at '/monitoring/dashboards/labels': got string, want object"),
    ("monitoring.serviceMonitor.enabled=true", "does not know ServiceMonitors (monitoring.coreos.com/v1): install"),
]


def _one(objects: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = (body for body in objects if body["kind"] == kind)
    return found


def test_helm_lint(chart: Chart) -> None:
    output = chart.run("lint", "--strict", str(CHART))

    assert re.findall(r"\[(\w+)\] (.*)", output) == [("INFO", "Chart.yaml: icon is recommended")]


def test_a_kubernetes_that_cannot_sleep_before_it_stops_a_pod_is_refused(chart: Chart) -> None:
    with pytest.raises(HelmError, match=r"chart requires kubeVersion: >=1\.30\.0-0"):
        chart.render("--kube-version", "1.29.14")
    chart.render("--kube-version", "1.30.0-gke.100")


@pytest.mark.parametrize("name", SETS)
def test_renders_are_the_golden_ones(chart: Chart, name: str) -> None:
    golden = GOLDEN / f"{name}.yaml"

    assert chart.golden(name) == golden.read_text(), "if this is meant: python -m tests.charts.chart"


def test_what_is_written_from_the_chart_is_up_to_date(chart: Chart) -> None:
    differing = [str(path) for path, text in written(chart).items() if path.read_text() != text]

    assert differing == [], "python -m tests.charts.chart"


@pytest.mark.parametrize(("setting", "message"), REFUSED)
def test_a_wrong_value_is_refused_with_its_path(chart: Chart, setting: str, message: str) -> None:
    with pytest.raises(HelmError) as refused:
        chart.render("--set", setting)

    assert message in str(refused.value)


def test_every_value_is_in_the_schema_and_has_a_comment() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    documented = {value.path for value in documented_values((CHART / "values.yaml").read_text())}

    def compare(value: Any, node: dict[str, Any], path: str) -> None:
        if isinstance(value, dict) and "properties" in node:
            assert node["additionalProperties"] is False, path
            allowed = set(node["properties"]) - {"global"}
            if path not in documented:
                assert set(value) == allowed, path
            for key in value:
                compare(value[key], node["properties"][key], f"{path}.{key}".lstrip("."))
        else:
            assert any(path == value or path.startswith(f"{value}.") for value in documented), path

    compare(values, schema, "")


def test_dashboards_are_config_maps_that_a_sidecar_finds(chart: Chart) -> None:
    settings = ["enabled=true", "namespace=grafana", "annotations.grafana_folder=PDX"]
    found = [body for body in chart.objects(*_each("monitoring.dashboards", settings)) if body["kind"] == "ConfigMap"]
    held = {name: text.strip() for body in found for name, text in body["data"].items()}

    assert held == {name: text.strip() for name, text in dashboards().items()}
    for body in found:
        assert body["metadata"]["namespace"] == "grafana"
        assert body["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert body["metadata"]["annotations"] == {"grafana_folder": "PDX"}


def test_alerts_are_a_rule_with_this_cluster_s_runbooks(chart: Chart) -> None:
    settings = ["enabled=true", "labels.release=prometheus", "runbookUrl=https://wiki/pdx/"]
    render = [*_each("monitoring.rules", [*settings, "firstTokenSeconds=5"]), "--api-versions", RULES]
    body = _one(chart.objects(*render), "PrometheusRule")
    rules = [rule for group in body["spec"]["groups"] for rule in group["rules"]]
    text = json.dumps(body["spec"])

    assert body["metadata"]["labels"]["release"] == "prometheus"
    urls = [rule["annotations"]["runbook_url"] for rule in rules if "alert" in rule]
    assert urls == [f"https://wiki/pdx/{alert.name}.md" for alert in ALERTS]
    assert [text.count(part) for part in ("(pdx_build_info) * 5 > 0", "(pdx_build_info) * 0 > 0", "#")] == [1, 1, 0]


def test_runbooks_are_links_by_default(chart: Chart) -> None:
    body = _one(chart.objects(*_each("monitoring.rules", ["enabled=true"]), "--api-versions", RULES), "PrometheusRule")

    assert body["spec"] == yaml.safe_load(
        rules_file().replace(" # firstTokenSeconds", "").replace(" # tokenSeconds", "")
    )
    assert RUNBOOKS.startswith("https://")


def test_rules_without_limits_in_reused_values_have_the_defaults(chart: Chart) -> None:
    """The values of an older chart have no `tokenSeconds`, and a `runbookUrl` without a host."""
    older = _each("monitoring.rules", ["enabled=true", "tokenSeconds=null", "runbookUrl=docs/runbooks"])
    found = _one(chart.objects(*older, "--api-versions", RULES), "PrometheusRule")
    fresh = chart.objects(*_each("monitoring.rules", ["enabled=true"]), "--api-versions", RULES)
    assert found["spec"] == _one(fresh, "PrometheusRule")["spec"]


def test_series_keep_the_labels_that_dashboards_use(chart: Chart) -> None:
    found = chart.objects("--set", "monitoring.podMonitor.enabled=true", "--api-versions", POD_MONITORS)
    monitors = {body["metadata"]["name"]: body["spec"] for body in found if body["kind"] == "PodMonitor"}

    assert monitors["pdx-gateways"]["podMetricsEndpoints"][0]["honorLabels"] is True
    for spec in monitors.values():
        assert {"pdx.dev/deployment", "pdx.dev/role"} <= set(spec["podTargetLabels"])


def _each(prefix: str, settings: list[str]) -> list[str]:
    return [part for setting in settings for part in ("--set", f"{prefix}.{setting}")]


def test_the_operator_accepts_its_flags(chart: Chart) -> None:
    deployment = _one(chart.objects("--values", str(NAMESPACED)), "Deployment")
    settings = parse_arguments(deployment["spec"]["template"]["spec"]["containers"][0]["args"])

    assert settings.gateway_image == read(ROOT).image("gateway")
    assert settings.namespaces == ("team-a", "team-b")
    assert settings.health_port == 8081


def test_the_operators_pods_carry_the_labels_that_gateways_let_in(chart: Chart) -> None:
    deployment = _one(chart.objects(), "Deployment")
    assert deployment["spec"]["template"]["metadata"]["labels"].items() >= OPERATOR_LABELS.items()


def test_the_rights_granted_are_those_the_operator_uses(chart: Chart) -> None:
    granted: dict[str, tuple[str, ...]] = {}
    for rule in next(
        body["rules"]
        for body in chart.objects()
        if body["kind"] == "ClusterRole" and body["metadata"]["name"] == "pdx-operator"
    ):
        (group,) = rule["apiGroups"]
        for resource in rule["resources"]:
            name, _, subresource = resource.partition("/")
            spelt = (f"{name}.{group}" if group else name) + (f"/{subresource}" if subresource else "")
            assert spelt not in granted, "a resource is named once"
            granted[spelt] = tuple(sorted(rule["verbs"]))

    bound = {"clusterroles.rbac.authorization.k8s.io": ("bind",)}
    assert granted == {resource: tuple(sorted(verbs)) for resource, verbs in ACCESS.items()} | bound


def test_a_namespaced_operator_has_no_right_in_the_cluster(chart: Chart) -> None:
    everywhere = chart.objects()
    objects = chart.objects("--values", str(NAMESPACED))
    roles = [body for body in objects if body["kind"] == "Role"]

    assert not {body["kind"] for body in objects} & {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}
    places = {(role["metadata"]["name"], role["metadata"]["namespace"]) for role in roles}
    own = {("pdx-lease", NAMESPACE), ("pdx-lease-get", NAMESPACE)}
    assert places == own | {(name, team) for name in ("pdx-operator", "pdx-gateway") for team in ("team-a", "team-b")}
    for name in ("pdx-operator", "pdx-gateway"):
        everywhere_rules = next(
            body["rules"] for body in everywhere if body["metadata"]["name"] == name and "rules" in body
        )
        # It may bind the Role of its namespace instead of the ClusterRole.
        expected = json.loads(json.dumps(everywhere_rules).replace('"clusterroles"', '"roles"'))
        assert all(role["rules"] == expected for role in roles if role["metadata"]["name"] == name)


def test_the_crd_is_the_checkouts_kept_on_uninstall(chart: Chart) -> None:
    rendered = _one(chart.objects(), "CustomResourceDefinition")
    (path,) = (ROOT / "crds").glob("*.yaml")
    generated = yaml.safe_load(path.read_text())

    assert (CHART / "files" / "crds" / path.name).read_text() == path.read_text(), "make generate"
    assert rendered["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert rendered["metadata"].pop("labels")["app.kubernetes.io/managed-by"] == "Helm"
    assert rendered == generated


def test_the_default_image_tags_are_the_projects_version(chart: Chart) -> None:
    meta = yaml.safe_load((CHART / "Chart.yaml").read_text())

    assert (meta["version"], meta["appVersion"]) == (read(ROOT).version, read(ROOT).version)


def test_names_fit_whatever_the_release_is_called(chart: Chart) -> None:
    rendered = chart.run("template", "r" * 53, str(CHART), "--api-versions", POD_MONITORS)
    names = [body["metadata"]["name"] for body in yaml.safe_load_all(rendered) if body]

    assert max(map(len, names)) <= 63


def test_monitors_scrape_the_ports_that_the_pods_name(chart: Chart) -> None:
    monitors = chart.objects("--set", "monitoring.podMonitor.enabled=true", "--api-versions", POD_MONITORS)
    ports = {
        body["metadata"]["name"]: [endpoint["port"] for endpoint in body["spec"]["podMetricsEndpoints"]]
        for body in monitors
        if body["kind"] == "PodMonitor"
    }

    services = [PORT_METRICS]
    assert ports == {"pdx-engines": [PORT_HTTP, *services], "pdx-gateways": [PORT_ADMIN], "pdx-services": services}


def test_the_operators_monitor_reaches_its_pods_through_a_headless_service(chart: Chart) -> None:
    assert not {body["kind"] for body in chart.objects()} & {"Service", "ServiceMonitor"}
    objects = chart.objects("--set", "monitoring.serviceMonitor.enabled=true", "--api-versions", SERVICE_MONITORS)
    service, monitor, deployment = (_one(objects, kind) for kind in ("Service", "ServiceMonitor", "Deployment"))
    pod = deployment["spec"]["template"]
    (port,) = service["spec"]["ports"]
    (endpoint,) = monitor["spec"]["endpoints"]

    assert (endpoint["port"], endpoint["path"]) == (port["name"], "/metrics")
    assert port["targetPort"] in {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["spec"]["namespaceSelector"] == {"matchNames": [NAMESPACE]}


def test_a_packaged_chart_renders_the_same(chart: Chart, tmp_path: Path) -> None:
    chart.run("package", str(CHART), "--destination", str(tmp_path))
    (package,) = tmp_path.glob("pdx-*.tgz")

    assert chart.run("template", "pdx", str(package), "--namespace", NAMESPACE) == chart.render()


class _Strict(yaml.SafeLoader):
    """Refuses duplicate keys, as kustomize and Flux do."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=deep) for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"duplicate keys: {keys}"
        return super().construct_mapping(node, deep)


def test_labels_of_several_values_are_there_once(chart: Chart) -> None:
    values = {
        "commonLabels": {"team": "common", "release": "common"},
        "operator": {"podLabels": {"team": "pod"}},
        "monitoring": {
            name: {"enabled": True, "labels": {"release": "prometheus", "grafana_dashboard": "1"}}
            for name in ("podMonitor", "serviceMonitor", "rules", "dashboards")
        },
    }
    flags = ("--api-versions", f"{POD_MONITORS},{SERVICE_MONITORS},{RULES}", "--set-json")
    rendered = chart.render(*flags, json.dumps(values))
    objects = [body for body in yaml.load_all(rendered, _Strict) if body]
    template = _one(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert OPERATOR_LABELS.items() <= template.items()
    assert template["team"] == "pod"
    monitors = [body for body in objects if body["kind"] in ("PodMonitor", "ServiceMonitor", "PrometheusRule")]
    assert {body["metadata"]["labels"]["release"] for body in monitors} == {"prometheus"}


def _without(values: dict[str, Any], path: str) -> dict[str, Any]:
    head, _, rest = path.partition(".")
    return {
        name: _without(each, rest) if rest and name == head else each
        for name, each in values.items()
        if rest or name != head
    }


REUSED = (
    *("operator.replicas", "operator.healthPort", "operator.terminationGracePeriodSeconds", "commonLabels"),
    *("operator.image.pullPolicy", "operator.podLabels", "operator.extraArgs", "operator.resources"),
    *("gateway.maxConcurrentUpgrades", "gateway.image.pullSecrets", "watchNamespaces", "imagePullSecrets"),
)


def test_values_that_an_older_chart_did_not_have_get_their_defaults(chart: Chart, tmp_path: Path) -> None:
    """What `helm upgrade --reuse-values` does: the values are those of the older chart, and nothing else."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    for path in REUSED:
        values = _without(values, path)
    reused = tmp_path / "pdx"
    shutil.copytree(CHART, reused)
    (reused / "values.yaml").write_text(yaml.safe_dump(values))
    rendered = chart.run("template", "pdx", str(reused), "--namespace", NAMESPACE)
    spec = _one([body for body in yaml.safe_load_all(rendered) if body], "Deployment")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    (container,) = spec["template"]["spec"]["containers"]
    assert {"--health-port=8081", "--max-gateway-upgrades=4"} <= set(container["args"])


def test_an_upgrade_with_the_values_of_the_recorded_version_is_an_ordinary_one(chart: Chart, tmp_path: Path) -> None:
    shutil.copytree(CHART, tmp_path / "pdx")
    with tarfile.open(RECORDED) as archive:
        recorded = archive.extractfile("pdx/values.yaml")
        assert recorded is not None
        (tmp_path / "pdx" / "values.yaml").write_bytes(recorded.read())
    rendered = chart.run("template", "pdx", str(tmp_path / "pdx"), "--namespace", NAMESPACE)
    reused, fresh = (
        _one([body for body in yaml.safe_load_all(text) if body], "Deployment") for text in (rendered, chart.render())
    )
    for deployment in (reused, fresh):
        for container in deployment["spec"]["template"]["spec"]["containers"]:
            # The default registry is that of the release.
            container["image"] = container["image"].rpartition("pdx/")[2]
            container["args"] = [each for each in container["args"] if not each.startswith("--gateway-image=")]
    assert reused == fresh
