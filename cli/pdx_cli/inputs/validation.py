"""What is wrong with a PDDeployment: by its schema, by Kubernetes and by vLLM. Pure."""

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from pdx_api.names import Role
from pdx_api.rules.spec_rules import FLAG_IS_FREE, FLAG_IS_NO_RANK, FLAG_IS_POSSIBLE
from pdx_api.spec.messages import Problem
from pdx_api.spec.parse import InvalidDeploymentError, parse
from pdx_api.spec.types import PDDeployment
from pdx_api.words import shown, written
from pdx_cli.inputs.names import ENGINE_IMAGE_RULE, IMAGE_RULE, NAMESPACE_RULE, is_image, is_namespace
from pdx_cli.inputs.object_rules import broken_rules

_CHECKED: Final[tuple[tuple[tuple[str, ...], Callable[[str], bool], str], ...]] = (
    (("metadata", "namespace"), is_namespace, NAMESPACE_RULE),
    (("spec", "engine", "image"), is_image, ENGINE_IMAGE_RULE),
    (("spec", "gateway", "image"), is_image, IMAGE_RULE),
)
"""Field, its check, and what to write: what the schema leaves to Kubernetes."""
_FLAG_AND_VALUE: Final = re.compile(r"(--?[A-Za-z][-.\w]*)\s+(.*)", re.DOTALL)
"""One argument with both. The value of another flag, such as JSON, does not begin with a dash and a letter."""
_FLAG_RULES: Final = (FLAG_IS_FREE, FLAG_IS_POSSIBLE, FLAG_IS_NO_RANK)


def checked(body: Any) -> PDDeployment:
    """Parse a body, and check what the schema leaves to Kubernetes and to vLLM; raises InvalidDeploymentError."""
    further = [*_names_and_images(body), *_joined_arguments(body), *broken_rules(body)]
    try:
        deployment = parse(body)
    except InvalidDeploymentError as error:
        paths = {problem.path for problem in further}
        raise InvalidDeploymentError(*(each for each in error.problems if each.path not in paths), *further) from error
    if further:
        raise InvalidDeploymentError(*further)
    return deployment


def _names_and_images(body: Any) -> Iterator[Problem]:
    for path, holds, rule in _CHECKED:
        value = body
        for step in path:
            value = value.get(step) if isinstance(value, dict) else None
        if isinstance(value, str) and value and not holds(value):
            yield Problem(path, f"{'.'.join(path)} is {shown(value)}; write {rule}.")
        elif value == "" and path[0] == "metadata":
            yield Problem(path, f"{'.'.join(path)} is empty; write {rule}, or leave it out.")


def _joined_arguments(body: Any) -> Iterator[Problem]:
    """Yield the arguments that have a flag and its value in one text, which vLLM does not split."""
    spec = body.get("spec") if isinstance(body, dict) else None
    for name in ("engine", *Role):
        part = spec.get(name) if isinstance(spec, dict) else None
        args = part.get("args") if isinstance(part, dict) else None
        for index, arg in enumerate(args if isinstance(args, list) else ()):
            if isinstance(arg, str) and (found := _FLAG_AND_VALUE.fullmatch(arg)):
                path = ("spec", str(name), "args", index)
                flag, value = found.groups()
                instead = f"write two entries, {flag} and its value, or {flag}={value}" if value else f"write {flag}"
                reason = next((rule.message for rule in _FLAG_RULES if not rule.holds(flag)), "")
                reason = reason or f"vLLM does not split an argument at a blank; {instead}"
                yield Problem(path, f"{written(path)} is {shown(arg)}: {reason}.")
