"""The map in ARCHITECTURE.md names every program, and nothing that does not exist."""

from scripts.architecture import PROGRAMS, problems
from tests.documents import ROOT

PROGRAMS_ONLY = " ".join(f"`{name}`" for name in PROGRAMS)


def test_the_map_is_right() -> None:
    assert list(problems((ROOT / "ARCHITECTURE.md").read_text(), ROOT)) == []


def test_an_omitted_program_and_an_invented_name() -> None:
    text = PROGRAMS_ONLY.replace("`pdx_sim`", "`pdx_proxy.http.routes` `pdx_proxy.listener`")

    assert [line.split("`")[1] for line in problems(text, ROOT)] == ["pdx_sim", "pdx_proxy.listener"]
