"""The field reference as Markdown, from the structural schema: one table for each object of the API. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pdx_api.fields import RULES_KEY
from pdx_api.names import API_VERSION, KIND
from pdx_api.schema import INT_OR_STRING, PRESERVE

Schema = Mapping[str, Any]

HEAD: Final = f"""\
# Fields of a {KIND}

Every field of `{API_VERSION}`, as `kubectl explain pdd.spec` shows them. Bold fields must be written. Written by
`make generate` from `api/pdx_api`.
"""

_BOUNDS: Final = {
    "integer": ("minimum", "maximum", ""),
    "string": ("minLength", "maxLength", " characters"),
    "array": ("minItems", "maxItems", " entries"),
    "object": ("minProperties", "maxProperties", " entries"),
}


def reference(schema: Schema) -> str:
    """The page for an object's schema; objects that are alike share a table."""
    sections: dict[str, list[str]] = {}
    for part in ("spec", "status"):
        for path, node in _objects(schema["properties"][part], part):
            sections.setdefault(_body(node), []).append(path)
    return HEAD + "".join(f"\n## {', '.join(paths)}\n{body}" for body, paths in sections.items())


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
        f"| {f'**{name}**' if name in required else name} | {_type(inner)} | {_default(inner)} | {_meaning(inner)} |"
        for name, inner in schema["properties"].items()
    ]
    more = "\nAny other field of Kubernetes' object may be written too.\n" if PRESERVE in schema else ""
    rules = [f"* {rule['message']}\n" for rule in schema.get(RULES_KEY, ())]
    return (
        f"{schema['description']}\n\n| field | type | default | meaning |\n|---|---|---|---|\n"
        + "".join(f"{row}\n" for row in rows)
        + more
        + (f"\nRefused otherwise:\n\n{''.join(rules)}" if rules else "")
    )


def _meaning(schema: Schema) -> str:
    rules = "".join(f" Refused otherwise: {rule['message']}." for rule in _own_rules(schema))
    return f"{schema['description']}{rules}".replace("|", "\\|")


def _own_rules(schema: Schema) -> list[Schema]:
    """The rules of a value and of its entries; those of an object stand under its own table."""
    if "properties" in schema:
        return []
    inner = schema.get("items") or schema.get("additionalProperties") or {}
    return [*schema.get(RULES_KEY, ()), *_own_rules(inner)] if inner else list(schema.get(RULES_KEY, ()))


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
