"""Removes secrets, keys, prompts and answers from a text: a log, a message or a page of configuration. Pure.

It removes too much rather than too little. From each name of a secret it reads what follows: a quoted value, a list, a
word or the rest of the line.
"""

import re
from typing import Final

from pdx_api.secret_shapes import REMOVED, without_shapes
from pdx_cli.support.secret_names import TEXT_NAMES, is_harmless_variable, is_secret

_PEM: Final = re.compile(r"-----BEGIN [A-Z0-9 ]+-----.*?(?:-----END [A-Z0-9 ]+-----|\Z)", re.DOTALL)
_TEXT_OF_USERS: Final = re.compile(
    rf"(?<![\w-])[\"']?({'|'.join(sorted(TEXT_NAMES - {'user', 'query', 'text', 'input', 'content'}))}"
    r"|(?<=[\"'])(?:text|input|content|user|query)(?=\\*[\"']))\\*[\"']?\s*[:=].*",
    re.IGNORECASE,
)
_NAME: Final = r"(?<!\w)[A-Za-z_]\w*+(?:[.-]\w+){0,12}+"
_MARK: Final = r"(?:=>|:=|[:=]|%3(?:[aA]|[dD])|>(?=[^<>]*</\w))"
"""What stands between a name and its value."""
_NAMED: Final = re.compile(rf"(?P<name>{_NAME})(?:\\*[\"'])?\s*{_MARK}(?P<space>\s*)")
_FLAG: Final = re.compile(rf"(?<![\w-])--?(?P<name>{_NAME})(?:(?:\\*[\"'])?,?\s+|\\*[\"'],(?=\\*[\"']))")
_PAIR: Final = re.compile(rf"\\*[\"'](?P<name>{_NAME})\\*[\"']\s*,\s*b?(?=\\*[\"'])")
"""The name of a header before its quoted value."""
_EXPORTED: Final = re.compile(r"(?:\bexport|\bENV|(?<!\S)--env|(?<!\S)-e)[ =]+\\*[\"']?(?P<name>[A-Za-z_]\w*)=(?=\S)")
"""A variable that is set."""
_LOUD: Final = re.compile(r"\b(?P<name>[A-Z][A-Z0-9]*(?:_[A-Z0-9]+){1,12}+)\s+(?=[\"'])")
"""A variable before a quoted value."""
_COLOURS: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_CONTINUED: Final = re.compile(r"\\\n\s*")
_QUOTED: Final = re.compile(r"(\"\"\"|'''|\\*[\"']).*?(?:\1|$)")
_WORD: Final = re.compile(r"\S+")
_PLAIN: Final = re.compile(
    r"(?:true|false|none|null|~|\[\]|\{\}|\"\"(?!\")|''(?!')|\[removed\])(?=[\s,;)\]}\"'<\\]|$)", re.IGNORECASE
)
"""Values that are no secret whatever their name is."""
_HEADERS: Final = re.compile(r"authorization|cookie", re.IGNORECASE)
_BLOCK: Final = re.compile(r"[|>][-+\d]*\s*$")
_VARIABLE: Final = re.compile(r"\bname\\*[\"']?\s*[:=]\s*\\*[\"']?(?P<name>[\w.-]+)", re.IGNORECASE)
_VALUE: Final = re.compile(r"(?<![\w.-])value\\*[\"']?\s*[:=]\s*(?=\S)", re.IGNORECASE)
_FIELD: Final = re.compile(r"\s*(?:- )?\\*[\"']?[\w./-]+\\*[\"']?\s*[:=]")


def text(page: str) -> str:
    """Return a log or another text without secrets, prompts and answers."""
    lines: list[str] = []
    block: int | None = None
    variable = ""
    # A command may go on in the next line.
    for line in _CONTINUED.sub(r"\\ ", _PEM.sub(REMOVED, _COLOURS.sub("", page))).split("\n"):
        indent = len(line) - len(line.lstrip())
        if block is not None and line.strip() and _belongs(line, indent, block):
            lines.append(" " * indent + REMOVED)
            continue
        block = indent if _opens_block(line) else None
        names = [found["name"] for found in _VARIABLE.finditer(line)]
        lines.append(_without_secrets(_without_variable(line, names or [variable])))
        variable = names[-1] if names else ""
    return "\n".join(lines)


def _belongs(line: str, indent: int, block: int) -> bool:
    """Whether a line continues the value of a secret that began above it."""
    return (indent > block or (indent == block and line.lstrip().startswith("- "))) and _FIELD.match(line) is None


