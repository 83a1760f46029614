"""What vLLM's code says about one assumption: a value for each kind of assumption, read from syntax trees. Pure."""

import ast
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

Value = bool | int | float | str | list[str] | None
"""None: the code does not have it."""
Lookup = Callable[[ast.Module, str], Value]
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_METRIC_KINDS: Final = ("counter", "gauge", "histogram")
_METHODS: Final = ("get", "post", "put", "delete")


def _scopes(tree: ast.Module, qualified: str) -> Iterator[ast.AST]:
    """Each class or function of this qualified name, at any depth."""
    found: list[ast.AST] = [tree]
    for name in qualified.split("."):
        found = [
            node
            for scope in found
            for node in ast.walk(scope)
            if isinstance(node, ast.ClassDef | _Function) and node.name == name and node is not scope
        ]
    yield from found


def _text(node: ast.AST | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _value(node: ast.expr) -> Value:
    """Return a literal as it is, a list of literals as texts, and other expressions as code."""
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError):
        return ast.unparse(node)
    if isinstance(value, bool | int | float | str):
        return value
    return sorted(map(str, value)) if isinstance(value, list | tuple | set | frozenset) else ast.unparse(node)


def _calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func).rpartition(".")[2], node


def connector(tree: ast.Module, name: str) -> Value:
    """Return module and class under which vLLM registers a connector."""
    for called, node in _calls(tree):
        if called == "register_connector" and len(node.args) == 3 and _text(node.args[0]) == name:
            return f"{_text(node.args[1])}:{_text(node.args[2])}".rpartition("kv_connector.v1.")[2]
    return None


def constant(tree: ast.Module, name: str) -> Value:
    """Return the value of `NAME` in a module, of `Class.NAME`, or of an attribute: `Class.method.NAME`."""
    owner, _, last = name.rpartition(".")
    for scope in _scopes(tree, owner) if owner else (tree,):
        for node in getattr(scope, "body", ()):
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if any(_name(target) == last for target in targets):
                    return _value(node.value)
    return None


def _name(target: ast.expr) -> str:
    return target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")


def field(tree: ast.Module, name: str) -> Value:
    """Return the type of the member `Class.name`, and its default if that is a literal."""
    owner, _, last = name.rpartition(".")
    for scope in _scopes(tree, owner):
        for node in getattr(scope, "body", ()):
            if isinstance(node, ast.AnnAssign) and _name(node.target) == last:
                default = _default(node.value)
                return ast.unparse(node.annotation) + ("" if default is None else f" = {ast.unparse(default)}")
    return None


def _default(value: ast.expr | None) -> ast.Constant | None:
    if isinstance(value, ast.Call):  # pydantic's Field
        named = (each.value for each in value.keywords if each.arg == "default")
        value = next(named, next(iter(value.args), None))
    return value if isinstance(value, ast.Constant) and value.value is not Ellipsis else None


def environment(tree: ast.Module, name: str) -> Value:
    """Return the default of an environment variable that vLLM reads, or True if only the name is there."""
    names = {_text(key) for node in ast.walk(tree) if isinstance(node, ast.Dict) for key in node.keys if key}
    if name not in names:
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name:
            return True if node.value is None else str(_value(node.value))
    return True


def flag(tree: ast.Module, name: str) -> Value:
    """Return all names of a flag of vLLM's command line; True for a flag with one name."""
    for called, node in _calls(tree):
        names = [text for arg in node.args if (text := _text(arg)) is not None]
        if called == "add_argument" and name in names:
            return True if len(names) == 1 else sorted(names)
    return None


def option(tree: ast.Module, name: str) -> Value:
    """Return the default of a setting of `kv_connector_extra_config`; several defaults as one text."""
    found = set()
    for called, node in _calls(tree):
        if called in ("get_from_extra_config", "get") and node.args and _text(node.args[0]) == name.partition(":")[0]:
            found.add(ast.unparse(node.args[1]) if len(node.args) > 1 else "None")
    return ", ".join(sorted(found)) or None


def route(tree: ast.Module, name: str) -> Value:
    """Return whether there is a route `METHOD /path`."""
    method, _, path = name.partition(" ")
    routed = (node for called, node in _calls(tree) if called in _METHODS and called == method.lower())
    return True if any(node.args and _text(node.args[0]) == path for node in routed) else None


def metric(tree: ast.Module, name: str) -> Value:
    """Return the kind of a metric."""
    for called, node in _calls(tree):
        texts = [_text(keyword.value) for keyword in node.keywords if keyword.arg == "name"]
        texts += [_text(arg) for arg in node.args[:1]]
        if name in texts:
            return next((kind for kind in _METRIC_KINDS if kind in called.lower()), called)
    return None


