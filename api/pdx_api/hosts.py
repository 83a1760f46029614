"""Host names that a user has written. Pure."""

from typing import Final

_LONGEST: Final = 63
"""Characters between two dots of a host name (RFC 1035)."""
_LONGEST_NAME: Final = 253
"""Characters of a whole host name."""


def host_problem(host: str) -> str:
    """Return why no resolver accepts a host name, as a clause; empty if one may accept it, or for an IP address."""
    if any(character.isspace() for character in host):
        return "its host name has a space"
    if "\0" in host:
        return "its host name has a NUL character"
    try:
        host.encode("idna")
    except UnicodeError:
        parts = host.removesuffix(".").split(".")
        if "" in parts:
            return "its host name has an empty part"
        if any(len(part) > _LONGEST for part in parts):
            return f"its host name has a part of more than {_LONGEST} characters"
        return "its host name is not valid"
    return f"its host name has more than {_LONGEST_NAME} characters" if len(host) > _LONGEST_NAME else ""
