"""Kubernetes' quantities as numbers: `1000m` and `1` are equal, and the API server writes the shorter form."""

import re
from fractions import Fraction
from typing import Final

_QUANTITY: Final = re.compile(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+))(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][+-]?\d{1,3})?")
_DECIMAL: Final = {"n": -3, "u": -2, "m": -1, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
_BINARY: Final = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}


def quantity(text: str | int | float) -> Fraction | None:
    """The value of a quantity; None if the text is none (k8s.io/apimachinery `pkg/api/resource`)."""
    match = _QUANTITY.fullmatch(str(text))
    if match is None:
        return None
    number, suffix = Fraction(match[1]), match[2]
    if suffix is None:
        return number
    if suffix in _BINARY:
        return number * Fraction(1024) ** _BINARY[suffix]
    if suffix in _DECIMAL:
        return number * Fraction(1000) ** _DECIMAL[suffix]
    return number * Fraction(10) ** int(suffix[1:])
