"""URLs with a user and a password before the host: in no sentence, log or name. Pure."""

import re
from typing import Final

USER_INFO: Final = re.compile(
    r"(?<=://)[^\s/\"'<>]{0,999}@|(?<=://)[^\s/\"'<>@:]{0,99}:[^\s\"'<>]{0,999}@",
)
"""User and password of a URL within a text, with the @ behind them."""
_BEFORE_HOST: Final = re.compile(r"^(\w+://)?.*@", re.DOTALL)


def without_user_info(text: str) -> str:
    """Return a text whose URLs show no user and no password."""
    return USER_INFO.sub("…@", text) if "@" in text else text


def shown_url(given: str) -> str:
    """Return what a user has written as a URL, for a sentence about it: without all that is before an @."""
    return _BEFORE_HOST.sub(r"\1…@", given)
