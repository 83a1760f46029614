"""Removes secrets, keys, prompts and answers from what a support bundle contains. Pure.

It removes too much rather than too little: in a log line, everything after the first name of a prompt goes.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

REMOVED: Final = "[removed]"

_SECRET_NAME: Final = re.compile(
    r"(^|[-_.])(api[-_]?keys?|auth|authorization|bearer|cookie|credentials?|passwd|password|private[-_]?key|secret|token|"
    r"access[-_]?key([-_]?id)?|x-api-key)$",
    re.IGNORECASE,
)
"""Names of fields, flags, headers and variables whose value is a secret."""
_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_HARMLESS: Final = re.compile(r"ref$|^automountServiceAccountToken$", re.IGNORECASE)
"""Names that contain such a word and refer to a secret without its value."""
_TEXT_NAMES: Final = frozenset(
    {
        *("prompt", "prompts", "prompt_token_ids", "prompt_embeds", "messages", "content"),
        *("input", "inputs", "text", "suffix", "completion", "reasoning_content"),
        *("output_text", "generated_text", "instructions", "documents", "query", "user"),
    }
)
"""Names of fields with text of users or of the model, in OpenAI's API and in vLLM's logs."""

_IN_LINE: Final = re.compile(
    r"(?P<name>(?<![\w-])(?:--)?[\"']?[A-Za-z_][\w.-]*[\"']?)\s*(?P<mark>[:=]|\s(?=\S))\s*(?P<value>\"[^\"]*\"|'[^']*'|\S+)"
)
_TEXT_IN_LINE: Final = re.compile(
    rf"(?<![\w-])[\"']?({'|'.join(sorted(_TEXT_NAMES - {'user', 'query', 'text', 'input', 'content'}))}"
    r"|(?<=[\"'])(?:text|input|content|user|query)(?=[\"']))[\"']?\s*[:=].*",
    re.IGNORECASE,
)
_TOKENS: Final = (
    re.compile(r"\b(Bearer|Basic)\s+[\w.~+/=-]+", re.IGNORECASE),
    re.compile(
        r"\b(hf|hf_oauth|sk|pk|rk|ghp|gho|ghs|github_pat|glpat|xox[abprs]|AKIA|ASIA|AIza|npm|nvapi)[-_]?[\w-]{12,}"
    ),
    re.compile(r"\beyJ[\w-]+\.[\w-]+\.[\w-]*"),  # JSON Web Tokens
    re.compile(r"://[^/\s:@]+:[^/\s@]+@"),  # user:password in a URL
    re.compile(r"\bsha256:[0-9a-f]{64}\b(?=\s+\S)"),  # lines of a file with API keys
)
_PEM: Final = re.compile(r"-----BEGIN [A-Z ]+-----.*?(-----END [A-Z ]+-----|\Z)", re.DOTALL)


def is_secret(name: str) -> bool:
    """Whether a field, flag, header or variable of this name has a secret as its value."""
    plain = _CAMEL.sub("_", name.strip("\"'").lstrip("-"))
    return _SECRET_NAME.search(plain) is not None and _HARMLESS.search(name) is None


def redacted(value: Any, name: str = "") -> Any:
    """Return an object without secrets and texts: values of such names, of `env` and of arguments are replaced."""
    if isinstance(value, Mapping):
        if set(value) >= {"name", "value"} and isinstance(value["name"], str):  # a variable, or a header
            secret = is_secret(value["name"])
            return {key: REMOVED if key == "value" and secret else redacted(entry, key) for key, entry in value.items()}
        return {key: redacted(entry, str(key)) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return (
            arguments([str(each) for each in value])
            if _is_arguments(value)
            else [redacted(each, name) for each in value]
        )
    if isinstance(value, str):
        return REMOVED if value and (is_secret(name) or name.lower() in _TEXT_NAMES) else text(value)
    return REMOVED if value is not None and not isinstance(value, bool) and is_secret(name) else value


def arguments(args: list[str]) -> list[str]:
    """Return a command line without the values of secret flags."""
    found: list[str] = []
    for arg in args:
        flag, equals, _ = arg.partition("=")
        follows = found[-1] if found else ""
        if equals and is_secret(flag):
            found.append(f"{flag}={REMOVED}")
        elif follows.startswith("-") and "=" not in follows and is_secret(follows) and not arg.startswith("--"):
            found.append(REMOVED)
        else:
            found.append(text(arg))
    return found


def text(page: str) -> str:
    """Return a log or another text without secrets, prompts and answers."""
    return "\n".join(_line(line) for line in _PEM.sub(REMOVED, page).split("\n"))


def _line(line: str) -> str:
    found = _TEXT_IN_LINE.search(line)
    if found is not None:
        line = f"{line[: found.end(1)]}: {REMOVED}"
    for pattern in _TOKENS:
        line = pattern.sub(REMOVED, line)
    return _IN_LINE.sub(_pair, line)


def _pair(found: re.Match[str]) -> str:
    name = found["name"]
    if not is_secret(name) or (not found["mark"].strip() and not name.startswith("--")):
        return found[0]
    return found[0][: found.start("value") - found.start()] + REMOVED


def _is_arguments(value: list[Any] | tuple[Any, ...]) -> bool:
    return any(isinstance(each, str) and each.startswith("-") for each in value)
