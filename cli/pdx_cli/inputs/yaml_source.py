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
_PLAIN: Final = (
    (
        r"found unhashable key",
        "a key must be a plain text; if this is a Helm template, render it first with `helm template`",
    ),
    (r"could not determine a constructor for the tag '(.+)'", r"the tag \1 is not supported; remove it"),
    (
        r"expected (<block end>|'<document start>'), but found '(<block .*>|-|\?)'",
        "the indentation of this line does not fit the lines above",
    ),
    (r"expected <block end>, but found .*", "this text does not belong to the value before it"),
    (r"mapping values are not allowed here", "a colon is not allowed here; put the text in quotes, or indent the line"),
    (r"expected ',' or '(.)', but got '<stream end>'", r"the text ends before the closing \1"),
    (r"expected ',' or '(.)', but got .*", r"a comma or \1 is missing before this"),
    (r"found unexpected (?:end of stream|document separator)", "the text ends before the closing quote"),
    (r"found undefined alias '(.+)'", r"the anchor &\1 does not exist; define it above this line, or write the value"),
    (r"expected a mapping or list of mappings for merging, .*", "<< needs a mapping; write the alias of one"),
    (r"found character '\\t' that cannot start any token", "a tab is not allowed here; use spaces, no tabs"),
    (r"found character '(.)' that cannot start any token", r"a text must not begin with \1; put it in quotes"),
    (r"found unknown escape character '(.)'", r"\\\1 is no escape; write \\\\ for a backslash, or use single quotes"),
    (r"could not find expected ':'", "this line or the one above needs a colon after its key"),
    (r"found incompatible YAML document .*", "this line names a version of YAML other than 1.1; remove the line"),
)
"""The parser's words for what is wrong, as a pattern -> plain ones."""


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
            body = loader.construct_document(node)
            if body is not None:
                documents.append(Document(name, body, node))
    except yaml.YAMLError as error:
        raise InputError(f"{name} is not YAML{position(error)}.") from error
    except RecursionError as error:
        raise InputError(f"{name} is nested too deep; write fewer levels.") from error
    except ValueError as error:  # for example a date that does not exist
        raise InputError(f"{name} is not YAML that can be read: {' '.join(str(error).split())}.") from error
    finally:
        loader.dispose()
    return documents


def value_of(text: str, name: str) -> Any:
    """Return the value of a flag, whose name is for messages; raises InputError."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is not None and (duplicate := next(_duplicates(node), None)) is not None:
            raise InputError(f"{name}: the key {duplicate[0]} appears twice; write it once.")
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"{name}: {text!r} is not a YAML value{position(error)}.") from error
    except RecursionError as error:
        raise InputError(f"{name}: the value is nested too deep; write fewer levels.") from error
    except ValueError as error:  # for example a date that does not exist
        raise InputError(f"{name}: {text!r} is not a YAML value: {' '.join(str(error).split())}.") from error


def position(error: yaml.YAMLError) -> str:
    """Return where and why a text is not YAML; empty if the error does not say."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return ""
    mark = error.problem_mark
    return f": line {mark.line + 1}, column {mark.column + 1}: {_plain(str(error.problem))}{_beginning(error)}"


def _plain(problem: str) -> str:
    """Return what is wrong without the names of the parser's tokens."""
    matches = ((re.fullmatch(pattern, problem), plain) for pattern, plain in _PLAIN)
    return next((found.expand(plain) for found, plain in matches if found), problem)


def _beginning(error: yaml.MarkedYAMLError) -> str:
    """Return where the list, the mapping or the text in quotes began that the error ends; empty for anything else."""
    kinds = {
        "while parsing a flow sequence": "list with [",
        "while parsing a flow mapping": "mapping with {",
        "while scanning a quoted scalar": "text in quotes",
    }
    kind, mark = kinds.get(str(error.context)), error.context_mark
    return f"; the {kind} began on line {mark.line + 1}, column {mark.column + 1}" if kind and mark else ""


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
