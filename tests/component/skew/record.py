"""Records a version of PDX for the skew tests: `python -m tests.component.skew.record`.

Written from one commit: a wheel of its library, operator and gateway without compiled modules, its chart and its
examples. The tests compare this version with the working tree, which they take for the version after it.
"""

import base64
import hashlib
import io
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Final

COMMIT: Final = "fbf88d8"
FOLDER: Final = Path(__file__).parent / "previous"
WHEEL: Final = FOLDER / "pdx_serving-0.1.0-py3-none-any.whl"
CHART: Final = FOLDER / "pdx-0.1.0.tgz"
EXAMPLES: Final = FOLDER / "examples.yaml"

_PACKAGES: Final = ("api/pdx_api", "operator/pdx_operator", "proxy/pdx_proxy")
_INFO: Final = "pdx_serving-0.1.0.dist-info"
_WHEEL: Final = "Wheel-Version: 1.0\nGenerator: tests.component.skew.record\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_METADATA: Final = "Metadata-Version: 2.1\nName: pdx-serving\nVersion: 0.1.0\n"
_MOMENT: Final = (2026, 1, 1, 0, 0, 0)


def main() -> int:
    """Write the files."""
    FOLDER.mkdir(exist_ok=True)
    _write_wheel(_files(*_PACKAGES))
    chart = subprocess.run(
        ["git", "archive", "--format=tar.gz", "--prefix=pdx/", f"{COMMIT}:charts/pdx"], capture_output=True, check=True
    )
    CHART.write_bytes(chart.stdout)
    examples = [text for name, text in sorted(_files("examples").items()) if name.endswith(".yaml")]
    EXAMPLES.write_bytes(b"---\n".join(examples))
    return 0


def _files(*folders: str) -> dict[str, bytes]:
    done = subprocess.run(["git", "archive", "--format=tar", COMMIT, *folders], capture_output=True, check=True)
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        members = [member for member in archive.getmembers() if member.isfile()]
        return {member.name: archive.extractfile(member).read() for member in members}  # type: ignore[union-attr]


def _write_wheel(files: dict[str, bytes]) -> None:
    """The folder above each package is no part of its name."""
    contents = {name.partition("/")[2]: text for name, text in files.items()}
    contents |= {f"{_INFO}/METADATA": _METADATA.encode(), f"{_INFO}/WHEEL": _WHEEL.encode()}
    record = [f"{name},sha256={_digest(text)},{len(text)}" for name, text in contents.items()]
    contents[f"{_INFO}/RECORD"] = "\n".join([*record, f"{_INFO}/RECORD,,", ""]).encode()
    with zipfile.ZipFile(WHEEL, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as wheel:
        for name, text in contents.items():
            wheel.writestr(zipfile.ZipInfo(name, _MOMENT), text, zipfile.ZIP_DEFLATED, 9)


def _digest(text: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text).digest()).rstrip(b"=").decode()


if __name__ == "__main__":
    sys.exit(main())
