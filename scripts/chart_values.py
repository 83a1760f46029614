"""Writes what values.yaml says of the chart's values: as a page, and as descriptions in the schema. Pure."""

import copy
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import yaml

HEAD: Final = """\
# Values of the chart

Every value of `charts/pdx`. The chart refuses other values. `make generate` writes this page from the chart's
`values.yaml` and `values.schema.json`.
"""
_KEY: Final = re.compile(r"( *)([A-Za-z]+):(?: (.*))?")


@dataclass(frozen=True, slots=True)
class Value:
    """One value of the chart."""

    path: str
    default: str
    """As YAML in one line."""
    comment: str


def chart_values(values: str, schema: Mapping[str, Any]) -> str:
    """The page: a table for each of the top-level parts, one for all other values."""
    found = list(documented_values(values))
    parts = list(dict.fromkeys(value.path.partition(".")[0] for value in found if "." in value.path))
    general = [value for value in found if "." not in value.path]
    tables = [_table("General", general, schema)]
    tables += [_table(f"`{part}`", [v for v in found if v.path.startswith(f"{part}.")], schema) for part in parts]
    return HEAD + "".join(tables)


def described(values: str, schema: Mapping[str, Any]) -> str:
    """The schema as JSON, with the comments of values.yaml as descriptions: editors and Artifact Hub show them."""
    written = copy.deepcopy(dict(schema))
    for value in documented_values(values):
        node = _node(written, value.path)
        kept = {key: each for key, each in node.items() if key not in ("type", "description")}
        first = {"type": node["type"]} if "type" in node else {}
        node.clear()
        node.update({**first, "description": value.comment, **kept})
    return json.dumps(written, indent=2, ensure_ascii=False) + "\n"


def documented_values(text: str) -> Iterator[Value]:
    """Every value in values.yaml that has a comment."""
    path: list[str] = []
    comment: list[str] = []
    for line in text.splitlines():
        if line.lstrip().startswith("# "):
            comment.append(line.lstrip()[2:])
        elif (match := _KEY.fullmatch(line)) is not None:
            path[len(match[1]) // 2 :] = [match[2]]
            if comment:
                yield Value(".".join(path), _default(text, path), " ".join(comment))
            comment = []
        else:
            comment = []


def _table(title: str, values: list[Value], schema: Mapping[str, Any]) -> str:
    rows = [f"| `{v.path}` | {_type(_node(schema, v.path))} | `{v.default}` | {v.comment} |\n" for v in values]
    return f"\n## {title}\n| value | type | default | meaning |\n|---|---|---|---|\n" + "".join(rows)


def _node(schema: Mapping[str, Any], path: str) -> Any:
    node = schema
    for key in path.split("."):
        node = node["properties"][key]
    return node


def _type(node: Mapping[str, Any]) -> str:
    if "enum" in node:
        return ", ".join(
            f"`{yaml.safe_dump(each, default_flow_style=True).split(chr(10))[0]}`" for each in node["enum"]
        )
    if node["type"] == "array":
        return f"list of {node['items'].get('type', 'value')}s"
    bounds = (node.get("minimum"), node.get("maximum"))
    match bounds:
        case None, None:
            return str(node["type"])
        case least, None:
            return f"{node['type']} ≥ {least}"
        case least, most:
            return f"{node['type']} {least}-{most}"


def _default(text: str, path: list[str]) -> str:
    value: Any = yaml.safe_load(text)
    for key in path:
        value = value[key]
    if isinstance(value, dict) and value:
        return yaml.safe_dump(value, default_flow_style=True, width=10**6, sort_keys=False).strip()
    return f'"{value}"' if isinstance(value, str) else yaml.safe_dump(value).split(chr(10))[0]
