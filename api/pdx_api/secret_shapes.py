"""Secrets without a name before them: known by their own form, or by the address or the command around them. Pure."""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from pdx_api.user_info import USER_INFO

REMOVED: Final = "[removed]"

_TOKENS: Final = (
    re.compile(r"(?<![\w-])(?:sk|pk|rk|glpat|glsoat|nvapi|xox[abeprs]|pypi|xai|pplx|fw|tskey|tvly)-[\w-]{12,}"),
    re.compile(r"\b(?:gh[opsur]|github_pat|dckr_pat|hf|hf_oauth|npm|gsk|r8|fw|glsa|figd|lsv2_[a-z]{2})_[\w.-]{12,}"),
    re.compile(r"\b(?:[spr]k_(?:live|test)|whsec|rubygems|do[opr]_v1|shp[a-z]{2})_\w{12,}|\bsq0[a-z]{3}-[\w-]{12,}"),
    re.compile(r"\b(?:ya29|hv[bsr]|SG)\.[\w.-]{12,}|\bdapi[0-9a-f]{32}|\bAGE-SECRET-KEY-\w+|\b\w{3}\dQ~[\w.~-]{12,}"),
    re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}|\b(?:AIza|ATATT)[\w=-]{12,}"),
    re.compile(r"\beyJ[\w-]+\.[\w-]+\.[\w-]*"),  # JSON Web Tokens
    re.compile(r"\bsha256:[0-9a-f]{64}\b(?=\s+\S)"),  # lines of a file with API keys
)
_REST: Final = r"[^\s\"'`\\,;)\]}<>]+"
_SCHEMES: Final = re.compile(rf"\b(?i:bearer)\s+{_REST}|\b(?i:basic)\s+(?=[\w+/]*[\d=+/A-Z])[\w+/=]{{8,}}")
_ADDRESSES: Final = (
    USER_INFO,
    re.compile(
        r"(?i)(?<=[?&])(?:sig|signature|key|code|x-(?:amz|goog)-(?:signature|credential|security-token))=[^\s&\"']+"
    ),
    re.compile(
        r"(?i)(?:(?<=hooks\.slack\.com/)|(?<=discord\.com/api/webhooks/)|(?<=discordapp\.com/api/webhooks/)"
        r"|(?<=webhook\.office\.com/)|(?<=hooks\.zapier\.com/)|(?<=/with/key/)|(?<=api\.telegram\.org/bot)"
        r"|(?<=/open-apis/bot/))[^\s\"'<>]+"
    ),
)
"""Passwords and signatures in addresses, and addresses that are secrets themselves."""
_FILES: Final = (
    re.compile(r"\blogin\s+\S+\s+password\s+\S+|^\s*(?:password|passwd)\s+\S+$"),  # .netrc
    re.compile(r"(?<![\w.:*-])[\w.*-]++:(?:\d{2,5}|\*):[\w*-]+:[\w*-]+:\S+"),  # .pgpass
)

COMMANDS: Final = {
    **dict.fromkeys(("sshpass", "mysql", "mysqldump", "mysqladmin", "mariadb", "mongo", "mongosh", "mongodump"), "p"),
    **dict.fromkeys((f"{program} login" for program in ("docker", "podman", "nerdctl", "buildah", "registry")), "p"),
    **dict.fromkeys(("redis-cli", "valkey-cli"), "a"),
    **dict.fromkeys(("ldapsearch", "ldapmodify"), "w"),
    "curl": "u",
}
"""Programs, and the letter of their flag whose value is a password."""
_COMMAND: Final = re.compile(rf"(?<![\w.-])(?P<command>{'|'.join(COMMANDS)})(?![\w-])(?P<words>[^|;&]*)")
_LOGIN: Final = re.compile(r"\b(?:wandb|vastai|ngrok\s+config)\s+(?:login|add-authtoken|set\s+api-key)\s+(?!-)\S+")
_LITERAL: Final = re.compile(r"(?<=--from-literal)[=\s]\\*[\"']?[^\s=]+=\S+")

_BETWEEN: Final = r"(?:[\s:=\"'`(]+[A-Za-z]+){0,2}[\s:=\"'`(\[{]+"
_PROSE: Final = re.compile(
    r"(?i)\b(?:pass(?:word|wd|phrase|code)|secret|token|credentials?|(?:api|access|auth|private|account)[ _-]?key)\b"
    rf"{_BETWEEN}(?P<value>[^\s\"'`,;()\[\]{{}}<>]{{8,}})"
)
"""A word for a secret, at most two more words, and what may be the secret."""
_NAME_OR_PATH: Final = re.compile(
    r"[a-z]*(?:[-_.][a-z0-9]+)+|[\d.:-]+|\.{0,2}/.*|[a-z0-9._-]*/[a-z0-9._/-]*|[A-Za-z-]+/[A-Z][a-z]+[\w.-]*|\w+[=:].*"
)
_RUN: Final = re.compile(r"[A-Za-z0-9_+-]{20,}")
_CHANGES: Final = 0.4
"""Changes between capitals, small letters and digits in a random run, for each of its characters. Words have fewer."""


def without_shapes(line: str) -> str:
    """Return a line without the secrets that can be recognized without their name."""
    for shape in (*_TOKENS, _SCHEMES, *_ADDRESSES, *_FILES, _LOGIN, _LITERAL):
        line = shape.sub(REMOVED, line)
    line = _COMMAND.sub(_command, line)
    line = _PROSE.sub(_prose, line)
    return _RUN.sub(lambda run: REMOVED if _is_random(run[0]) else run[0], line)


def password_flags(args: Sequence[str]) -> frozenset[str]:
    """Return the short flags of a command line that have a password as their value."""
    words = f" {' '.join(arg.rpartition('/')[2] for arg in args)} "
    return frozenset(f"-{letter}" for command, letter in COMMANDS.items() if f" {command} " in words)


def _command(found: re.Match[str]) -> str:
    flag = re.compile(
        rf"(?<=\s)(\\*[\"']?(?:-{COMMANDS[found['command']]}|--user|--pass\w*))(?![a-z]+(?:\s|=))(\\*[\"']?,?[\s=]*)(\S+)"
    )
    return found["command"] + flag.sub(rf"\1\2{REMOVED}", found["words"])


def _prose(found: re.Match[str]) -> str:
    value = found["value"]
    has_both = any(map(str.isdigit, value)) and any(map(str.isalpha, value))
    if not has_both or _NAME_OR_PATH.fullmatch(value):
        return found[0]
    return f"{found[0][: found.start('value') - found.start()]}{REMOVED}"


def _is_random(run: str) -> bool:
    """Whether letters and digits change as often as in a generated token."""
    kinds = [(one.isupper(), one.isdigit()) for one in run if one.isalnum()]
    changes = sum(first != second for first, second in pairwise(kinds))
    return len(set(kinds)) == 3 and changes >= _CHANGES * len(run)
