"""Every field, flag, metric, condition and reason that docs, alerts or dashboards name exists."""

import ast
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from pdx_api.connectors import CONNECTORS
from pdx_api.rules.spec_rules import OWNED_FLAGS, REFUSED_FLAGS, SHARED_FLAGS
from pdx_api.vllm.assumptions import assumptions
from pdx_cli.main import parser_of
from scripts.alerts import rules_file
from tests.documents import ROOT
from tests.unit.test_metric_tables import PROGRAMS

OTHER_PAGES = (ROOT / "README.md", ROOT / "SECURITY.md", ROOT / "charts" / "pdx" / "README.md")
DOCS = sorted([*(ROOT / "docs").rglob("*.md"), *OTHER_PAGES])
DASHBOARDS = sorted((ROOT / "charts" / "pdx").rglob("dashboards/*.json"))
PACKAGES = ("pdx_api", "pdx_cli", "pdx_cluster", "pdx_operator", "pdx_proxy", "pdx_sim")
CODE = ("api", "cli", "operator", "proxy", "sim")

EXTERNAL_FLAGS = {
    **dict.fromkeys(("--create-namespace", "--set", "--version", "--values", "--wait", "--keep-crds"), "helm"),
    **dict.fromkeys(("--from-file", "--from-literal", "--dry-run", "--server-side", "--for", "--timeout"), "kubectl"),
    **dict.fromkeys(("--tail", "--as", "--previous", "--watch", "--raw", "--all", "--force-conflicts"), "kubectl"),
    **dict.fromkeys(("--context", "--kubeconfig", "--namespace", "--subresource", "--patch", "--type"), "kubectl"),
    **dict.fromkeys(("--replicas", "--rm", "--image", "--restart", "--field-manager", "--overwrite"), "kubectl"),
    **dict.fromkeys(("--all-namespaces", "--cascade", "--grace-period", "--cert", "--key"), "kubectl"),
    **dict.fromkeys(("--docker-server", "--docker-username", "--docker-password"), "kubectl"),
    **dict.fromkeys(("--delete-emptydir-data", "--ignore-daemonsets"), "kubectl"),
    **dict.fromkeys(("--cacert", "--connect-to"), "curl"),
    **dict.fromkeys(("--certificate-identity-regexp", "--certificate-oidc-issuer", "--repo"), "cosign, gh"),
    **dict.fromkeys(("--ignore-missing",), "sha256sum"),
    **dict.fromkeys(("--entrypoint", "--exclude", "--max-graceful-termination-sec"), "docker, hf, cluster-autoscaler"),
    **dict.fromkeys(("--enable-prompt-embeds", "--scheduling-policy", "--enable-expert-parallel"), "vllm"),
    **dict.fromkeys(("--load-format", "--pipeline-parallel-size", "--safetensors-load-strategy"), "vllm"),
    **dict.fromkeys(("--allowed-origins", "--enable-request-id-headers"), "vllm"),
    **dict.fromkeys(("--trust-request-chat-template", "--trust-request-mm-kwargs"), "vllm"),
    **dict.fromkeys(("--locked", "--require-hashes", "--no-deps", "--privileged", "--device", "--network"), "tools"),
}
"""Flags of other programs."""


def field_paths(schema: dict[str, Any], path: str) -> Iterator[str]:
    """The paths of all fields below a part of the CRD's schema; `*` stands for any key."""
    yield path
    for name, inner in (schema.get("properties") or {}).items():
        yield from field_paths(inner, f"{path}.{name}")
    for inner in (schema.get("items"), schema.get("additionalProperties")):
        if isinstance(inner, dict):
            yield from field_paths(inner, f"{path}.*" if inner is schema.get("additionalProperties") else path)
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        yield f"{path}.**"


@cache
def fields() -> set[str]:
    """Every path of a field, with and without `spec.` at its start."""
    (crd,) = (ROOT / "crds").glob("*.yaml")
    (version,) = yaml.safe_load(crd.read_text())["spec"]["versions"]
    root = version["schema"]["openAPIV3Schema"]["properties"]
    found = {p for name in ("spec", "status") for p in field_paths(root[name], name)}
    return found | {p.removeprefix("spec.") for p in found}


def is_field(path: str) -> bool:
    """Whether a path is a field, or lies within one that holds anything, or is its end after the name of a parent."""
    steps = [re.sub(r"\[.*\]$", "", step) for step in path.split(".")]
    for path_of_field in fields():
        pattern = path_of_field.split(".")
        if pattern[-1] == "**" and steps[: len(pattern) - 1] == pattern[:-1]:
            return True
        if len(pattern) == len(steps) and all(a in ("*", b) for a, b in zip(pattern, steps, strict=True)):
            return True
    return False


def chart_values() -> set[str]:
    """Every path of the chart's values."""

    def paths(value: Any, path: str) -> Iterator[str]:
        yield path
        if isinstance(value, dict):
            for name, inner in value.items():
                yield from paths(inner, f"{path}.{name}" if path else name)

    return set(paths(yaml.safe_load((ROOT / "charts" / "pdx" / "values.yaml").read_text()), ""))


def named_fields(text: str) -> set[str]:
    """The paths in a page that start with a field of spec or status."""
    starts = {path.partition(".")[0] for path in fields() if "." in path or path in ("spec", "status")}
    found = set()
    for span in re.findall(r"`([^`\n]+)`", text):
        for path in re.findall(r"(?<![\w./-])[a-z][A-Za-z]*(?:\.[a-z][A-Za-z]*(?:\[\w*\])?)+(?![\w/(-])", span):
            if path == "status.podIP":  # of Kubernetes' pods
                continue
            if path.partition(".")[0] in starts and not re.search(r"\.(ya?ml|py|md|json|txt|log|sh)$", path):
                found.add(path)
    return found


