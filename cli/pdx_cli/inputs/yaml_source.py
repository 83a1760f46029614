"""YAML with positions: the documents of a file or of stdin, and the line of each field.

Refuses duplicate keys, as the API server does; YAML's own loader would keep the last one.
"""

import codecs
import errno
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError
from yaml.parser import ParserError

from pdx_api.names import KIND
from pdx_cli.errors import InputError

STDIN: Final = Path("-")
MAX_BYTES: Final = 4 * 2**20
"""Of a file or of stdin. The API server takes no object of this size, and the loader would take minutes."""
MAX_VALUES: Final = 100_000
"""Values of one document, with each use of an anchor counted."""
_LISTS: Final = ("List", f"{KIND}List")
_MERGE: Final = "tag:yaml.org,2002:merge"
_BOOL: Final = "tag:yaml.org,2002:bool"
_NULL: Final = "tag:yaml.org,2002:null"
_PARSED: Final = {
    "tag:yaml.org,2002:int": "number",
    "tag:yaml.org,2002:float": "number",
    "tag:yaml.org,2002:timestamp": "date",
}
"""Tag of a value that is made from its text -> what it is."""
_LONGEST_NUMBER: Final = 100
"""Characters."""
_UNUSABLE: Final = re.compile("[\0\ud800-\udfff]")
"""Characters that an escape can write, but that no argument, variable or file has: NUL, and halves of others."""
_BEGUN: Final = {"[": "list with [", "{": "mapping with {", '"': "text in quotes", "'": "text in quotes"}
"""First character of what an error ends -> what it is."""


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a source."""

    name: str
    """Of the source, for messages: the file's path, or `stdin`."""
    body: Any
    node: yaml.Node

    def line(self, path: Sequence[int | str]) -> int:
        """Return the line of a field, from 1; of its nearest parent if it is missing."""
        node, line = self.node, self.node.start_mark.line
        for step in path:
            found = _child(node, step)
            if found is None:
                break
            node, line = found
        return line + 1

    def depth(self, path: Sequence[int | str]) -> int:
        """Return how many steps of a path the text has."""
        node = self.node
        for number, step in enumerate(path):
            found = _child(node, step)
            if found is None:
                return number
            node = found[0]
        return len(path)

    def entries(self) -> "list[Document]":
        """Return the objects of a List, as `kubectl get` prints several objects; otherwise the document itself.

        Raises InputError for a List without a list.
        """
        body = self.body
        if not (isinstance(body, dict) and body.get("kind") in _LISTS):
            return [self]
        items = _child(self.node, "items")
        if items is None or not isinstance(items[0], yaml.SequenceNode):
            raise InputError(
                f"{self.name}:{self.line(('items',))}: items of a List is no list; write a list of objects."
            )
        found = zip(body["items"], items[0].value, strict=True)
        return [entry for item, node in found for entry in Document(self.name, item, node).entries()]


def source_name(file: Path) -> str:
    """Return the name of a file for messages."""
    return "stdin" if file == STDIN else str(file)


def read(file: Path) -> list[Document]:
    """Return the objects of a file that are not empty, those of a List one by one; raises InputError."""
    return [entry for document in documents_of(text_of(file), source_name(file)) for entry in document.entries()]


def text_of(file: Path) -> str:
    """Return the text of a file or of stdin; raises InputError."""
    name = source_name(file)
    return _printable(_text(file, name), name)


def documents_of(text: str, name: str) -> list[Document]:
    """Return the documents of a text that are not empty; `name` is its source's. Raises InputError."""
    loader = yaml.SafeLoader(text)
    documents = []
    try:
        while loader.check_node():
            node = loader.get_node()
            assert node is not None, "check_node has found one"
            if duplicates := list(_duplicates(node)):
                raise InputError(*_listed(name, duplicates))
            if _size(node, {}) > MAX_VALUES:
                raise InputError(f"{name} expands to more than {MAX_VALUES} values; write it without anchors.")
            if wrong := _unusable(node):
                raise InputError(f"{name}:{wrong[0]}: {wrong[1]}.")
            body = loader.construct_document(node)
            if body is not None:
                documents.append(Document(name, body, node))
    except yaml.YAMLError as error:
        raise InputError(f"{name} is not YAML{position(error, text)}.") from error
    except RecursionError as error:
        raise InputError(f"{name} is nested too deep; write fewer levels.") from error
    finally:
        loader.dispose()
    return documents


