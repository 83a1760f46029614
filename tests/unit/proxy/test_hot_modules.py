"""The modules that are compiled."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from proxy.compile import HOT

PACKAGE: Final = Path(__file__).parents[3] / "proxy" / "pdx_proxy"


def interpreted_subclasses(path: Path) -> Iterator[str]:
    """Yield the classes of a module whose base is compiled, while the module itself is not."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    compiled = {
        name.asname or name.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module
        if node.module.removeprefix("pdx_proxy.").replace(".", "/") in HOT
        for name in node.names
    }
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and any(isinstance(b, ast.Name) and b.id in compiled for b in node.bases):
            yield f"{path.relative_to(PACKAGE)}: {node.name}"


def test_hot_modules_exist() -> None:
    assert [name for name in HOT if not (PACKAGE / f"{name}.py").is_file()] == []


def test_no_interpreted_class_has_a_compiled_base() -> None:
    """Python cannot make one: it raises TypeError."""
    modules = [path for path in PACKAGE.rglob("*.py") if str(path.relative_to(PACKAGE).with_suffix("")) not in HOT]
    assert [found for path in modules for found in interpreted_subclasses(path)] == []
