"""Write the generated files, or report which differ: `python -m scripts.generate [--check]`."""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final

import yaml

from benchmarks.versions.__main__ import read as campaign_results
from pdx_api.names import GROUP, PLURAL
from pdx_api.spec.schema import object_schema
from scripts.alerts import rules_file
from scripts.api_parameters import api_parameters
from scripts.architecture import problems
from scripts.chart_values import chart_values, described
from scripts.command_line import command_line
from scripts.contents import contents
from scripts.crd import custom_resource_definition
from scripts.dashboards import dashboards
from scripts.doctor_svg import figure
from scripts.failures import failures
from scripts.fault_table import fault_table
from scripts.promises import promises
from scripts.reference import reference
from scripts.release import names, notes
from scripts.release.chart import metadata
from scripts.settling import settling
from scripts.site.pages import sources
from scripts.style import style
from scripts.vllm_versions import contract, versions

ROOT: Final = Path(__file__).parents[1]
CHART: Final = ROOT / "charts" / "pdx"
CRD: Final = Path("crds") / f"{GROUP}_{PLURAL}.yaml"
CHART_CRDS: Final = Path("charts") / "pdx" / "files" / "crds"
"""The chart's templates read the CRDs from here, because Helm cannot read files outside a chart."""
RULES: Final = Path("charts") / "pdx" / "files" / "alerts" / "pdx.rules.yaml"
CHART_DASHBOARDS: Final = Path("charts") / "pdx" / "files" / "dashboards"

CHART_METADATA: Final = Path("charts") / "pdx" / "Chart.yaml"
CHART_SCHEMA: Final = Path("charts") / "pdx" / "values.schema.json"
CHART_EXAMPLES: Final = ("qwen", "push", "aggregated")
"""The examples that Artifact Hub shows for the CRD."""
EXAMPLE: Final = Path("examples") / "tiny-cpu.yaml"
CLI_EXAMPLE: Final = Path("cli") / "pdx_cli" / "local" / "example.yaml"
"""What `pdx up` runs if no file is named: the wheel has no folder of examples."""
PUBLISHED: Final = (
    *("README.md", "docs/**/*.md", "charts/pdx/README.md", "charts/pdx/values.yaml", "packaging/pypi.md"),
    *("pyproject.toml", "api/pdx_api/defaults.py"),
)
"""Files that state published names."""
VERSIONED: Final = (
    "install.md",
    "releasing.md",
    "operator/platforms.md",
    "gpu/whole-object.md",
    "tutorials/gpu-cluster.md",
)
"""Pages below docs/ that state the version."""

_HEAD: Final = "# Written by `make generate` from api/pdx_api.\n"


def generated(root: Path) -> Mapping[Path, str]:
    """The text of every generated file, by its path in the checkout."""
    crd = _HEAD + yaml.safe_dump(custom_resource_definition(), sort_keys=False, width=120, allow_unicode=True)
    matrix = Path("docs") / "failure-matrix.md"
    api = Path("docs") / "api.md"
    guide = Path("docs") / "style.md"
    promised = Path("docs") / "security-tests.md"
    supported = Path("docs") / "versions.md"
    settled = Path("docs") / "settling.md"
    alerts = Path("docs") / "observability.md"
    files = {
        CRD: crd,
        Path("docs") / "reference.md": reference(object_schema()),
        matrix: failures(_read(root / matrix) or ""),
        supported: versions(_read(root / supported) or "", campaign_results()),
        Path("docs") / "vllm-contract.md": contract(),
        settled: settling(_read(root / settled) or ""),
        alerts: fault_table(_read(root / alerts) or ""),
        RULES: rules_file(),
        api: api_parameters(_read(root / api) or ""),
        guide: style(_read(root / guide) or ""),
        promised: promises(_read(root / promised) or ""),
        Path("docs") / "reference-chart.md": _chart_values(CHART),
        Path("docs") / "reference-cli.md": command_line(),
        **{CHART_DASHBOARDS / name: text for name, text in dashboards().items()},
        CHART_SCHEMA: _described(CHART),
        Path("docs") / "doctor.svg": figure(_read(root / "docs" / "tutorials" / "break-it.md") or ""),
        CLI_EXAMPLE: _read(root / EXAMPLE) or "",
    }
    files |= _named(root, files)
    if (root / CHART_CRDS).is_dir():
        files[CHART_CRDS / CRD.name] = crd
    pages = {source: _read(root / source) or "" for source in sources(root)}
    texts = {PurePosixPath(path): text for path, text in files.items() if path.suffix == ".md"}
    pages |= {page: text for page, text in texts.items() if page.parts[0] != "packaging"}
    index = Path("docs") / "index.md"
    return {**files, index: contents(pages.get(PurePosixPath(index), ""), pages)}


def _named(root: Path, files: Mapping[Path, str]) -> Mapping[Path, str]:
    """The chart's metadata, and every file that states a published name, with the names of the release."""
    chart = _read(root / CHART_METADATA)
    if chart is None:
        return {}
    new = names.read(root)
    old = names.stated(chart, new.registry)
    found = {path.relative_to(root) for pattern in PUBLISHED for path in root.glob(pattern)}
    texts = {path: names.with_owner(files.get(path) or _read(root / path) or "", old, new) for path in sorted(found)}
    texts |= {path: names.with_version(texts[path], old, new) for path in (Path("docs") / each for each in VERSIONED)}
    changes = notes.changes(notes.section(_read(root / "CHANGELOG.md") or "", new.version))
    examples = [_read(root / "examples" / f"{name}.yaml") or "" for name in CHART_EXAMPLES]
    return {**texts, CHART_METADATA: metadata(new, changes, examples)}


def _chart_values(chart: Path) -> str:
    return chart_values(*_values_and_schema(chart))


def _described(chart: Path) -> str:
    return described(*_values_and_schema(chart))


def _values_and_schema(chart: Path) -> tuple[str, Mapping[str, Any]]:
    schema = json.loads((chart / "values.schema.json").read_text(encoding="utf-8"))
    return (chart / "values.yaml").read_text(encoding="utf-8"), schema


def main() -> int:
    """Write the files, or compare them with --check; return the exit code."""
    parser = argparse.ArgumentParser(description="Write the generated files.")
    parser.add_argument("--check", action="store_true", help="only report which files differ")
    check = parser.parse_args().check
    differing = {path: text for path, text in generated(ROOT).items() if _read(ROOT / path) != text}
    if check:
        found = list(problems(_read(ROOT / "ARCHITECTURE.md") or "", ROOT))
        found += [f"{path} is out of date; run: make generate" for path in differing]
        sys.stderr.writelines(f"{line}\n" for line in found)
        return 1 if found else 0
    for path, text in differing.items():
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(text, encoding="utf-8")
        sys.stdout.write(f"{path}\n")
    return 0


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


if __name__ == "__main__":
    sys.exit(main())
