"""Build the site into build/site: `python -m scripts.site`. Anything that MkDocs warns of is an error."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from scripts.site.pages import navigation, place, sources
from scripts.site.staging import staged

ROOT: Final = Path(__file__).parents[2]
_THEME: Final = Path(__file__).parent / "theme"


def stage(root: Path, build: Path) -> Path:
    """Write the staged pages, images and the configuration below `build`; the configuration's path."""
    folder = build / "docs-src"
    shutil.rmtree(folder, ignore_errors=True)
    pages = {source: (root / source).read_text(encoding="utf-8") for source in sources(root)}
    found = staged(pages)
    for at, text in found.pages.items():
        (folder / at).parent.mkdir(parents=True, exist_ok=True)
        (folder / at).write_text(text, encoding="utf-8")
    for at, source in found.images.items():
        (folder / at).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / source, folder / at)
    shutil.copytree(_THEME, folder, dirs_exist_ok=True)
    config = build / "mkdocs.yml"
    own = {
        "INHERIT": os.path.relpath(root / "mkdocs.yml", build),
        "docs_dir": folder.name,
        "site_dir": "site",
        "nav": navigation([place(source) for source in pages]),
    }
    config.write_text(json.dumps(own), encoding="utf-8")  # JSON is YAML
    return config


def build(root: Path, folder: Path) -> int:
    """Build the site of a checkout into `folder`/site; MkDocs' exit code."""
    config = stage(root, folder)
    # Not --quiet: it hides warnings from --strict, too.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--clean", "--config-file", str(config)]
    # The theme writes about its successor on every build; CONTRIBUTING.md has the date.
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        sys.stderr.write(done.stderr)
    return done.returncode


if __name__ == "__main__":
    sys.exit(build(ROOT, ROOT / "build"))
