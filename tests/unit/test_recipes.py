"""The page of recipes lists the objects of examples/gpu as they are, and their arithmetic is that of the models."""

import importlib.util
import re
from pathlib import Path

import pytest
import yaml

from pdx_api.spec.parse import parse
from pdx_api.spec.types import PDDeployment, Pool
from tests.documents import ROOT

RECIPES = sorted((ROOT / "examples" / "gpu").glob("*.yaml"))
PAGE = (ROOT / "docs" / "recipes.md").read_text()
ROWS = {
    match[1]: [cell.strip() for cell in match[0].strip("|").split("|")]
    for match in re.finditer(r"^\| .*\(\.\./examples/gpu/([\w.-]+)\).*\|$", PAGE, re.MULTILINE)
}
KV_KIB = {"openai/gpt-oss-120b": (36, 8, 64), "meta-llama/Llama-3.3-70B-Instruct": (80, 8, 128)}
"""Model -> layers, KV heads, size of a head."""


def _parsed(path: Path) -> PDDeployment:
    return parse(yaml.safe_load(path.read_text()))


def _gpus(pool: Pool) -> int:
    return int(str(pool.resources.limits["nvidia.com/gpu"]))


def test_the_page_lists_every_recipe() -> None:
    assert sorted(ROWS) == [path.name for path in RECIPES]
    assert "None of these recipes was\nrun" in PAGE


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_the_row_is_that_of_the_object(path: Path) -> None:
    spec = _parsed(path).spec
    assert spec.prefill is not None
    assert spec.decode is not None
    hardware, _, _, *split, kv = ROWS[path.name]
    engines = [(pool.replicas, _gpus(pool)) for pool in (spec.prefill, spec.decode)]
    assert [tuple(map(int, re.findall(r"\d+", cell))) for cell in split] == engines
    assert re.match(r"(\d+) . H100 80 GB", hardware)[1] == str(sum(count * gpus for count, gpus in engines if count))  # type: ignore[index]
    for pool in (spec.prefill, spec.decode):
        assert pool.parallelism.tensor == _gpus(pool)
    layers, heads, size = KV_KIB[spec.model.name]
    assert kv == f"{layers * 2 * heads * size * 2 // 1024} KiB"


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_states_that_it_was_not_run_and_its_arithmetic(path: Path) -> None:
    head = path.read_text().partition("apiVersion")[0]
    assert "Not run: PDX was never run on several GPUs." in head
    for word in ("Weights", "per token", "Prefill", "ecode"):
        assert word in head


def test_the_geometry_of_gpt_oss_is_that_of_transformers() -> None:
    """Read from the file: an import would load torch."""
    found = importlib.util.find_spec("transformers")
    if found is None or found.origin is None:
        pytest.skip("transformers is not installed: run `make install`")
    text = (Path(found.origin).parent / "models/gpt_oss/configuration_gpt_oss.py").read_text()
    names = ("num_hidden_layers", "num_key_value_heads", "head_dim")
    numbers = tuple(int(re.search(rf"{name}: int = (\d+)", text)[1]) for name in names)  # type: ignore[index]
    assert numbers == KV_KIB["openai/gpt-oss-120b"]
    experts = 36 * 128 * 3 * 2880 * 2880
    assert f"{experts / 1e9:.1f} billion" in (ROOT / "examples/gpu/gpt-oss-120b-16xh100.yaml").read_text()
    assert f"{experts * 4.25 / 8 / 1e9:.1f} GB" in (ROOT / "examples/gpu/gpt-oss-120b-16xh100.yaml").read_text()
