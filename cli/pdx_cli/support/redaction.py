"""Removes secrets, keys, prompts and answers from what a support bundle contains. Pure.

Structures come first: the fields of Kubernetes objects say what a value is. What is left is text.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pdx_api.names import ANNOTATION_TEMPLATE
from pdx_api.secret_shapes import REMOVED, password_flags
from pdx_cli.support import text_redaction
from pdx_cli.support.secret_names import TEXT_NAMES, is_harmless_variable, is_secret

__all__ = ["LEVELS", "REMOVED", "arguments", "is_secret", "redacted", "text"]

LEVELS: Final = 100
"""Levels of a structure that are shown."""
_COPIES: Final = ("last-applied-configuration", "last-applied", ANNOTATION_TEMPLATE)
"""Ends of the names of annotations that hold a copy of an object."""
_ENVIRONMENTS: Final = frozenset({"env", "environ", "environment", "envvars", "variables"})
_IDENTITIES: Final = frozenset(
    {"name", "key", "namespace", "kind", "field", "apiVersion", "secretName", "path", "type", "reason", "optional"}
)
"""Fields of a reference to a secret."""
_FLAG: Final = re.compile(r"--?[A-Za-z][\w.-]*")
_PLAIN_WORDS: Final = ("true", "false", "none", "null")


def redacted(value: Any, name: str = "", level: int = 0) -> Any:
    """Return an object without secrets and texts: values of such names, of variables and of arguments are replaced."""
    if level > LEVELS or isinstance(value, bytes | bytearray):
        return REMOVED
    if isinstance(value, Mapping):
        return _mapping(value, name, level + 1)
    if isinstance(value, list | tuple | set | frozenset):
        if not is_secret(name) and _is_arguments(value):
            return arguments([one if isinstance(one, str) else str(one) for one in value])
        return [redacted(one, name, level + 1) for one in value]
    if isinstance(value, str):
        return REMOVED if _is_removed(name, value) else _text_or_document(value, level)
    return REMOVED if value is not None and not isinstance(value, bool) and is_secret(name) else value


def text(page: str) -> str:
    """Return a log or another text without secrets, prompts and answers. A line may contain a document in JSON."""
    return text_redaction.text("\n".join(_without_secrets_in_document(line) for line in page.split("\n")))


def _without_secrets_in_document(line: str) -> str:
    start = line.find('{"')
    if start < 0:
        return line
    try:
        document, end = json.JSONDecoder().raw_decode(line, start)
    except (ValueError, RecursionError):
        return line
    shown = redacted(document)
    return line if shown == document else f"{line[:start]}{json.dumps(shown, ensure_ascii=False)}{line[end:]}"


def _is_removed(name: str, value: str) -> bool:
    if not value or value.lower() in _PLAIN_WORDS:
        return False
    return is_secret(name) or name.lower() in TEXT_NAMES


def _mapping(value: Mapping[Any, Any], name: str, level: int) -> dict[str, Any]:
    """Return a mapping without secrets. `name` is that of the field which holds it."""
    hidden = _hidden_fields(value, name)
    shown: dict[str, Any] = {}
    for key, entry in value.items():
        field = str(key)
        if name == "annotations" and field.endswith(_COPIES):
            continue
        if field in hidden:
            shown[field] = REMOVED if entry else entry
        elif is_secret(name):
            shown[text(field)] = _entry_of_secret(entry, field, name, level)
        else:
            shown[text(field)] = redacted(entry, field, level)
    return shown


def _hidden_fields(value: Mapping[Any, Any], name: str) -> set[str]:
    """The fields of a mapping whose values are variables, or belong to a Secret."""
    fields = {str(key).lower(): str(key) for key in value}
    if {"name", "value"} <= set(fields):
        return {fields["value"]} if _hides(str(value[fields["name"]])) else set()
    if {"key", "value"} <= set(fields):
        return {fields["value"]} if is_secret(str(value[fields["key"]])) else set()
    if value.get("kind") == "Secret":
        return {"data", "stringData"}
    if name.lower() in _ENVIRONMENTS and "name" not in fields:
        return {field for field in map(str, value) if _hides(field)}
    return set()


def _entry_of_secret(entry: Any, field: str, name: str, level: int) -> Any:
    """An entry of a mapping that is the value of a secret, or that refers to one."""
    if entry is None or isinstance(entry, bool):
        return entry
    if isinstance(entry, Mapping | list | tuple):
        return redacted(entry, field if field.endswith(("Ref", "Refs")) or is_secret(field) else name, level)
    return _text_or_document(str(entry), level) if field in _IDENTITIES else REMOVED


def _hides(variable: str) -> bool:
    """Whether the value of an environment variable is removed: all but a few are unknown."""
    return not is_harmless_variable(variable)


def _text_or_document(value: str, level: int) -> str:
    """Return a text without secrets. A text may itself be a document in JSON."""
    return text(_document(value, level) or value)


def _document(value: str, level: int) -> str:
    """Return a document in JSON without secrets; empty if the text is none, or if it contains none."""
    if value.lstrip()[:1] not in ("{", "["):
        return ""
    try:
        document = json.loads(value)
    except (ValueError, RecursionError):
        return ""
    shown = redacted(document, "", level + 1)
    return "" if shown == document else json.dumps(shown, ensure_ascii=False)


def arguments(args: Sequence[str]) -> list[str]:
    """Return a command line without the values of secret flags."""
    shown: list[str] = []
    short = password_flags(args)
    secret = values = False
    for arg in args:
        flag, equals, value = arg.partition("=")
        is_flag = _FLAG.fullmatch(flag) is not None and (not secret or values or arg.startswith("--"))
        if is_flag:
            hides = is_secret(flag) or flag in short
            secret, values = hides and not equals, False
            shown.append(f"{flag}={REMOVED}" if equals and value and hides else _argument(arg))
        elif secret:
            values = True
            shown.append(REMOVED)
        else:
            shown.append(_argument(arg))
    return shown


def _argument(arg: str) -> str:
    """Return one argument without secrets. Its value may be a variable or a document in JSON."""
    flag, equals, value = arg.partition("=")
    if equals and flag.isidentifier():
        return f"{flag}={REMOVED}" if value and _hides(flag) else arg
    if _FLAG.fullmatch(flag) and value[:1] in ("{", "["):
        return f"{flag}={_text_or_document(value, 0)}"
    return _text_or_document(arg, 0)


def _is_arguments(value: Any) -> bool:
    return any(isinstance(one, str) and one.startswith("-") for one in value)
