"""Members of a body, such as `tools`, from which the gateway reads only the `type` of each object.

This module is not compiled: msgspec reads the annotations, and a compiled class has none.
"""

from typing import Any, Final

import msgspec

_CLIENTS_TOOLS: Final = frozenset(("function", "custom", "namespace", "local_shell", "apply_patch"))
"""Types of tools that the client runs. With --tool-server, vLLM runs some of the others
(entrypoints/openai/responses/utils.py, `extract_tool_types`), and it may run more of them in a later version."""
_MAX_BYTES: Final = 1024 * 1024
"""A larger list of tools is not read at once. Its request is not split."""


class _Typed(msgspec.Struct):
    type: str = ""


_TOOLS: Final = msgspec.json.Decoder(list[_Typed] | None)
_OBJECT: Final = msgspec.json.Decoder(_Typed)
_FORCED: Final = "tool"
"""The type of a message's `tool_choice` that names a tool."""


def are_clients_tools(tools: Any) -> bool:
    """Whether the client itself runs every tool of a JSON list. False for what vLLM refuses."""
    if len(tools) > _MAX_BYTES:
        return False
    try:
        found = _TOOLS.decode(tools)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return found is None or all(tool.type in _CLIENTS_TOOLS for tool in found)


def forces_tool(tool_choice: Any) -> bool:
    """Whether a message's JSON value of `tool_choice` names the tool that the answer must call."""
    try:
        return len(tool_choice) > _MAX_BYTES or _OBJECT.decode(tool_choice).type == _FORCED
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def thinks_within_budget(thinking: Any) -> bool:
    """Whether a JSON value of `thinking` sets a budget of tokens."""
    try:
        return _OBJECT.decode(thinking).type == "enabled"
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
