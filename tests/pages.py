"""The commands that README, tutorials and how-to pages show, and the outputs that they show for them.

A fenced block `sh` holds commands. The next block `text` or `json` is their output. A comment on the line above a block
of commands states what is special about it (`Mark`); several marks are separated by `;`.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from tests.documents import ROOT

TUTORIALS: Final = tuple(sorted((ROOT / "docs" / "tutorials").glob("*.md")))
HOW_TO: Final = tuple(sorted((ROOT / "docs" / "how-to").glob("*.md")))
PAGES: Final = (ROOT / "README.md", *TUTORIALS, *HOW_TO)


class Mark(StrEnum):
    """What is special about a block of commands."""

    CLUSTER = "needs a cluster"
    GPU_CLUSTER = "needs a GPU cluster"
    """Its commands are checked, and not run."""
    NOT_RUN = "not run"
    """The same, with a reason after a colon."""
    FOREGROUND = "runs until Ctrl-C"
    REPEAT = "repeat until it prints this"
    """It is run again until its output is the one shown."""
    FAILS = "exits with"
    """Its exit code follows."""
    CTRL_C = "press Ctrl-C"
    """No block: the reader ends what runs in the foreground."""


@dataclass(slots=True)
class Block:
    """A block of commands, or the moment at which a reader presses Ctrl-C (no commands)."""

    page: Path
    line: int
    commands: str = ""
    marks: dict[Mark, str] = field(default_factory=dict)
    """With the text that follows the mark."""
    output: str = ""
    """What the page shows; empty if it shows nothing."""

    @property
    def runs_here(self) -> bool:
        """Whether a test can run it without a cluster."""
        return not self.marks.keys() & {Mark.CLUSTER, Mark.GPU_CLUSTER, Mark.NOT_RUN}

    @property
    def code(self) -> int:
        """The exit code that it must have."""
        return int(self.marks.get(Mark.FAILS, "0"))

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


_PART: Final = re.compile(
    r"^<!-- (?P<comment>.*?) -->$|^ *```(?P<language>\w*)\n(?P<body>.*?)^ *```$", re.MULTILINE | re.DOTALL
)


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, in their order. Raises ValueError for a page that marks nothing, or a block twice."""
    text = page.read_text(encoding="utf-8")
    found: list[Block] = []
    marks: dict[Mark, str] = {}
    end = 0
    for part in _PART.finditer(text):
        line = text.count("\n", 0, part.start()) + 1
        if part["comment"] is not None:
            marks, end = _marks(part["comment"]), part.end()
            if Mark.CTRL_C in marks:
                found.append(Block(page, line, marks=marks))
        elif part["language"] == "sh":
            above = marks if not text[end : part.start()].strip() else {}
            found.append(Block(page, line, part["body"], above))
        elif part["language"] in ("text", "json") and found and not found[-1].output:
            found[-1].output = part["body"]
    return found


def _marks(comment: str) -> dict[Mark, str]:
    found = {}
    for part in comment.split(";"):
        for mark in Mark:
            if part.strip().startswith(mark):
                found[mark] = part.strip().removeprefix(mark).strip(" :")
    return found


_VARIABLE: Final = (
    (re.compile(r"\b\d{1,2}:\d\d:\d\d\b"), "TIME"),
    (re.compile(r"\b\d[\d.]* ?(?:ns|µs|ms|s|min|h)\b"), "TIME"),
    (re.compile(r"(?:TIME )+TIME"), "TIME"),
    (re.compile(r"\b\d+ of (\d+) prompt tokens"), lambda match: _of(match[0])),
    (re.compile(r"\b(?=[0-9a-f]*\d)[0-9a-f]{8,}(?:-[0-9a-f]+)*\b"), "ID"),
    (re.compile(r"\bfor \d+ \+"), "for N +"),
    (re.compile(r"\b\d+(?= +http://)"), "N"),  # a process ID
    (re.compile(r"\b\d{5,}\b|(?<![:\d])\d{4}\b"), "N"),
    (re.compile(r"(?<![\d.])\d+\.\d+(?![\d.])"), "N"),
    (re.compile(r"[ \t]+"), " "),
)


def _of(text: str) -> str:
    """A part of prompt tokens is not the whole."""
    part, whole = re.findall(r"\d+", text)
    return "ALL prompt tokens" if part == whole else f"SOME prompt tokens ({text})"


def normalised(text: str) -> str:
    """A text without times, identifiers, ports, sizes and widths of columns, which differ from run to run."""
    for pattern, replacement in _VARIABLE:
        text = pattern.sub(replacement, text)
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def is_shown(shown: str, printed: str, *, within: bool = False) -> bool:
    """Whether an output is the one that a page shows. `…` stands for any text, on a line of its own for any lines.

    `within`: other lines may precede and follow it.
    """
    lines = normalised(shown).split("\n")
    if within:
        lines = ["…", *lines, "…"]
    pattern = ""
    for line in lines:
        pattern += r"(?:.*\n)*?" if line == "…" else ".*".join(map(re.escape, line.split("…"))) + r"\n"
    return re.fullmatch(pattern, normalised(printed) + "\n") is not None


def simple_commands(text: str) -> Iterator[list[str]]:
    """The words of each command in a block, also in pipes, lists, loops and `$(...)`; not in here-documents."""
    text = re.sub(r"\d?>&\d", " ", re.sub(r"\\\n", " ", text))
    text = re.sub(r"(<<-?'?(\w+)'?[^\n]*)\n.*?^\s*\2$", r"\1", text, flags=re.MULTILINE | re.DOTALL)
    inner = re.findall(r"\$\(([^()]*)\)", text)
    text = re.sub(r'"?\$\([^()]*\)"?', "SUBSTITUTED", text)
    for part in [text, *inner]:
        for line in part.splitlines():
            yield from _of_line(line)


def _of_line(line: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.commenters = ""
    lexer.whitespace_split = True
    command: list[str] = []
    redirected = False
    for word in lexer:
        if word.startswith("#") and not redirected:
            break
        if set(word) <= set("();|&"):
            yield from [command] if command else []
            command = []
        elif set(word) <= set("<>"):
            redirected = True
        elif redirected:
            redirected = False
        elif command or not (word in ("do", "then", "else", "time") or re.match(r"[A-Za-z_]\w*=", word)):
            command.append(word)
    yield from [command] if command else []


def commands_of(program: str, pages: tuple[Path, ...] = PAGES) -> list[tuple[str, list[str]]]:
    """PAGE:LINE of the block, and the words of each command of a program in the pages."""
    return [
        (str(block), command)
        for page in pages
        for block in blocks(page)
        for command in simple_commands(block.commands)
        if command[0] == program
    ]
