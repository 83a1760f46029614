"""What is written about the files of a release, and archives that are the same in every run."""

import io
import json
import tarfile
from pathlib import Path

import pytest

from scripts.release.artifacts import artifacts, checksums, repacked, table
from scripts.release.bills import chart_bill, debian_components, image_bill
from scripts.release.names import Names
from scripts.release.notes import absolute, changes, section

NAMES = Names("r.example", "acme", "pdx", "1.2.3")
CHANGELOG = """\
# Changelog

## 1.2.3 (2026-11-30)
### Fixed
* A gateway `x` no longer waits ([gateway](docs/gateway.md#x)).
### Gateway
* See [pages](docs/a.md), [there](https://x.example/b) and [here](#c).

## 1.2.2 (2026-01-01)
* Old.
"""
STATUS = """\
Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9
Description: C
 Version: none

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1
"""


def packed(files: dict[str, bytes], mtime: int) -> bytes:
    """A tar.gz as helm writes it: in any order, with times and owners."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.uid = len(text), mtime, mtime % 1000
            tar.addfile(member, io.BytesIO(text))
    return buffer.getvalue()


def test_an_archive_is_the_same_whenever_it_was_packed() -> None:
    one = repacked(packed({"pdx/b": b"2", "pdx/a": b"1"}, 1_700_000_001), 7)
    other = repacked(packed({"pdx/a": b"1", "pdx/b": b"2"}, 1_800_000_002), 7)
    assert one == other
    with tarfile.open(fileobj=io.BytesIO(one)) as tar:
        assert [(each.name, each.mtime, each.uid) for each in tar] == [("pdx/a", 7, 0), ("pdx/b", 7, 0)]
    assert repacked(packed({"pdx/a": b"1"}, 1), 7) != repacked(packed({"pdx/a": b"2"}, 1), 7)


def test_the_table_and_the_checksums_have_every_file(tmp_path: Path) -> None:
    (tmp_path / "b.whl").write_bytes(b"x" * 1500)
    (tmp_path / "a.tar").write_bytes(b"x" * 2_500_000)
    (tmp_path / "SHA256SUMS").touch()
    found = artifacts(tmp_path)
    assert [line.split()[1] for line in checksums(found).splitlines()] == ["a.tar", "b.whl"]
    assert [line.split()[:3] for line in table(found).splitlines()[1:]] == [
        ["a.tar", "2.5", "MB"],
        ["b.whl", "1.5", "kB"],
    ]
    assert all(len(line.split()[-1]) == 64 for line in table(found).splitlines()[1:])


def test_notes_are_the_section_of_the_version() -> None:
    found = section(CHANGELOG, "1.2.3")
    assert found.date == "2026-11-30"
    assert list(changes(found)) == [
        ("fixed", "A gateway x no longer waits."),
        ("added", "See pages, there and here."),
    ]
    text = absolute(found.text, "https://h/blob/v1")
    assert "[gateway](https://h/blob/v1/docs/gateway.md#x)" in text
    assert "[there](https://x.example/b)" in text
    with pytest.raises(ValueError, match="no section `## 9"):
        section(CHANGELOG, "9")


def test_an_image_lists_what_debian_has_installed() -> None:
    assert [each["purl"] for each in debian_components(STATUS)] == ["pkg:deb/debian/libc6@2.36-9?arch=amd64"]


def test_the_charts_bill_names_both_images() -> None:
    bill = json.loads(chart_bill(NAMES, "2026-11-30T00:00:00+00:00"))
    assert [each["bom-ref"] for each in bill["components"]] == [NAMES.image("gateway"), NAMES.image("operator")]


def test_an_images_bill_is_read_from_its_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = "opt/pdx/lib/python3.11/site-packages/kopf-1.dist-info/METADATA"
    layers = {
        "1.tar": {"var/lib/dpkg/status": b""},
        "2.tar": {
            site: b"Name: kopf",
            site.replace("METADATA", "direct_url.json"): b"{}",
            "./var/lib/dpkg/status": STATUS.encode(),
        },
    }
    files = {name: packed(held, 1) for name, held in layers.items()}
    manifest = json.dumps([{"Layers": list(layers)}]).encode()
    archive = tmp_path / "gateway.tar"
    archive.write_bytes(packed({**files, "manifest.json": manifest}, 1))
    seen: list[str] = []

    def environment(python: Path, epoch: int) -> str:
        folder = Path(json.loads(python.read_text().splitlines()[1].removeprefix("echo ").strip("'"))[0])
        seen.extend(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
        return json.dumps({"components": [{"name": "kopf"}], "metadata": {}})

    monkeypatch.setattr("scripts.release.bills.environment_bill", environment)
    bill = json.loads(image_bill(archive, NAMES, "gateway", 1))
    assert seen == ["kopf-1.dist-info/METADATA"]
    assert [each["name"] for each in bill["components"]] == ["kopf", "libc6"]
    assert bill["metadata"]["component"]["bom-ref"] == "r.example/acme/pdx/gateway:1.2.3"
