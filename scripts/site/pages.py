"""Which files of the checkout are pages, where each stands in the site, and the navigation. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any, Final

OUTSIDE: Final[Mapping[str, str]] = {
    "README.md": "project/overview.md",
    "CHANGELOG.md": "project/changelog.md",
    "SECURITY.md": "project/security-policy.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CODE_OF_CONDUCT.md": "project/code-of-conduct.md",
    "ROADMAP.md": "project/roadmap.md",
    "ARCHITECTURE.md": "project/architecture.md",
    "charts/pdx/README.md": "project/chart.md",
}
"""Pages outside docs/, which stand at other places in the site."""

GLOBS: Final = ("docs/**/*.md", *OUTSIDE, "benchmarks/**/README.md", "requirements/*.md")
"""The files that are pages."""


@dataclass(frozen=True, slots=True)
class Section:
    """An entry of the navigation. A page belongs to the first section with a pattern that fits."""

    title: str
    patterns: tuple[str, ...] = ()
    sections: tuple["Section", ...] = ()


NAVIGATION: Final = (
    Section("Home", ("index.md", "project/overview.md")),
    Section("Tutorials", ("tutorials/laptop.md", "tutorials/gpu-cluster.md", "tutorials/break-it.md", "tutorials/*")),
    Section(
        "How-to guides",
        sections=(
            Section(
                "Plan",
                ("should-i-split.md", "how-to/sizing.md", "how-to/connectors.md", "recipes.md"),
            ),
            Section("GPU clusters", ("gpu-clusters.md", "gpu/whole-object.md", "gpu/*")),
            Section(
                "Install and upgrade",
                (
                    *("install.md", "how-to/upgrade.md", "how-to/move-release.md", "how-to/air-gapped.md"),
                    "how-to/gitops.md",
                ),
            ),
            Section(
                "Run",
                (
                    *("how-to/ingress-and-tls.md", "proxies.md", "how-to/tenants.md", "how-to/observability.md"),
                    *("how-to/tuning.md", "how-to/benchmarking.md", "how-to/*"),
                ),
            ),
            Section("Runbooks of alerts", ("runbooks/*",)),
        ),
    ),
    Section("Troubleshooting", ("troubleshooting.md", "faq.md", "glossary.md")),
    Section(
        "Reference",
        sections=(
            Section(
                "Kubernetes",
                (
                    "reference.md",
                    "operator.md",
                    "operator/*",
                    "reference-chart.md",
                    "project/chart.md",
                    "observability.md",
                    "observability/*",
                ),
            ),
            Section(
                "Gateway",
                ("api.md", "gateway.md", "gateway/*", "requests-at-fault.md", "failures.md", "failure-matrix*"),
            ),
            Section("Command line", ("reference-cli.md", "doctor.md", "top.md")),
            Section("Connectors", ("connectors/README.md", "connectors/nixl.md", "connectors/[!w]*")),
            Section(
                "Releases", ("versions.md", "vllm-contract.md", "project/changelog.md", "project/security-policy.md")
            ),
        ),
    ),
    Section(
        "Explanation",
        (
            *("explanation/why-split.md", "explanation/request-flow.md", "explanation/pull-push-pool.md"),
            *("explanation/*", "settling.md", "security.md", "security-tests.md", "compare.md"),
        ),
    ),
    Section(
        "Contributing",
        (
            *("project/contributing.md", "project/roadmap.md", "project/architecture.md"),
            *("project/code-of-conduct.md", "style.md", "cluster.md", "releasing.md"),
            "connectors/write-your-own.md",
        ),
        (Section("Benchmarks", ("project/benchmarks/*",)), Section("Dependencies", ("project/requirements/*",))),
    ),
)


def sources(root: Path) -> tuple[PurePosixPath, ...]:
    """The pages of the checkout, relative to its root."""
    found = {path.relative_to(root) for pattern in GLOBS for path in root.glob(pattern)}
    return tuple(sorted(PurePosixPath(path) for path in found))


def place(source: PurePosixPath) -> PurePosixPath:
    """Where a page or an image of the checkout stands in the site."""
    if (fixed := OUTSIDE.get(str(source))) is not None:
        return PurePosixPath(fixed)
    if source.parts[0] == "docs":
        return source.relative_to("docs")
    return PurePosixPath("project") / source


def navigation(places: Sequence[PurePosixPath]) -> list[dict[str, Any]]:
    """MkDocs' `nav` with all of these places; raises ValueError for one that no section takes."""
    rest = [str(path) for path in places]
    found = [_entry(section, rest) for section in NAVIGATION]
    if rest:
        raise ValueError(f"no section of scripts/site/pages.py takes {', '.join(rest)}")
    return [entry for entry in found if entry]


def _entry(section: Section, rest: list[str]) -> dict[str, Any]:
    """One section as MkDocs takes it, without pages that do not exist; removes its pages from the rest."""
    pages = list(_taken(section.patterns, rest))
    inner = [entry for each in section.sections if (entry := _entry(each, rest))]
    return {section.title: [*pages, *inner]} if pages or inner else {}


def _taken(patterns: Sequence[str], rest: list[str]) -> Iterator[str]:
    for pattern in patterns:
        for page in [each for each in rest if fnmatchcase(each, pattern)]:
            rest.remove(page)
            yield page