def _opens_block(line: str) -> bool:
    """Whether a line ends with the name of a secret whose value follows on further lines."""
    names = list(_NAMED.finditer(line))
    if not names or not is_secret(names[-1]["name"]):
        return False
    return not line[names[-1].end() :].strip() or _BLOCK.match(line, names[-1].end()) is not None


def _without_variable(line: str, names: list[str]) -> str:
    """Remove the values of environment variables that are written as a name and a value."""
    if not any(names) or all(is_harmless_variable(name) for name in names):
        return line
    return _cut(line, [(found.end(), _end_of_value(line, found.end())) for found in _VALUE.finditer(line)])


def _without_secrets(line: str) -> str:
    prompt = _TEXT_OF_USERS.search(line)
    if prompt is not None:
        line = f"{line[: prompt.end(1)]}: {REMOVED}"
    spans = [(found.end(), _end(line, found)) for found in _NAMED.finditer(line) if is_secret(found["name"])]
    for pattern in (_FLAG, _LOUD):
        flags = (found for found in pattern.finditer(line) if is_secret(found["name"]))
        spans += [(found.end(), _end_of_values(line, found.end())) for found in flags]
    spans += [
        (found.end(), _end_of_value(line, found.end())) for found in _PAIR.finditer(line) if is_secret(found["name"])
    ]
    exported = (found for found in _EXPORTED.finditer(line) if not is_harmless_variable(found["name"]))
    spans += [(found.end(), _end_of_value(line, found.end())) for found in exported]
    line = _cut(line, [(start, end) for start, end in spans if not _PLAIN.fullmatch(line[start:end])])
    return without_shapes(line)


def _cut(line: str, spans: list[tuple[int, int]]) -> str:
    """Replace parts of a line, of which some may overlap."""
    parts: list[str] = []
    kept = 0
    for start, end in sorted(span for span in spans if line[span[0] : span[1]].strip()):
        if start >= kept:
            parts += (line[kept:start], REMOVED)
        kept = max(kept, end)
    return "".join((*parts, line[kept:]))


def _end(line: str, named: re.Match[str]) -> int:
    """Where the value of a secret ends."""
    start = named.end()
    plain = _PLAIN.match(line, start)
    if plain is not None:
        return plain.end()
    if _HEADERS.search(named["name"]) and (start == len(line) or line[start] not in "\"'\\[{("):
        return len(line)
    if named["space"] or ":" in named[0]:
        return _end_of_value(line, start, bare_to_the_end=not named[0].endswith("="))
    return _end_of_value(line, start)


def _end_of_value(line: str, start: int, *, bare_to_the_end: bool = False) -> int:
    """Where the value ends that starts here: a quoted one, a list, a word, or (if bare) the rest of the line."""
    if line[start : start + 1] in ("[", "{", "(") or line.startswith("$(", start):
        return _end_of_brackets(line, start + line.startswith("$", start))
    quoted = _QUOTED.match(line, start)
    if quoted is not None:
        rest = re.compile(r"[^\s,;)\]}]*").match(line, quoted.end())
        return rest.end() if rest else quoted.end()
    if bare_to_the_end:
        return len(line)
    word = _WORD.match(line, start)
    while word is not None and word[0].endswith((",", ";")):
        following = re.compile(r"\s*(?![\w.-]+=)\S+").match(line, word.end())
        if following is None:
            break
        word = following
    return word.end() if word else start


def _end_of_brackets(line: str, start: int) -> int:
    level, position = 0, start
    while position < len(line):
        quoted = _QUOTED.match(line, position)
        if quoted is not None:
            position = quoted.end()
            continue
        level += (line[position] in "[{(") - (line[position] in "]})")
        position += 1
        if level == 0:
            break
    return position


def _end_of_values(line: str, start: int) -> int:
    """Where the values of a flag end: before the next flag, or before the end of the list of arguments."""
    end = start
    while True:
        skipped = re.compile(r"[\s,]*").match(line, end)
        position = skipped.end() if skipped else end
        flag = re.compile(r"\\*[\"']?--?[A-Za-z]").match(line, position)
        if (
            position == len(line)
            or line[position] in "]})|;&"
            or (flag is not None and (end > start or "--" in flag[0]))
        ):
            return end
        quoted = _QUOTED.match(line, position) or re.compile(r"[^\s,\]]+").match(line, position)
        if quoted is None or quoted.end() == position:
            return end
        end = quoted.end()