def test_the_field_that_a_runbook_once_named_is_found_missing() -> None:
    assert named_fields("Raise `gateway.limits.maxInFlightPerDecode`.") == {"gateway.limits.maxInFlightPerDecode"}
    assert not is_field("gateway.limits.maxInFlightPerDecode")
    assert is_field("routing.queue.maxInFlightPerDecode")
    assert is_field("spec.decode.podTemplate.spec.nodeSelector")


@pytest.mark.parametrize("page", [*DOCS, "alerts"], ids=lambda page: getattr(page, "name", page))
def test_every_field_exists(page: Path | str) -> None:
    text = rules_file() if isinstance(page, str) else page.read_text()
    values = chart_values()
    assert not {path for path in named_fields(text) if not is_field(path) and path not in values}


@cache
def flags() -> set[str]:
    """Every flag of PDX's programs, and vLLM's flags that PDX knows by name."""
    pdx, _ = parser_of((), "pdx", complete=True)
    found = {*pdx.flags, *OWNED_FLAGS, *REFUSED_FLAGS, *SHARED_FLAGS, *EXTERNAL_FLAGS}
    for each in (each for each in assumptions() if each.kind == "flag"):
        found |= {each.name, *(each.value if isinstance(each.value, list) else ())}
    for command in pdx.commands.values():
        found |= set(command.flags)
    for folder in (*CODE, "cluster", "images", "benchmarks", "scripts", "tests"):  # their parsers, and vLLM's flags
        for path in (ROOT / folder).rglob("*.py"):
            found |= set(re.findall(r"[\"' ](--[a-z][a-z-]+)", path.read_text(encoding="utf-8")))
    return found


@pytest.mark.machine  # a library of the parsers opens a socket at import
@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_every_flag_exists(page: Path) -> None:
    text = page.read_text()
    named = set(re.findall(r"(?<![\w-])(--[a-z][a-z-]*[a-z])\b", text))
    assert not named - flags()


@cache
def metrics() -> set[str]:
    """Every metric of gateway and operator, the series of histograms, and the recording rules."""
    pages = "".join(page() for page in PROGRAMS.values())
    names = set(re.findall(r"^# TYPE (\S+)", pages, re.MULTILINE))
    series = {f"{name}_{end}" for name in names for end in ("bucket", "sum", "count")}
    return names | series | set(re.findall(r"record: (\S+)", rules_file()))


def named_metrics(text: str) -> set[str]:
    """The metrics of PDX in a text; names of its packages are none."""
    return {
        name
        for name in re.findall(r"(?<![\w/.-])pdx_[a-z_]+[a-z](?![\w/.(-])", text)
        # Prometheus' names of Kubernetes' labels are `…_pdx_dev_…`.
        if not name.startswith("pdx_dev_") and name not in PACKAGES
    }


@pytest.mark.parametrize("page", [*DOCS, *DASHBOARDS, "alerts"], ids=lambda page: getattr(page, "name", page))
def test_every_metric_exists(page: Path | str) -> None:
    text = rules_file() if isinstance(page, str) else page.read_text()
    if isinstance(page, Path) and page.suffix == ".json":
        text = json.dumps(json.loads(text))
    named = {name for name in named_metrics(text) if not any(m.startswith(f"{name}_") for m in metrics())}
    assert not named - metrics()


@cache
def strings_of_the_code() -> set[str]:
    """Every word in CamelCase in a string of the programs: conditions, reasons, causes, values of fields."""
    found = {*CONNECTORS, *re.findall(r"alert: (\w+)", rules_file())}
    for path in (path for folder in CODE for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found |= set(re.findall(r"\w+", node.value))
            elif isinstance(node, ast.ClassDef):
                found.add(node.name)
    return found


KUBERNETES = {
    *("ConfigMapNotFound", "ContainerCreating", "ClusterRole", "ClusterRoleBinding", "ConfigMap"),
    *("CrashLoopBackOff", "ServiceMonitor", "PodMonitor", "RunAsAny"),
    *("PrometheusRule", "ImagePullBackOff", "ErrImagePull", "LimitRange", "ResourceQuota", "StorageClass"),
    *("HorizontalPodAutoscaler", "ReadWriteMany", "ReadOnlyMany", "PersistentVolumeClaim", "OOMKilled"),
    *("SecurityContextConstraints", "AuthorizationPolicy", "PeerAuthentication", "DestinationRule", "ServiceAccount"),
}
"""Kinds and reasons of Kubernetes and of a mesh."""
REASONED = ("operator.md", "doctor.md", "observability.md", "troubleshooting.md")


@pytest.mark.parametrize("page", [p for p in DOCS if p.name in REASONED or "runbooks" in p.parts], ids=lambda p: p.name)
def test_every_condition_and_reason_exists(page: Path) -> None:
    spans = re.findall(r"`([^`\n]+)`", page.read_text())
    named = {word for span in spans for word in re.findall(r"(?<![\w/.-])(?:[A-Z]+[a-z]+){2,}(?![\w/.(-])", span)}
    assert not named - strings_of_the_code() - KUBERNETES


def test_every_answer_of_the_gateway_that_the_page_quotes_exists() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    rows = page[page.index("| answer |") :].split("\n\n")[0].splitlines()[2:]
    quoted = {part for row in rows for text in re.findall(r'"([^"]+)"', row.split("|")[1]) for part in text.split("…")}
    code = " ".join(path.read_text() for path in (ROOT / "proxy" / "pdx_proxy").rglob("*.py"))
    assert len(quoted) > 8
    assert {part.strip() for part in quoted} - {""} == {
        part.strip() for part in quoted if part.strip() and part.strip() in code
    }
