"""The images from the Dockerfiles: their content, and that they run on a read-only file system."""

import json

from images.build import ROOT, project_version
from tests.images.conftest import Image

PROGRAMS = {"operator": "pdx_operator", "gateway": "pdx_proxy"}
STARTS = {"operator": "pdx_operator.app.main", "gateway": "pdx_proxy.__main__"}
LIMIT_BYTES = 120_000_000
MODULES = ("pdx_api", "pydantic", "yaml", "aiohttp", "kubernetes.aio.dynamic", "prometheus_client")
OPERATORS_ALONE = ("pdx_operator", "kopf")
GATEWAYS_ALONE = ("pdx_proxy", "uvloop", "httptools", "orjson")
NOBODYS = ("pdx_cli", "pdx_sim", "rich", "pip", "hatchling", "torch", "vllm", "pytest")
TOOLS = ("pip", "pip3", "uv", "gcc", "cc", "make", "git", "curl", "pdx")
IMPORTED = """
import importlib, json, sys
imported = []
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
        imported.append(name)
    except ModuleNotFoundError:
        pass
print(json.dumps(imported))
"""
UNCOMPILED = """
import importlib, json, sys
importlib.import_module(sys.argv[1])
from pathlib import Path
files = [module.__cached__ for module in sys.modules.values() if getattr(module, "__cached__", None)]
print(json.dumps(sorted(file for file in files if not Path(file).exists())))
"""


def test_an_image_is_below_120_mb_compressed(image: Image) -> None:
    layers = list(image.built.layer_bytes.values())

    assert sum(layers) < LIMIT_BYTES
    assert sum(layers[-3:]) < 30_000_000, "what PDX adds to the base"


def test_a_container_runs_without_privilege_by_number(image: Image) -> None:
    assert image.config["User"] == "65532:65532"  # Kubernetes' runAsNonRoot understands numbers only
    assert image.run("id", "-u").stdout == "65532\n"


def test_the_entrypoint_is_the_program(image: Image) -> None:
    assert image.config["Entrypoint"][1:] == ["-m", PROGRAMS[image.name]]
    assert not image.config.get("Cmd")


def test_labels(image: Image) -> None:
    labels = image.config["Labels"]

    assert labels["org.opencontainers.image.title"] == f"pdx-{image.name}"
    assert labels["org.opencontainers.image.version"] == "test"
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"


def test_help_runs_where_nothing_can_be_written(image: Image) -> None:
    done = image.start("--help")

    assert (done.returncode, done.stderr) == (0, "")
    assert f"python -m {PROGRAMS[image.name]}" in done.stdout
    assert image.run("python", "-c", "open('/tmp/x', 'w')").returncode == 1


def test_an_image_holds_its_programs_modules_and_no_others(image: Image) -> None:
    done = image.run("python", "-c", IMPORTED, *MODULES, *OPERATORS_ALONE, *GATEWAYS_ALONE, *NOBODYS)
    own = OPERATORS_ALONE if image.name == "operator" else GATEWAYS_ALONE

    assert json.loads(done.stdout) == [*MODULES, *own], done.stderr


def test_an_image_holds_no_tool_that_installs_or_builds(image: Image) -> None:
    assert image.run("sh", "-c", f"for tool in {' '.join(TOOLS)}; do command -v $tool; done; true").stdout == ""


def test_the_installed_version_is_the_checkouts(image: Image) -> None:
    done = image.run("python", "-c", "from importlib.metadata import version; print(version('pdx-serving'))")

    assert done.stdout.strip() == project_version(ROOT)


def test_whatever_a_start_imports_is_compiled(image: Image) -> None:
    done = image.run("python", "-c", UNCOMPILED, STARTS[image.name])

    assert json.loads(done.stdout) == [], done.stderr
