"""A connector is one file: an invented one works end to end, and no other file names it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]

PIGEON = """
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pdx_api.connectors.base import Connector, EngineWiring, Site
from pdx_api.connectors.checks import Checks, number, without_flag
from pdx_api.connectors.families import Family, Pull
from pdx_api.names import Order, Role
from pdx_api.rule import Rule

_CHECKS: Final = Checks(
    settings=(number("wing_beats", "how fast it flies, in beats a second.", least=1, most=9, unit="beats"),),
    transfer=(Rule("!has(self.poolSize)", "pigeons carry; leave out poolSize", lambda kv: kv.pool_size is None),),
    spec=(without_flag(("--enforce-eager",), "pigeons are lazy"),),
)


@dataclass(frozen=True, slots=True)
class Pigeon(Connector):
    name: str = "Pigeon"
    orders: tuple[Order, ...] = (Order.PREFILL_FIRST,)
    port_names: Mapping[str, int] = field(default_factory=lambda: {"loft": 1896}, hash=False)
    checks: Checks = _CHECKS

    def engine(self, role: Role, order: Order, site: Site, config: Mapping[str, Any]) -> EngineWiring:
        wired = {"kv_connector": "PigeonConnector", "kv_role": "kv_both", "kv_connector_extra_config": dict(config)}
        return EngineWiring(wired, {"PIGEON_LOFT": str(site.ports["loft"])})

    def family(self, order: Order) -> Family:
        return Pull({"do_remote_decode": True, "loft": "home"})


CONNECTOR: Final = Pigeon()
"""


def test_a_connector_is_one_file(tmp_path: Path) -> None:
    package = tmp_path / "pdx_api"
    shutil.copytree(ROOT / "api" / "pdx_api", package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "connectors" / "pigeon.py").write_text(PIGEON)
    # Site-packages come after the test's own path, wherever this Python finds the other packages.
    path = [str(tmp_path), *filter(None, sys.path)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.component.handoff.made_up", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
