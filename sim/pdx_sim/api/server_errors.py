"""The malformed requests that vLLM 0.32 answers with 500, because its own code raises an exception. Pure.

docs/requests-at-fault.md lists them with their lines in vLLM.
"""

from collections.abc import Mapping
from typing import Any

from pdx_sim.api.paths import CHAT, COMPLETIONS, RESPONSES
from pdx_sim.api.request import APIError


def check(body: Mapping[str, Any], path: str) -> None:
    """Raise the 500 for such a body."""
    outputs = body.get("structured_outputs")
    if path in (CHAT, COMPLETIONS) and outputs is not None and not isinstance(outputs, dict):
        raise _error(f"'{type(outputs).__name__}' object has no attribute 'get'")
    if path == RESPONSES:
        _check_items(body.get("input"))
    choice = body.get("tool_choice")
    if path != CHAT or not isinstance(choice, dict):
        return
    for tool in body.get("tools") or ():
        for member in ("function", "name"):
            if not isinstance(tool, dict):
                return
            if member not in tool:
                raise _error(f"'{member}'")
            tool = tool[member]


def _check_items(items: object) -> None:
    """vLLM reads the text of the first part of each former answer."""
    for item in items if isinstance(items, list) else ():
        if not isinstance(item, dict) or (item.get("type"), item.get("role")) != ("message", "assistant"):
            continue
        parts = item.get("content")
        if parts == []:
            raise _error("list index out of range")
        if isinstance(parts, list) and isinstance(parts[0], dict) and parts[0].get("type") == "refusal":
            raise _error("'ResponseOutputRefusal' object has no attribute 'text'")


def _error(message: str) -> APIError:
    error = APIError(500, message, "InternalServerError")
    error.closes = True
    return error
