"""What real engines need on this machine."""

from pathlib import Path

import pytest

from pdx_cli.errors import CommandError, InputError
from pdx_cli.inputs.document import load
from pdx_cli.local.requirements import check_vllm, missing_variables

CUSTOM = Path(__file__).parents[4] / "examples" / "connectors" / "custom.yaml"
TINY = Path(__file__).parents[4] / "examples" / "tiny-cpu.yaml"


def test_missing_program_of_a_side_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "pdx_cli.local.requirements.shutil.which", lambda name, path: None if name == "lmcache" else name
    )
    deployment = load(TINY, ["spec.kvTransfer={connector: LMCache}"])
    with pytest.raises(CommandError, match=r"needs the program lmcache, .* run `make install-lmcache`"):
        check_vllm(deployment.spec)


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (
            "{configMap: {name: x}}",
            "spec.kvTransfer.custom.code.configMap is an object of a cluster; name a directory here",
        ),
        ("{directory: /nowhere}", "spec.kvTransfer.custom.code.directory: /nowhere is not a directory; name one on"),
        ("{directory: 's3://b/x'}", "spec.kvTransfer.custom.code.directory: s3://b/x is not a directory; name one on"),
    ],
)
def test_missing_connector_code(code: str, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pdx_cli.local.requirements.shutil.which", lambda *_, **__: "/bin/vllm")
    with pytest.raises(InputError) as raised:
        check_vllm(load(CUSTOM, [f"spec.kvTransfer.custom.code={code}"]).spec)
    assert str(raised.value).startswith(sentence)


def test_variables_of_a_cluster_that_are_not_set_here() -> None:
    source = "valueFrom: {secretKeyRef: {name: hub, key: token}}"
    spec = load(TINY, [f"spec.engine.env=[{{name: A, value: b}}, {{name: TOKEN, {source}}}]"]).spec
    assert missing_variables(spec, {"TOKEN": "t"}) == []
    assert missing_variables(spec, {"A": "a"}) == [
        "spec.engine.env: TOKEN is not set, so the engines start without it. Its valueFrom is an object of a cluster; "
        "set TOKEN in the environment of `pdx up`."
    ]
    (warning,) = missing_variables(load(TINY, [f"spec.decode.env=[{{name: KEY, {source}}}]"]).spec, {})
    assert warning.startswith("spec.decode.env: KEY is not set")


@pytest.mark.parametrize("name", ["/nowhere/qwen", "./nowhere"])
def test_a_missing_model_that_is_named_by_its_path(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM would fail with a message about names on the Hub, after its imports."""
    monkeypatch.setattr("shutil.which", lambda *_, **__: "/bin/vllm")
    with pytest.raises(InputError, match=f"There is no model at {name}; create a tiny one with"):
        check_vllm(load(TINY, ["spec.model.source=null", f"spec.model.name={name}"]).spec)
    check_vllm(load(TINY, ["spec.model.source=null", "spec.model.name=Qwen/Qwen3-0.6B"]).spec)


def test_a_clusters_volume(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: "/bin/vllm")
    deployment = load(TINY, ["spec.model.source={persistentVolumeClaim: {claimName: models}}"])
    with pytest.raises(InputError, match="persistentVolumeClaim is a volume of a cluster; name a directory here: "):
        check_vllm(deployment.spec)
