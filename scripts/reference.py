"""Write the field reference as Markdown from the structural schema: one table for each object of the API. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pdx_api.names import API_VERSION, KIND
from pdx_api.rule import RULES_KEY
from pdx_api.spec.schema import INT_OR_STRING, PRESERVE

Schema = Mapping[str, Any]

HEAD: Final = f"""\
# Fields of a {KIND}

This page lists every field of `{API_VERSION}`. `kubectl explain pdd.spec` shows the same. Bold fields are required. The
messages after "Refused with" are those with which PDX refuses a value. `make generate` writes this page from
`api/pdx_api`.
"""

_BOUNDS: Final = {
    "integer": ("minimum", "maximum", ""),
    "number": ("minimum", "maximum", ""),
    "string": ("minLength", "maxLength", " characters"),
    "array": ("minItems", "maxItems", " entries"),
    "object": ("minProperties", "maxProperties", " entries"),
}


def reference(schema: Schema) -> str:
    """The page for an object's schema. Objects with equal fields share a table."""
    alike: dict[str, list[str]] = {}
    for part in ("spec", "status"):
        for path, node in _objects(schema["properties"][part], part):
            alike.setdefault(_body(node), []).append(path)
    return HEAD + "".join(f"\n## {_title(paths)}\n{body}" for body, paths in alike.items())


def _title(paths: Sequence[str]) -> str:
    """a.b.x and a.c.x become a.{b, c}.x."""
    split = [path.split(".") for path in paths]
    if len(paths) == 1 or len({(tuple(steps[:1]), tuple(steps[2:])) for steps in split}) > 1:
        return ", ".join(paths)
    first = split[0]
    return ".".join([first[0], f"{{{', '.join(steps[1] for steps in split)}}}", *first[2:]])


def _objects(schema: Schema, path: str) -> Iterator[tuple[str, Schema]]:
    if "properties" in schema:
        yield path, schema
        for name, inner in schema["properties"].items():
            yield from _objects(inner, f"{path}.{name}")
    elif schema.get("type") == "array":
        yield from _objects(schema["items"], f"{path}[]")


def _body(schema: Schema) -> str:
    required = schema.get("required", ())
    rows = [
        f"| {f'**{name}**' if name in required else name} | {_type(inner)} | {_default(inner)} | {_meaning(inner)} |\n"
        for name, inner in schema["properties"].items()
    ]
    parts = ["| field | type | default | meaning |\n|---|---|---|---|\n", *rows]
    if PRESERVE in schema:
        parts.append("\nEvery other field of Kubernetes is allowed here too.\n")
    if RULES_KEY in schema:
        parts += ["\nRefused with:\n\n", *dict.fromkeys(f"* {rule['message']}\n" for rule in schema[RULES_KEY])]
    return "".join(parts)


def _meaning(schema: Schema) -> str:
    rules = "; ".join(rule["message"] for rule in _own_rules(schema))
    details = f" Refused with: {rules}." if rules else ""
    return f"{schema['description']}{details}".replace("|", "\\|")


def _own_rules(schema: Schema) -> list[Schema]:
    """The rules of a value and of its entries. The rules of an object are under its table."""
    if "properties" in schema:
        return []
    inner = schema.get("items") or schema.get("additionalProperties")
    return [*schema.get(RULES_KEY, ()), *(_own_rules(inner) if inner else ())]


def _type(schema: Schema) -> str:
    if INT_OR_STRING in schema:
        return "integer or string"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    kind = schema.get("type", "any")
    if kind == "array":
        name = f"list of {_type(schema['items'])}"
    elif "additionalProperties" in schema:
        name = f"map of {_type(schema['additionalProperties'])}"
    else:
        name = kind
    return name + _bounds(schema)


def _bounds(schema: Schema) -> str:
    least, most, unit = _BOUNDS.get(schema.get("type", ""), ("", "", ""))
    low, high = schema.get(least), schema.get(most)
    if high is None:
        return ""
    return f", {low} to {high}{unit}" if low is not None else f", at most {high}{unit}"


def _default(schema: Schema) -> str:
    if "default" not in schema or "properties" in schema:
        return ""
    default = schema["default"]
    return f"`{str(default).lower() if isinstance(default, bool) else default}`" if default != "" else ""