def text(tree: ast.Module, name: str) -> Value:
    """Return whether a string of the code, documentation excepted, contains this text."""
    return _contains(tree, name)


def says(tree: ast.Module, name: str) -> Value:
    """The same for `Class.method:text`, in this scope."""
    where, _, wanted = name.partition(":")
    return next((True for scope in _scopes(tree, where) if _contains(scope, wanted)), None)


def statuses(tree: ast.Module, name: str) -> Value:
    """Return the HTTP statuses that a function answers."""
    for scope in _scopes(tree, name):
        keywords = [each.value for _, node in _calls(scope) for each in node.keywords if each.arg == "status_code"]
        return sorted({ast.unparse(value) for value in keywords})
    return None


def _contains(scope: ast.AST, wanted: str) -> Value:
    documentation = {
        id(node.body[0].value)
        for node in ast.walk(scope)
        if isinstance(node, ast.Module | ast.ClassDef | _Function) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(scope):
        if id(node) in documentation:
            continue
        if isinstance(node, ast.JoinedStr):
            found = "".join(_text(part) or "{}" for part in node.values)
        else:
            found = _text(node) or ""
        if wanted in found:
            return True
    return None


def reads(tree: ast.Module, name: str) -> Value:
    """Return whether `Class.method:key` reads this key of an object, or names it in a list of keys."""
    where, _, key = name.partition(":")
    for scope in _scopes(tree, where):
        for node in ast.walk(scope):
            if isinstance(node, ast.Subscript) and _text(node.slice) == key:
                return True
            if isinstance(node, ast.Call) and any(_text(arg) == key for arg in node.args):
                return True
            if isinstance(node, ast.Tuple) and any(_text(one) == key for one in node.elts):
                return True
    return None


def answers(tree: ast.Module, name: str) -> Value:
    """Return all keys of the objects with more than one key that `Class.method` builds."""
    found: set[str] = set()
    for scope in _scopes(tree, name):
        for node in ast.walk(scope):
            keys: list[str | None] = []
            if isinstance(node, ast.Dict):
                keys = [_text(key) for key in node.keys if key]
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "dict":
                keys = [keyword.arg for keyword in node.keywords]
            if len(keys) > 1:
                found.update(key for key in keys if key)
    return sorted(found) or None


def method(tree: ast.Module, name: str) -> Value:
    """Return the parameters of a function."""
    for scope in _scopes(tree, name):
        if isinstance(scope, _Function):
            return [arg.arg for arg in (*scope.args.posonlyargs, *scope.args.args, *scope.args.kwonlyargs)]
    return None


def bases(tree: ast.Module, name: str) -> Value:
    """Return the base classes of a class."""
    for scope in _scopes(tree, name):
        if isinstance(scope, ast.ClassDef):
            return [ast.unparse(base) for base in scope.bases]
    return None


def call(tree: ast.Module, name: str) -> Value:
    """Return the first argument of the first call of a function."""
    return next((_value(node.args[0]) for called, node in _calls(tree) if called == name and node.args), None)


def members(tree: ast.Module, name: str) -> Value:
    """Return the names of an enumeration, or of the fields of a class, in alphabetical order."""
    for scope in _scopes(tree, name):
        body = getattr(scope, "body", ())
        found = [node.targets[0] for node in body if isinstance(node, ast.Assign)]
        found += [node.target for node in body if isinstance(node, ast.AnnAssign)]
        return sorted(target.id for target in found if isinstance(target, ast.Name))
    return None


def uses(tree: ast.Module, name: str) -> Value:
    """Return whether `Class.method:attribute` reads or writes this attribute of an object."""
    where, _, attribute = name.partition(":")
    nodes = (node for scope in _scopes(tree, where) for node in ast.walk(scope))
    return next((True for node in nodes if isinstance(node, ast.Attribute) and node.attr == attribute), None)


LOOKUPS: Final[dict[str, Lookup]] = {
    each.__name__: each
    for each in (
        *(answers, bases, call, connector, constant, environment, field, flag, members, method, metric, option, reads),
        *(route, says, statuses, text, uses),
    )
}
"""The kinds of assumptions, by name."""


def token(kind: str, name: str) -> str:
    """Return a word that a file must contain to have this."""
    if kind in ("text", "says"):
        return name.rpartition(":")[2].partition("{}")[0]
    if kind == "route":
        return name.partition(" ")[2]
    if kind in ("flag", "metric", "option", "environment", "connector"):
        return name.partition(":")[0] if kind == "option" else name
    return name.partition(":")[0].rpartition(".")[2]


def found_in(trees: Iterator[ast.Module], kind: str, name: str) -> Value:
    """Return the first value that one of the files has. Code that is nested too deep to be read has none."""
    for tree in trees:
        with suppress(RecursionError):
            if (value := LOOKUPS[kind](tree, name)) is not None:
                return value
    return None