def value_of(text: str, name: str) -> Any:
    """Return the value of a flag, whose name is for messages; raises InputError."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is not None and (duplicate := next(_duplicates(node), None)) is not None:
            raise InputError(f"{name}: the key {duplicate[0]} appears twice; write it once.")
        if node is not None and (wrong := _unusable(node)):
            raise InputError(f"{name}: {wrong[1]}.")
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"{name}: {text!r} is not a YAML value{position(error, text)}.") from error
    except RecursionError as error:
        raise InputError(f"{name}: the value is nested too deep; write fewer levels.") from error


def position(error: yaml.YAMLError, text: str) -> str:
    """Return where and why a text is not YAML; empty if the error has no position."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return ""
    mark, began = error.problem_mark, error.context_mark
    opened = _word(text, began.index) if began else ""
    cause = _cause(error, text, mark.index, opened) or str(error.problem)
    where = f"line {mark.line + 1}, column {mark.column + 1}"
    if began is None or opened[:1] not in _BEGUN or isinstance(error, ConstructorError):
        return f": {where}: {cause}"
    return f": {where}: {cause}; the {_BEGUN[opened[:1]]} began on line {began.line + 1}, column {began.column + 1}"


def _word(text: str, at: int) -> str:
    """Return the first word at a position; empty at the end of the text."""
    return (text[at:].split(None, 1) or [""])[0]


def _cause(error: yaml.MarkedYAMLError, text: str, at: int, opened: str) -> str:
    """Return what is wrong at a position of the text, by what is there; empty if that does not show it.

    `opened` is the first word of what the error ends; empty if it ends nothing.
    """
    above, word = text[:at], _word(text, at)
    if text.startswith("\t", at):
        return "a tab is not allowed here; use spaces, no tabs"
    if isinstance(error, ComposerError):
        return f"the anchor &{word.strip('*,]}:')} does not exist; define it above this line, or write the value"
    if word.startswith("!") and not _is_supported(word):
        return f"the tag {word} is not supported; remove it"
    if word == "%YAML" and not _word(text, at + len("%YAML")).startswith("1."):
        return "this line names a version of YAML other than 1.1; remove the line"
    if isinstance(error, ConstructorError):
        return _value(word, above, opened)
    return (_structure if isinstance(error, ParserError) else _token)(word, above, opened[:1])


def _is_supported(tag: str) -> bool:
    """Whether a tag, as it is written, is one of YAML's own."""
    name = tag[2:-1] if tag.startswith("!<") else tag.replace("!!", "tag:yaml.org,2002:", 1)
    return name in yaml.SafeLoader.yaml_constructors


def _value(word: str, above: str, opened: str) -> str:
    """Return why a value that can be read is not one of YAML."""
    if word.startswith("!"):
        return f"the tag {word} does not fit the value after it; remove the tag"
    if opened in ("!!omap", "!!pairs"):
        return f"the tag {opened} needs a list with one key and its value in each entry; remove the tag"
    if (plain := word.strip(",]}")) in ("<<", "="):
        return f"{plain} is not a value; put it in quotes"
    if "<<:" in above.rpartition("\n")[2]:
        return "<< needs a mapping; write the alias of one"
    return "a key must be a plain text; if this is a Helm template, render it first with `helm template`"


def _structure(word: str, above: str, opened: str) -> str:
    """Return why a word does not fit what is around it."""
    if closing := {"[": "]", "{": "}"}.get(opened):
        return f"a comma or {closing} is missing before this" if word else f"the text ends before the closing {closing}"
    if word.startswith(("]", "}")):
        return f"this {word[0]} closes nothing; remove it"
    if word.startswith("%"):
        return "a line with % is allowed only above the line ---, and once; remove the line"
    if above.rstrip().rpartition("\n")[2].startswith(("%", "...")):
        return "a line with --- is missing before this" if word else "the text ends before a line with ---"
    if not word:
        return "the text ends before a value"
    if word.startswith(("---", "...")) or (word.startswith(",") and above.rstrip().endswith(("[", "{", ","))):
        return "a value is missing before this"
    before = above.rpartition("\n")[2].strip()
    if word.startswith(",") and (not before or before.endswith((":", "-"))):
        return "a text must not begin with ,; put it in quotes"
    if before:
        return "this text does not belong to the value before it"
    return "the indentation of this line does not fit the lines above"


def _token(word: str, above: str, opened: str) -> str:
    """Return why no text can be read at a word; empty if it does not show that."""
    if opened and opened in "'\"":
        before = above.rpartition("\n")[2]
        if word and before.endswith("\\"):
            return rf"\{word[:1]} is no escape; write \\ for a backslash, or use single quotes"
        return "the text ends before the closing quote" if not (word and before) else ""
    if opened:
        return "" if opened in "!&*%|>" else "this line or the one above needs a colon after its key"
    if word.startswith(":"):
        return "a colon is not allowed here; put the text in quotes, or indent the line"
    return f"a text must not begin with {word[0]}; put it in quotes" if word.startswith(("@", "`", "%")) else ""


def _text(file: Path, name: str) -> str:
    try:
        data = sys.stdin.buffer.read(MAX_BYTES + 1) if file == STDIN else _first_bytes(file)
        if len(data) > MAX_BYTES:
            raise InputError(f"{name} is larger than {MAX_BYTES // 2**20} MiB; write a file with only PDDeployments.")
        return data.decode("utf-8-sig")
    except FileNotFoundError as error:
        raise InputError(f"{name!r} does not exist.") from error
    except IsADirectoryError as error:
        raise InputError(f"{name} is a directory; name a YAML file with a PDDeployment.") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{name} is not a text file (UTF-8){_encoding(error)}.") from error
    except OSError as error:
        if file == STDIN and error.errno == errno.EBADF:
            raise InputError("stdin is closed; pipe a YAML file into it, or name a file.") from error
        raise InputError(f"{name} cannot be read: {error.strerror}.") from error


