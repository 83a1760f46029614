"""Pages in which a part between two marks is generated, and the rest is written by hand. Pure."""

from typing import Final

END: Final = "<!-- End of what `make generate` writes. -->\n"


def with_part(document: str, begin: str, part: str) -> str:
    """Return the document with this text between the mark `begin` and the end mark."""
    before, _, rest = document.partition(begin)
    return before + begin + part + END + rest.partition(END)[2]
