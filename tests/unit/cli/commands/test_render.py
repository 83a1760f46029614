"""`pdx render`: what it refuses that only the rendered manifests show."""

from pathlib import Path

import pytest
import yaml

from pdx_cli.main import main

OBJECT = """\
apiVersion: pdx.dev/v1alpha1
kind: PDDeployment
metadata: {name: qwen}
spec:
  model: {name: Qwen/Qwen3-8B}
  prefill: {}
  decode: {resources: {limits: {rdma/hca: 1}}}
"""


def test_half_of_rdma_is_refused_with_what_to_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "half.yaml"
    file.write_text(OBJECT)
    assert main(["render", str(file)]) == 2
    error = capsys.readouterr().err
    assert "the decode engines get rdma/hca and could not lock memory for it" in error
    assert "write spec.engine.rdma: {resource: rdma/hca}" in error
    assert len(error.splitlines()) == 1


def test_a_route_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "whole.yaml"
    file.write_text(OBJECT)
    route = "spec.gateway.httpRoute={parentRefs: [{name: public}], hostnames: [llm.example.com]}"
    assert main(["render", str(file), "--set", "spec.engine.rdma={}", "--set", route]) == 0
    found = {each["kind"]: each for each in yaml.safe_load_all(capsys.readouterr().out)}
    assert found["HTTPRoute"]["spec"]["hostnames"] == ["llm.example.com"]


@pytest.mark.parametrize(
    ("changes", "roles"),
    [
        ((), ["prefill", "decode"]),
        (("spec.prefill.resources={limits: {nvidia.com/gpu: 1}}",), ["decode"]),
        (("spec.engine.image=registry.example/vllm-cpu:v0.32.0",), []),
        (("spec.mode=Aggregated", "spec.aggregated={replicas: 1}"), ["aggregated"]),
        (
            (
                "spec.engine.rdma={}",
                "spec.prefill.podTemplate={spec: {containers: [{name: engine, resources: {claims: [{name: gpu}]}}]}}",
                "spec.decode.resources={requests: {amd.com/gpu: 1}, limits: {amd.com/gpu: 1}}",
            ),
            [],
        ),
    ],
)
def test_roles_without_devices_are_named(
    changes: tuple[str, ...], roles: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "qwen.yaml"
    file.write_text(OBJECT.replace("{resources: {limits: {rdma/hca: 1}}}", "{}"))
    assert main(["render", str(file), *(each for change in changes for each in ("--set", change))]) == 0
    out, warnings = capsys.readouterr()
    found = [line.partition(": spec.")[2].partition(".")[0] for line in warnings.splitlines()]
    assert found == roles
    assert warnings.count("requests no device, and vllm/vllm-openai:") == len(roles)
    assert "requests no device" not in out
