"""The chart's life on a real API server: install, upgrade, rollback, uninstall, and what is allowed afterwards."""

import json
from typing import Any

import pytest

from pdx_api.names import GATEWAY_ROLE
from pdx_cluster.app.cluster import Cluster
from pdx_cluster.errors import ClusterError
from scripts.release.names import read
from tests.charts.chart import CHART, CRD, NAMESPACE, OLDER, ROOT, SETS, Chart, install

TINY = """
apiVersion: pdx.dev/v1alpha1
kind: PDDeployment
metadata: {name: tiny, namespace: default}
spec:
  model: {name: tiny}
  prefill: {replicas: 1}
  decode: {replicas: 1}
"""
MONITOR_CRD = """
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {{name: {plural}.monitoring.coreos.com}}
spec:
  group: monitoring.coreos.com
  scope: Namespaced
  names: {{kind: {kind}, listKind: {kind}List, plural: {plural}, singular: {singular}}}
  versions:
    - name: v1
      served: true
      storage: true
      schema: {{openAPIV3Schema: {{type: object, x-kubernetes-preserve-unknown-fields: true}}}}
"""
MONITORS = {"podmonitors": "PodMonitor", "servicemonitors": "ServiceMonitor"}

pytestmark = pytest.mark.timeout(300)


def _crd(cluster: Cluster) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(cluster.kubectl("get", CRD, "--output", "json"))
    return body


