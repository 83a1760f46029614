"""The section of CHANGELOG.md for one version: the notes of its release, and the chart's list of changes. Pure."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

KINDS: Final = ("added", "changed", "deprecated", "removed", "fixed", "security")
"""What Artifact Hub accepts."""
_LINK: Final = re.compile(r"\[([^]]+)\]\(((?!https?:)[^)#\s]*)(#[^)\s]*)?\)")


@dataclass(frozen=True, slots=True)
class Section:
    """What the changelog says of one version."""

    date: str
    """`unreleased`, or a date."""
    text: str


def section(changelog: str, version: str) -> Section:
    """Return the section of a version; raises ValueError."""
    pattern = rf"^## {re.escape(version)} \(([^)]+)\)\n(.*?)(?=^## |\Z)"
    match = re.search(pattern, changelog, re.MULTILINE | re.DOTALL)
    if match is None:
        raise ValueError(f"CHANGELOG.md has no section `## {version} (date)`; add it")
    return Section(match[1], match[2].strip() + "\n")


def changes(found: Section) -> Iterator[tuple[str, str]]:
    """The kind and the plain text of each change."""
    kind = KINDS[0]
    for line in found.text.splitlines():
        if line.startswith("### "):
            heading = line[4:].lower()
            kind = heading if heading in KINDS else KINDS[0]
        elif line.startswith("* "):
            yield kind, plain(line[2:])


def plain(text: str) -> str:
    """Text without the marks of Markdown and without references in parentheses."""
    text = re.sub(r" \(\[[^]]+\]\([^)]*\)\)", "", text)
    return re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", text).replace("`", "")


def absolute(text: str, base: str) -> str:
    """Markdown whose links to files of the checkout lead to the repository's page at `base`."""
    return _LINK.sub(lambda match: f"[{match[1]}]({base}/{match[2]}{match[3] or ''})", text)
