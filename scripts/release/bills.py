"""Bills of materials (SBOM) in CycloneDX.

cyclonedx-bom writes them for Python, also for the Python environment inside an image: it is locked with hashes like the
wheel's, takes a second, and reads what is installed. syft would read the same environments, but takes three hundred Go
modules and minutes to build. cyclonedx-bom reads no Debian packages, so those of an image are added from dpkg's list.
"""

import json
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Final

from scripts.release.artifacts import ReleaseError
from scripts.release.names import IMAGES, Names
from scripts.release.programs import run

_STATUS: Final = "var/lib/dpkg/status"
_SHIM: Final = """\
#!/bin/sh
echo '["{packages}"]'
"""
"""Stands for the image's Python, which cannot run here: it answers what cyclonedx-bom asks for, the path of imports."""


def environment_bill(python: Path, epoch: int) -> str:
    """The packages that a Python finds."""
    program = Path(sys.executable).parent / "cyclonedx-py"
    return run(
        [program, "environment", "--output-reproducible", "--no-validate", python], {"SOURCE_DATE_EPOCH": str(epoch)}
    )


def image_bill(archive: Path, names: Names, image: str, epoch: int) -> str:
    """The Python and Debian packages of an image, from its archive; raises ReleaseError."""
    with tempfile.TemporaryDirectory() as folder, tarfile.open(archive) as tar:
        packages = _extracted(tar, Path(folder))
        shim = Path(folder) / "python"
        shim.write_text(_SHIM.format(packages=packages), encoding="utf-8")
        shim.chmod(0o755)
        bill = json.loads(environment_bill(shim, epoch))
        status = Path(folder) / _STATUS
        debian = list(debian_components(status.read_text(encoding="utf-8"))) if status.is_file() else []
    bill["components"] = [*bill.get("components", []), *debian]
    bill["metadata"]["component"] = _image_component(names, image)
    return json.dumps(bill, indent=2, sort_keys=True) + "\n"


def chart_bill(names: Names, epoch_text: str) -> str:
    """The images that the chart, and so install.yaml, names."""
    chart = {
        "type": "application",
        "name": "pdx",
        "version": names.version,
        "bom-ref": f"{names.chart}:{names.version}",
    }
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"timestamp": epoch_text, "component": chart},
        "components": [_image_component(names, image) for image in IMAGES],
    }
    return json.dumps(bill, indent=2, sort_keys=True) + "\n"


def debian_components(status: str) -> Iterator[Mapping[str, str]]:
    """Each installed package in dpkg's list."""
    for paragraph in status.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and line[0] != " ")
        if "installed" in fields.get("Status", "").split():
            name, version = fields["Package"], fields["Version"]
            url = f"pkg:deb/debian/{name}@{version}?arch={fields['Architecture']}"
            yield {"type": "library", "name": name, "version": version, "purl": url, "bom-ref": url}


def _image_component(names: Names, image: str) -> Mapping[str, str]:
    reference = names.image(image)
    return {"type": "container", "name": reference.rpartition(":")[0], "version": names.version, "bom-ref": reference}


def _extracted(tar: tarfile.TarFile, folder: Path) -> Path:
    """Extract the packages' metadata and dpkg's list from an image; return the folder of Python's packages."""
    layers = json.load(_opened(tar, "manifest.json"))[0]["Layers"]
    for layer in layers:  # a later layer replaces files of an earlier one
        with tarfile.open(fileobj=_opened(tar, layer)) as files:
            files.extractall(folder, _wanted(files.getmembers()), filter="data")
    found = list((folder / "opt/pdx/lib").glob("python3*/site-packages"))
    if len(found) != 1:
        raise ReleaseError("The image has no /opt/pdx/lib/python3*/site-packages")
    return found[0]


def _wanted(members: Iterable[tarfile.TarInfo]) -> list[tarfile.TarInfo]:
    found = []
    for member in members:
        member.name = member.name.removeprefix("./")
        # The address of a package's file is one of the machine that built the image.
        described = ".dist-info/" in member.name and not member.name.endswith("/direct_url.json")
        if member.isfile() and (member.name == _STATUS or described):
            found.append(member)
    return found


def _opened(tar: tarfile.TarFile, name: str) -> IO[bytes]:
    member = tar.extractfile(name)
    if member is None:
        raise ReleaseError(f"The image's archive has no {name}")
    return member
