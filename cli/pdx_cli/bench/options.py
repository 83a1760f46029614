"""Types of the flags of `pdx bench`. Pure."""

import argparse
import math
import re
import shlex
from typing import Any, Final

from pdx_cli import usage

_GREATEST: Final = 1_000_000
"""Of factors and rates."""


def factor(text: str) -> float:
    """Type of a flag: a positive number, or a fraction such as 1/32."""
    return _positive(text, "a factor", "for example 0.5 or 1/32")


def rate(text: str) -> float:
    """Type of a flag: requests per second, also as a fraction."""
    return _positive(text, "a rate", "for example 4 or 0.5")


def rates(text: str) -> tuple[float, ...]:
    """Type of a flag: requests per second, separated by commas."""
    example = "for example 4 or 2,4,8"
    usage.text(f"write {example}")(text)
    parts = text.split(",")
    if not all(map(_is_number, parts)):
        raise argparse.ArgumentTypeError(f"{text} is not a list of rates; write {example}")
    return tuple(_positive(part.strip(), "a rate", example) for part in parts)


def _is_number(text: str) -> bool:
    try:
        return not math.isnan(float(text))
    except ValueError:
        return False


def _positive(text: str, what: str, example: str) -> float:
    """Parse a number above 0, or a fraction of two numbers."""
    usage.text(f"write {example}")(text)
    number, slash, divisor = text.replace(" ", "").partition("/")
    try:
        value = float(number) / float(divisor if slash else 1)
    except (ValueError, ZeroDivisionError):
        value = math.nan
    if math.isnan(value):
        raise argparse.ArgumentTypeError(f"{text} is not {what}; write {example}")
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text} is too small; write more than 0, {example}")
    if value >= _GREATEST:
        raise argparse.ArgumentTypeError(f"{text} is too large; write less than {_GREATEST}, {example}")
    return value


def count(least: int, most: int) -> Any:
    """Type of a flag: a whole number."""

    def parse(text: str) -> int:
        usage.text(f"write a whole number from {least} to {most}")(text)
        if not (text.isascii() and text.isdecimal() and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"{text} is not possible; write a whole number from {least} to {most}")
        return int(text)

    return parse


def chunks(text: str) -> tuple[int, ...]:
    """Type of a flag: tokens of chunks, separated by commas."""
    return _numbers(text, 1, "chunk sizes", "for example 512,2048")


def intervals(text: str) -> tuple[int, ...]:
    """Type of a flag: steps, separated by commas."""
    return _numbers(text, 2, "numbers of steps", "for example 2,8")


def _numbers(text: str, least: int, what: str, example: str) -> tuple[int, ...]:
    usage.text(f"write {example}")(text)
    parts = text.split(",")
    digits = [part.removeprefix("-") for part in parts]
    if not all(part.isascii() and part.isdecimal() for part in digits):
        raise argparse.ArgumentTypeError(f"{text} is not a list of {what}; write {example}")
    if small := next((part for part in parts if int(part) < least), None):
        raise argparse.ArgumentTypeError(f"{small} is too small; write more than {least - 1}, {example}")
    return tuple(map(int, parts))


def ratios(text: str) -> tuple[tuple[int, int], ...]:
    """Type of a flag: P:D, separated by commas."""
    example = "for example 1:3,2:2"
    usage.text(f"write {example}")(text)
    found = [re.fullmatch(r"([1-9]\d{0,3}):([1-9]\d{0,3})", part.strip()) for part in text.split(",")]
    if not all(found):
        raise argparse.ArgumentTypeError(f"{text} is not a list of ratios; write {example}")
    return tuple((int(each[1]), int(each[2])) for each in found if each)


def flags(text: str) -> tuple[str, ...]:
    """Type of a flag: flags of another program."""
    try:
        return tuple(shlex.split(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} has a quote without its end; close it") from None
