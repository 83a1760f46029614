"""Checks who writes state where a request is served: `python -m scripts.ownership`.

In `handoff` and `serving` of the gateway, an attribute is assigned only through `self`, on an object that the same
function has made, or on a record of what happened. A class there has at most ten attributes.
"""

import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PACKAGES: Final = ("proxy/pdx_proxy/handoff", "proxy/pdx_proxy/serving")
RECORDS: Final = frozenset({"_trace", "counters", "log", "record", "timeline", "trace"})
"""Objects that only record what happened: everybody may write them."""
MOST_ATTRIBUTES: Final = 10

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def problems(path: str, source: str) -> Iterator[str]:
    """Yield a sentence for each foreign assignment and each class with too many attributes."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            attributes = sorted(_attributes(node))
            if len(attributes) > MOST_ATTRIBUTES:
                yield (
                    f"{path}:{node.lineno}: {node.name} has {len(attributes)} attributes; divide it, "
                    f"so that each class has at most {MOST_ATTRIBUTES}: {', '.join(attributes)}"
                )
        elif isinstance(node, _Function):
            made = _made(node)
            for target in _assigned(node):
                owner = _name(target.value)
                if owner != "self" and owner not in made | RECORDS:
                    text = ast.unparse(target)
                    yield f"{path}:{target.lineno}: {text} belongs to {owner}; assign it in a method of its class"


def _attributes(node: ast.ClassDef) -> set[str]:
    """Return the names that a class assigns through self, or declares as a dataclass."""
    fields = {
        each.target.id for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    methods = [each for each in node.body if isinstance(each, _Function)]
    own = {
        t.attr
        for method in methods
        for t in _assigned(method)
        if isinstance(t.value, ast.Name) and t.value.id == "self"
    }
    return fields | own


def _assigned(function: _Function) -> Iterator[ast.Attribute]:
    for node in ast.walk(function):
        targets: Iterable[ast.expr] = ()
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = (node.target,)
        for target in targets:
            parts = target.elts if isinstance(target, ast.Tuple) else (target,)
            yield from (part for part in parts if isinstance(part, ast.Attribute))


def _made(function: _Function) -> set[str]:
    """Return the local names that a function has assigned from a call."""
    made: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            made |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return made


def _name(owner: ast.expr) -> str:
    """Return the last name of the object: `timeline` of `request.timeline`."""
    if isinstance(owner, ast.Attribute):
        return owner.attr
    return owner.id if isinstance(owner, ast.Name) else ast.unparse(owner)


def main() -> int:
    """Print the problems; return 1 if there are any."""
    found = [
        problem
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        for problem in problems(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8"))
    ]
    sys.stderr.writelines(f"{problem}\n" for problem in found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
