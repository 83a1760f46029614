"""Converts the text of a file to the present names of fields. Comments and layout stay, except around fields that move.

Each step changes the text of one document. Then the result is compared with the converted object: where the text cannot
follow a step (anchors, a List), the document is written anew, without comments.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import yaml

from pdx_api.names import API_VERSION, KIND
from pdx_api.spec import deprecated
from pdx_api.spec.deprecated import Path, Step
from pdx_cli.inputs.yaml_source import Document

_INDENT: Final = 2
_MOST_STEPS: Final = 64
"""Steps in one document: after each, its text is parsed again."""


@dataclass(frozen=True, slots=True)
class Converted:
    """A converted text."""

    text: str
    objects: int
    """PDDeployments that changed."""
    rewritten: tuple[int, ...] = ()
    """The lines on which the documents start that have lost their comments."""


class _LayoutError(Exception):
    """A step cannot be made in the text."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A field in a text."""

    parent: yaml.MappingNode
    index: int

    @property
    def key(self) -> yaml.Node:
        return self._pair[0]

    @property
    def value(self) -> yaml.Node:
        return self._pair[1]

    @property
    def _pair(self) -> tuple[yaml.Node, yaml.Node]:
        pair: tuple[yaml.Node, yaml.Node] = self.parent.value[self.index]
        return pair


def converted_text(text: str, documents: Sequence[Document]) -> Converted:
    """Convert every PDDeployment of a text; `documents` are what the text contains, in its order."""
    objects, rewritten = 0, list[int]()
    for document in reversed(documents):
        body, changed = converted_body(document.body)
        if not changed:
            continue
        start, end = document.node.start_mark.index, document.node.end_mark.index
        piece, kept = _converted_piece(text[start:end], document.body, body)
        text = text[:start] + piece + text[end:]
        objects += changed
        if not kept:
            rewritten.append(document.node.start_mark.line + 1)
    return Converted(text, objects, tuple(reversed(rewritten)))


def converted_body(body: Any) -> tuple[Any, int]:
    """A document's object, or its List of objects, with the number of objects that changed."""
    if not isinstance(body, dict):
        return body, 0
    if body.get("kind") == "List" and isinstance(body.get("items"), list):
        found = [converted_body(item) for item in body["items"]]
        return {**body, "items": [item for item, _ in found]}, sum(number for _, number in found)
    if body.get("kind") != KIND or body.get("apiVersion") != API_VERSION:
        return body, 0
    after = deprecated.converted(body)
    return after, int(after != body)


def _converted_piece(piece: str, before: Any, after: Any) -> tuple[str, bool]:
    """The text of one document, and whether its comments are kept."""
    try:
        found = piece
        for step in _steps(before):
            found = _with_step(found, step)
        if yaml.safe_load(found) == after:
            return found, True
    except (_LayoutError, yaml.YAMLError, RecursionError):
        pass
    if piece.startswith("{"):
        return json.dumps(after, indent=2, ensure_ascii=False, default=str), "#" not in piece
    return yaml.safe_dump(after, sort_keys=False, width=120, allow_unicode=True), "#" not in piece


def _steps(body: Any) -> list[Step]:
    """The steps of a document's object, or of the objects of its List. Raises _LayoutError for very many."""
    if body.get("kind") != "List":
        return list(deprecated.steps(body))
    found = []
    for number, item in enumerate(body["items"]):
        at = ("items", number)
        if isinstance(item, dict) and converted_body(item)[1]:
            new = [replace(s, path=at + s.path, new=at + s.new if s.new else ()) for s in deprecated.steps(item)]
            found += new
    if len(found) > _MOST_STEPS:
        raise _LayoutError
    return found


def _with_step(text: str, step: Step) -> str:
    place = _find(text, step.path)
    if place is None:
        return text  # its value has several names, and another step has changed it
    if step.value is not None:
        return _replaced(text, place.value, _quoted(text, place.value, str(step.value)))
    if not step.new or _find(text, step.new) is not None:
        return _pruned(_without(text, place), step.path[:-1])
    if step.new[:-1] == step.path[:-1]:
        wrapped = _wrapped(text, place, step.wrap) if step.wrap else text
        return _replaced(wrapped, place.key, _quoted(text, place.key, str(step.new[-1])))
    value, comment = text[place.value.start_mark.index : place.value.end_mark.index], _comment(text, place)
    if not isinstance(place.value, yaml.ScalarNode):
        raise _LayoutError
    text = _pruned(_without(text, place), step.path[:-1])
    return _inserted(text, step.new, value, comment)


def _root(text: str) -> yaml.Node:
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    if node is None:
        raise _LayoutError
    return node


def _find(text: str, path: Path) -> _Place | None:
    """Where a field stands; None if it stands nowhere in the text itself."""
    node, place = _root(text), None
    for step in path:
        if isinstance(node, yaml.SequenceNode) and isinstance(step, int):
            node = node.value[step]
        elif isinstance(node, yaml.MappingNode):
            keys = [key.value if isinstance(key, yaml.ScalarNode) else None for key, _ in node.value]
            if step not in keys:
                return None
            place = _Place(node, keys.index(step))
            node = place.value
        else:
            return None
    return place


