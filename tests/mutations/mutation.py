"""One mutation of the gateway."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutation:
    """The broken line, and the test that must fail."""

    breaks: str
    file: str
    old: str
    new: str
    test: str
