"""Which environment variables a support bundle shows."""

import ast
import importlib.util
from importlib.metadata import version
from pathlib import Path

import pytest

from pdx_cli.support.harmless_variables import OTHERS, VLLM
from pdx_cli.support.secret_names import is_harmless_variable, is_secret


def names_of_vllm() -> set[str]:
    """The variables that vLLM 0.32 reads."""
    found = importlib.util.find_spec("vllm")
    if found is None or found.origin is None or not version("vllm").startswith("0.32."):
        pytest.skip("vLLM 0.32 is not installed")
    tables = [
        node
        for node in ast.walk(ast.parse(Path(found.origin).with_name("envs.py").read_text()))
        if isinstance(node, ast.Dict)
    ]
    largest = max(tables, key=lambda table: len(table.keys))
    keys = {key.value for key in largest.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}
    return {key for key in keys if key.startswith("VLLM_")}


def test_those_of_vllm_are_shown_but_for_secrets() -> None:
    names = names_of_vllm()
    assert len(names) > 200
    assert {name for name in names if not is_secret(name)} == VLLM


@pytest.mark.parametrize("name", ["LMCACHE_CHUNK_SIZE", "MC_FORCE_TCP", "NCCL_DEBUG", "KUBERNETES_SERVICE_HOST"])
def test_those_of_others_are_shown(name: str) -> None:
    assert is_harmless_variable(name)


@pytest.mark.parametrize(
    "name",
    [
        *(f"{prefix}_STARTUP_VALUE" for prefix in ("VLLM", "LMCACHE", "MOONCAKE", "MC", "PDX", "RAY", "KUBERNETES")),
        *("VLLM_API_KEY", "LMCACHE_RESP_PASSWORD", "MC_REDIS_PASSWORD"),
    ],
)
def test_others_of_their_prefixes_are_removed(name: str) -> None:
    assert not is_harmless_variable(name)


def test_no_secret_is_on_the_list() -> None:
    assert not [name for name in (*VLLM, *OTHERS) if is_secret(name)]