def _replaced(text: str, node: yaml.Node, new: str) -> str:
    return text[: node.start_mark.index] + new + text[node.end_mark.index :]


def _quoted(text: str, node: yaml.Node, new: str) -> str:
    """A new text for a scalar: in JSON's quotes if the scalar has them."""
    return f'"{new}"' if text[node.start_mark.index] == '"' else new


def _wrapped(text: str, place: _Place, name: str) -> str:
    """The value as the only entry `name` of a mapping."""
    value = place.value
    start, end = value.start_mark.index, _end(text, value)
    if not isinstance(value, yaml.MappingNode) or value.flow_style:
        return f"{text[:start]}{{{_quoted(text, place.key, name)}: {text[start:end]}}}{text[end:]}"
    column = value.start_mark.column
    block = text[start:end].replace("\n", f"\n{' ' * _INDENT}")
    return f"{text[:start]}{name}:\n{' ' * (column + _INDENT)}{block}{text[end:]}"


def _without(text: str, place: _Place) -> str:
    """The text without a field; a mapping that loses its only field becomes {}."""
    pairs, key = place.parent.value, place.key
    if len(pairs) == 1:
        return _emptied(text, place.parent)
    last = place.index == len(pairs) - 1
    if place.parent.flow_style:
        start = pairs[place.index - 1][1].end_mark.index if last else key.start_mark.index
        end = place.value.end_mark.index if last else pairs[place.index + 1][0].start_mark.index
        return text[:start] + text[end:]
    line = text.rfind("\n", 0, key.start_mark.index) + 1
    if text[line : key.start_mark.index].strip():  # after the - of a list's entry
        return text[: key.start_mark.index] + text[pairs[place.index + 1][0].start_mark.index :]
    return text[:line] + text[_line_end(text, _end(text, place.value)) :]


def _emptied(text: str, mapping: yaml.MappingNode) -> str:
    start, end = mapping.start_mark.index, _end(text, mapping)
    if not mapping.flow_style:
        before = text[:start].rstrip()
        start = len(before) if before.endswith(":") else start
        return f"{text[:start]}{' ' if before.endswith(':') else ''}{{}}{text[end:]}"
    return f"{text[:start]}{{}}{text[end:]}"


def _pruned(text: str, path: Path) -> str:
    """The text without the mapping at a path if that is empty."""
    place = _find(text, path)
    empty = place is not None and isinstance(place.value, yaml.MappingNode) and not place.value.value
    return _without(text, place) if place is not None and empty else text


def _comment(text: str, place: _Place) -> str:
    """The comment behind a value on its line."""
    end = place.value.end_mark.index
    found = re.match(r"[ \t]+#[^\n]*", text[end : _line_end(text, end)])
    return found[0] if found and not place.parent.flow_style else ""


def _inserted(text: str, path: Path, value: str, comment: str) -> str:
    """The text with a new field; the mappings around it that do not exist are added."""
    depth = next(n for n in range(len(path) - 1, -1, -1) if n == 0 or _find(text, path[:n]) is not None)
    place = _find(text, path[:depth])
    mapping = place.value if place is not None else _root(text)
    if not isinstance(mapping, yaml.MappingNode):
        raise _LayoutError
    names = [str(step) for step in path[depth:]]
    if mapping.flow_style or not mapping.value:
        return _inserted_in_flow(text, mapping, names, value)
    column, end = mapping.value[0][0].start_mark.column, _line_end(text, _end(text, mapping))
    lines = [f"{' ' * (column + _INDENT * n)}{name}:" for n, name in enumerate(names)]
    block = "\n".join([*lines[:-1], f"{lines[-1]} {value}{comment}"])
    before = text[:end] if text[:end].endswith("\n") else f"{text[:end]}\n"
    return f"{before}{block}\n{text[end:]}"


def _inserted_in_flow(text: str, mapping: yaml.MappingNode, names: list[str], value: str) -> str:
    quoted = bool(mapping.value) and text[mapping.value[0][0].start_mark.index] == '"'
    entry = value
    for number, name in enumerate(reversed(names)):
        key = f'"{name}"' if quoted else name
        entry = f"{key}: {entry}" if number == 0 else f"{key}: {{{entry}}}"
    at = mapping.value[-1][1].end_mark.index if mapping.value else mapping.end_mark.index - 1
    return f"{text[:at]}{', ' if mapping.value else ''}{entry}{text[at:]}"


def _end(text: str, node: yaml.Node) -> int:
    """Where the text of a node ends, without the comments and lines that follow it."""
    while isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        node = last[1] if isinstance(last, tuple) else last
    end: int = node.end_mark.index
    return len(text[:end].rstrip()) if isinstance(node, yaml.ScalarNode) else end


def _line_end(text: str, index: int) -> int:
    """The start of the next line."""
    found = text.find("\n", index)
    return len(text) if found == -1 else found + 1
