"""Golden manifests of specs: `tests/unit/golden/X.spec.yaml` -> `X.yaml`.

`REWRITE=1 .venv/bin/pytest tests/unit/operator/render/test_golden.py` writes the golden files again.
"""

import os
from pathlib import Path

import pytest
import yaml

from pdx_api.spec.parse import parse
from pdx_cli.display.manifests import to_yaml
from tests.unit.operator.render.manifests_of import manifests_of

GOLDEN = Path(__file__).parents[2] / "golden"
SPECS = sorted(GOLDEN.glob("*.spec.yaml"))


@pytest.mark.parametrize("spec", SPECS, ids=lambda path: path.name.split(".")[0])
def test_a_spec_renders_its_golden_file(spec: Path) -> None:
    deployment = parse(yaml.safe_load(spec.read_text()))
    uid = "00000000-0000-0000-0000-000000000001"
    rendered = to_yaml(manifests_of(deployment, uid, gateway_image="pdx-gateway:golden"))
    golden = spec.with_name(spec.name.replace(".spec", ""))
    if os.environ.get("REWRITE"):
        golden.write_text(rendered)
    assert rendered == golden.read_text(), "the manifests have changed; if that is intended, see the head of this file"