def _encoding(error: UnicodeDecodeError) -> str:
    """Return what to do about a text that is not UTF-8; empty if the bytes are no text at all."""
    if error.object.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return ", but UTF-16; save it as UTF-8"
    if b"\0" in error.object:
        return ""
    line = error.object.count(b"\n", 0, error.start) + 1
    return f": line {line} has a character in another encoding; save the file as UTF-8"


def _first_bytes(file: Path) -> bytes:
    with file.open("rb") as stream:
        return stream.read(MAX_BYTES + 1)


def _printable(text: str, name: str) -> str:
    """Return the text if YAML allows its characters; raises InputError. The loader's own check names no line."""
    if found := yaml.reader.Reader.NON_PRINTABLE.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise InputError(f"{name}:{line}: the character U+{ord(found[0]):04X} is not allowed in YAML; remove it.")
    return text


def _listed(name: str, duplicates: Sequence[tuple[str, int, int]]) -> tuple[str, tuple[str, ...]]:
    lines = tuple(
        f"{name}:{line}: the key {key} appears twice, first on line {first}; write it once."
        for key, first, line in sorted(duplicates, key=lambda duplicate: duplicate[2])
    )
    return (lines[0], ()) if len(lines) == 1 else (f"{name} has {len(lines)} errors:", lines)


def _duplicates(root: yaml.Node) -> Iterator[tuple[str, int, int]]:
    """Yield each key that a mapping has twice: the key, and both lines. An anchored node is visited once."""
    seen: set[int] = set()
    pending = [root]
    while pending:
        node = pending.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            lines: dict[tuple[str, str], int] = {}
            for key, value in node.value:
                if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
                    line, name = key.start_mark.line + 1, (key.tag, key.value)
                    if name in lines:
                        yield key.value, lines[name], line
                    else:
                        lines[name] = line
                pending.append(value)
        elif isinstance(node, yaml.SequenceNode):
            pending.extend(node.value)


def _unusable(root: yaml.Node) -> tuple[int, str] | None:
    """Return the line of a value that is YAML but that nothing can use, and what is wrong; None if there is none."""
    loader = yaml.SafeLoader("")
    for node in _scalars(root):
        line, text = node.start_mark.line + 1, node.value
        if odd := _UNUSABLE.search(text):
            return line, f"a text has the character U+{ord(odd[0]):04X}, which no program can receive; remove it"
        if node.tag not in _PARSED:
            continue
        if len(text) > _LONGEST_NUMBER:
            return (
                line,
                f"a number has more than {_LONGEST_NUMBER} characters; write a smaller one, or a text in quotes",
            )
        try:
            loader.construct_object(node)
        except ValueError as error:  # for example a date that does not exist
            return line, f"{text} is no {_PARSED[node.tag]} ({' '.join(str(error).split())}); put a text in quotes"
    return None


def _scalars(root: yaml.Node) -> Iterator[yaml.ScalarNode]:
    """Yield each text, number and date, also of keys. An anchored node is visited once."""
    seen: set[int] = set()
    pending = [root]
    while pending:
        node = pending.pop()
        if isinstance(node, yaml.ScalarNode):
            yield node
        elif id(node) not in seen:
            seen.add(id(node))
            pairs = node.value if isinstance(node, yaml.MappingNode) else [(each,) for each in node.value]
            pending.extend(reversed([each for pair in pairs for each in pair]))


def _size(node: yaml.Node, sizes: dict[int, int]) -> int:
    """Return how many values a node has; a node that contains itself has too many."""
    if isinstance(node, yaml.ScalarNode):
        return 1
    if id(node) not in sizes:
        sizes[id(node)] = MAX_VALUES + 1  # while it is counted
        pairs = node.value if isinstance(node, yaml.MappingNode) else ((value,) for value in node.value)
        sizes[id(node)] = 1 + sum(_size(each, sizes) for pair in pairs for each in pair)
    return sizes[id(node)]


def _key_text(key: yaml.ScalarNode) -> str:
    """Return a key as messages quote it: `on`, which YAML reads as true, is `true`."""
    if key.tag == _BOOL:
        return str(yaml.SafeLoader.bool_values[key.value.lower()]).lower()
    return "null" if key.tag == _NULL else key.value


def _child(node: yaml.Node, step: int | str) -> tuple[yaml.Node, int] | None:
    """Return a field's value and the line on which it starts: that of its key, or of a list's entry."""
    if isinstance(node, yaml.MappingNode):
        for key, value in reversed(node.value):
            if isinstance(key, yaml.ScalarNode) and _key_text(key) == str(step):
                return value, key.start_mark.line
    elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        entry = node.value[step]
        return entry, entry.start_mark.line
    return None