def _spec_fields(crd: dict[str, Any]) -> set[str]:
    return set(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"])


def _apply_tiny(cluster: Cluster) -> None:
    cluster.kubectl("wait", "--for=condition=Established", CRD)
    cluster.kubectl("apply", "--filename=-", stdin=TINY)


def _install_monitor_crds(cluster: Cluster) -> None:
    crds = (MONITOR_CRD.format(plural=plural, kind=kind, singular=plural[:-1]) for plural, kind in MONITORS.items())
    cluster.kubectl("apply", "--filename=-", stdin="".join(crds))
    for plural in MONITORS:
        cluster.kubectl("wait", "--for=condition=Established", f"crd/{plural}.monitoring.coreos.com")


def _names(cluster: Cluster, kinds: str) -> set[str]:
    return set(cluster.kubectl("get", kinds, "--namespace", NAMESPACE, "--output=name").split())


@pytest.mark.parametrize("name", SETS)
def test_the_api_server_accepts_every_render_without_a_warning(cluster: Cluster, chart: Chart, name: str) -> None:
    _install_monitor_crds(cluster)
    # Helm creates the pod of `helm test` later. In a dry run its service account does not exist.
    installed = [text for text in chart.golden(name).split("\n---\n") if "helm.sh/hook: test" not in text]

    cluster.kubectl(
        "apply",
        "--dry-run=server",
        "--validate=strict",
        "--warnings-as-errors",
        "--filename=-",
        stdin="\n---\n".join(installed),
    )


def test_installing_brings_the_crd_and_an_operator_that_restricted_namespaces_accept(cluster: Cluster) -> None:
    notes = install(cluster)

    assert f"kubectl -n {NAMESPACE} rollout status deployment/pdx-operator" in notes
    cluster.kubectl("wait", "--for=create", "pod", "--selector=app.kubernetes.io/name=pdx", "--namespace", NAMESPACE)
    _apply_tiny(cluster)


def test_an_upgrade_from_an_older_chart_brings_its_crd_up_to_date_and_keeps_every_object(cluster: Cluster) -> None:
    cluster.helm("install", "pdx", str(OLDER), "--namespace", NAMESPACE)
    _apply_tiny(cluster)
    kept = "--output=jsonpath={.metadata.uid}"
    before = cluster.kubectl("get", "pddeployment/tiny", kept), cluster.kubectl("get", CRD, kept)
    assert "engine" not in _spec_fields(_crd(cluster))

    cluster.helm("upgrade", "pdx", str(CHART), "--namespace", NAMESPACE, "--reset-then-reuse-values")

    assert (cluster.kubectl("get", "pddeployment/tiny", kept), cluster.kubectl("get", CRD, kept)) == before
    assert "engine" in _spec_fields(_crd(cluster))
    assert "configmap/pdx-operator" not in _names(cluster, "configmaps"), "the newer chart has none"
    rules = json.loads(cluster.kubectl("get", "clusterrole/pdx-operator", "--output=json"))["rules"]
    assert not any("*" in rule["verbs"] for rule in rules)
    pod = json.loads(cluster.kubectl("get", "deployment/pdx-operator", "--namespace", NAMESPACE, "--output=json"))
    assert pod["spec"]["template"]["spec"]["containers"][0]["image"] == read(ROOT).image("operator")
    assert pod["spec"]["strategy"] == {"type": "Recreate"}


def test_a_value_of_the_older_chart_that_has_another_name_now_is_refused_by_its_name(cluster: Cluster) -> None:
    cluster.helm("install", "pdx", str(OLDER), "--namespace", NAMESPACE, "--set", "installCRDs=true")
    upgrade = ("upgrade", "pdx", str(CHART), "--namespace", NAMESPACE)

    with pytest.raises(ClusterError, match="additional properties 'installCRDs' not allowed"):
        cluster.helm(*upgrade, "--reset-then-reuse-values")
    cluster.helm(*upgrade, "--reset-values", "--set", "crds.install=true")


def test_a_rollback_brings_the_older_operator_and_crd_back(cluster: Cluster) -> None:
    cluster.helm("install", "pdx", str(OLDER), "--namespace", NAMESPACE)
    _apply_tiny(cluster)
    cluster.helm("upgrade", "pdx", str(CHART), "--namespace", NAMESPACE, "--reset-values")

    cluster.helm("rollback", "pdx", "1", "--namespace", NAMESPACE)

    assert "engine" not in _spec_fields(_crd(cluster))
    image = "--output=jsonpath={.spec.template.spec.containers[0].image}"
    assert cluster.kubectl("get", "deployment/pdx-operator", "--namespace", NAMESPACE, image) == "pdx/operator:0.0.1"
    assert cluster.kubectl("get", "pddeployment/tiny", "--output=name") == "pddeployment.pdx.dev/tiny\n"


def test_uninstalling_keeps_the_crd_and_every_pddeployment_and_a_new_install_takes_over(cluster: Cluster) -> None:
    install(cluster)
    _apply_tiny(cluster)

    output = cluster.helm("uninstall", "pdx", "--namespace", NAMESPACE)

    assert "kept due to the resource policy" in output
    assert _names(cluster, "deployments,serviceaccounts,services") <= {"serviceaccount/default"}
    roles = cluster.kubectl("get", "clusterroles,clusterrolebindings", "--output=name").split()
    kept = [role for role in roles if "/pdx" in role]
    assert kept == [f"clusterrole.rbac.authorization.k8s.io/{GATEWAY_ROLE}"], "gateways need it"
    assert cluster.kubectl("get", "pddeployment/tiny", "--output=name") == "pddeployment.pdx.dev/tiny\n"
    install(cluster)


def test_a_manually_applied_crd_is_adopted_only_on_request(cluster: Cluster) -> None:
    cluster.kubectl("apply", "--server-side", "--filename", str(CHART / "files" / "crds"))

    with pytest.raises(ClusterError, match="invalid ownership metadata"):
        install(cluster)
    install(cluster, "--take-ownership", "--force-conflicts")

    assert _crd(cluster)["metadata"]["annotations"]["meta.helm.sh/release-name"] == "pdx"


def test_monitors_are_installed_after_their_crds(cluster: Cluster) -> None:
    for plural, kind in MONITORS.items():
        cluster.kubectl("delete", f"crd/{plural}.monitoring.coreos.com", "--ignore-not-found")
        with pytest.raises(ClusterError, match=f"the cluster does not know {kind}s"):
            install(cluster, "--set", f"monitoring.{kind[0].lower()}{kind[1:]}.enabled=true")

    _install_monitor_crds(cluster)
    settings = "monitoring.podMonitor.enabled=true,monitoring.serviceMonitor.enabled=true"
    install(cluster, "--set", settings)

    group = "monitoring.coreos.com"
    assert _names(cluster, ",".join(MONITORS)) == {
        f"podmonitor.{group}/pdx-engines",
        f"podmonitor.{group}/pdx-gateways",
        f"podmonitor.{group}/pdx-services",
        f"servicemonitor.{group}/pdx-operator",
    }
    assert "service/pdx-operator" in _names(cluster, "services")
