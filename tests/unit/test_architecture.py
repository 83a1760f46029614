"""The map in ARCHITECTURE.md names every package, and nothing that does not exist."""

from pathlib import Path

import pytest

from scripts.architecture import BEGIN, architecture, packages, problems


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with one program of two packages and two modules."""
    package = tmp_path / "proxy/pdx_proxy/http"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text('"""The gateway."""\n')
    (package / "__init__.py").write_text('"""HTTP. Imports nothing."""\n')
    (package / "routes.py").write_text('"""The paths.\n\nMore.\n"""\n')
    return tmp_path


def test_a_complete_map(checkout: Path) -> None:
    assert packages(checkout) == ["pdx_proxy", "pdx_proxy.http"]
    assert list(problems("`pdx_proxy` `pdx_proxy.http` `pdx_proxy.http.routes`", checkout)) == []


def test_an_omitted_package_and_an_invented_name(checkout: Path) -> None:
    found = list(problems(f"`pdx_proxy` `pdx_proxy.listener`\n{BEGIN}`pdx_proxy.http`", checkout))

    assert [line.split("`")[1] for line in found] == ["pdx_proxy.http", "pdx_proxy.listener"]


def test_the_list_has_every_docstring(checkout: Path) -> None:
    text = architecture(f"Prose.\n{BEGIN}old", checkout)

    assert text.startswith(f"Prose.\n{BEGIN}\n### `pdx_proxy`\nThe gateway.\n")
    assert text.endswith("### `pdx_proxy.http`\nHTTP. Imports nothing.\n\n* `routes`: The paths.\n")


def test_an_import_that_the_table_does_not_allow(checkout: Path) -> None:
    (checkout / "proxy/pdx_proxy/http/routes.py").write_text("from pdx_proxy.payload.body import Body\n")
    payload = checkout / "proxy/pdx_proxy/payload"
    payload.mkdir()
    (payload / "__init__.py").touch()
    row = "`pdx_proxy` `pdx_proxy.payload`\n| `pdx_proxy.http` | routes | {} |\n"

    assert list(problems(row.format("payload (only `Body`)"), checkout)) == []
    assert list(problems(row.format("every package"), checkout)) == []
    assert [line.split("`")[1::2] for line in problems(row.format("none"), checkout)] == [
        ["pdx_proxy.http", "pdx_proxy.payload"]
    ]
