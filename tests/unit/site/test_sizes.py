"""`make check` refuses pages that nobody reads to the end."""

from pathlib import PurePosixPath

from scripts.site.sizes import LIMIT, problems, size


def found(pages: dict[str, str], total: int = 10**6) -> list[str]:
    return list(problems({PurePosixPath(path): text for path, text in pages.items()}, total))


def test_a_page_has_a_limit() -> None:
    assert found({"docs/page.md": "a" * LIMIT}) == []
    assert found({"docs/page.md": "a" * (LIMIT + 1)})[0].startswith(f"docs/page.md has {LIMIT + 1} bytes: ")


def test_what_is_generated_does_not_count() -> None:
    begin = "<!-- Written by `make generate` from x. -->"
    assert size(f"ab{begin}\nlong") == 2
    assert size(f"ab{begin}\nlong<!-- End of what `make generate` writes. -->\nc") == 4
    assert found({"docs/reference.md": "a" * 10**6, "benchmarks/a/README.md": "a" * 10**6}) == []


def test_some_pages_have_a_smaller_limit() -> None:
    assert "at most 6000" in found({"CONTRIBUTING.md": "a" * 6001})[0]


def test_all_pages_together_have_a_limit() -> None:
    assert found({"docs/page.md": "a" * 10, "README.md": "a" * 10, "docs/index.md": "a" * 10}, total=29) == [
        "All pages have 30 bytes: write at most 29"
    ]
