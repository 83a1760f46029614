"""Builds everything that a release contains, and pushes nothing: `python -m scripts.release [--out DIR]`.

It runs in the environment of requirements/release.lock, with cluster/ on PYTHONPATH (`make release-dry-run`).
"""

import argparse
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from images import build as images
from pdx_cluster.errors import ClusterError
from pdx_cluster.programs.kubernetes import ACTIONLINT, HELM, cluster_programs
from scripts.release import bills, manifests, notes, package, workflows
from scripts.release.artifacts import CHECKSUMS, ReleaseError, artifacts, checksums, table
from scripts.release.names import IMAGES, PLACEHOLDER, Names, read
from scripts.release.programs import ROOT, commit_epoch

EXAMPLE: Final = "qwen.yaml"
"""What README applies after the installation."""
_PLATFORMS: Final = {"x86_64": "amd64", "aarch64": "arm64"}


def say(line: str) -> None:
    """Print one line about the progress."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class Run:
    """One run: where it writes, and what it prints about its progress."""

    def __init__(self, out: Path, names: Names, epoch: int) -> None:
        """`epoch` is the time that every file has, in seconds since 1970."""
        self.out, self.names, self.epoch = out, names, epoch
        self._started = time.monotonic()

    def step(self, title: str, work: Callable[[], str]) -> None:
        """Do one part, and print how long it took and what it found."""
        started = time.monotonic()
        say(f"{title} …")
        found = work()
        say(f"  {found} ({time.monotonic() - started:.0f} s)")

    def write(self, name: str, text: str) -> str:
        """Write a file of the release; return its name."""
        (self.out / name).write_text(text, encoding="utf-8")
        return name

    @property
    def seconds(self) -> float:
        """Since the run began."""
        return time.monotonic() - self._started


def main(argv: Sequence[str] | None = None) -> int:
    """Build the release; return the exit code."""
    args = create_parser().parse_args(argv)
    names = read(ROOT)
    if args.names:
        sys.stdout.write(names.outputs())
        return 0
    try:
        if args.final is not None:
            check_final(names, args.final)
        shutil.rmtree(args.out, ignore_errors=True)
        args.out.mkdir(parents=True)
        run = Run(args.out, names, commit_epoch())
        build(run, args)
    except (ReleaseError, ClusterError, ValueError, subprocess.SubprocessError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    found = artifacts(args.out)
    if missing := expected(names, args) ^ {each.name for each in found}:
        sys.stderr.write(f"Built, but not expected, or the other way round: {', '.join(sorted(missing))}\n")
        return 1
    run.write(CHECKSUMS, checksums(found))
    say(f"\n{table(found)}\nPDX {names.version} is in {args.out}, built in {run.seconds:.0f} s. Nothing was pushed.")
    return 0


def build(run: Run, args: argparse.Namespace) -> None:
    """All parts, the quick ones first."""
    if not args.only_images:
        programs = cluster_programs([HELM, ACTIONLINT], say)
        run.step("Workflows", lambda: f"{workflows.check(programs['actionlint'])} pass actionlint and zizmor")
        run.step("Notes", lambda: _notes(run))
        run.step("Chart and manifests", lambda: _manifests(run, programs["helm"]))
        run.step("Package, its licences and SBOM", lambda: _package(run))
    if not args.without_images:
        for image in IMAGES:
            run.step(f"Image {image} and its SBOM", lambda image=image: _image(run, image, args))  # type: ignore[misc]


def expected(names: Names, args: argparse.Namespace) -> set[str]:
    """The files of this run."""
    files = names.files(machine())
    images = {file for what, file in files.items() if what.startswith("image ")}
    return images if args.only_images else set(files.values()) - (images if args.without_images else set())


def machine() -> str:
    """The images' platform, as registries call it."""
    return _PLATFORMS.get(platform.machine(), platform.machine())


def check_final(names: Names, tag: str) -> None:
    """Refuse a release that somebody forgot to prepare; raises ReleaseError."""
    if names.owner == PLACEHOLDER:
        raise ReleaseError("packaging/release.toml has no owner yet: set it, and run `make generate`")
    if (here := os.environ.get("GITHUB_REPOSITORY", names.path)) != names.path:
        raise ReleaseError(f"This is {here}, and packaging/release.toml names {names.path}")
    if tag != names.tag:
        raise ReleaseError(f"The tag is {tag}, and pyproject.toml has the version {names.version}: they must agree")
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if notes.section(changelog, names.version).date == "unreleased":
        raise ReleaseError(f"CHANGELOG.md calls {names.version} unreleased: write its date")


def _notes(run: Run) -> str:
    found = notes.section((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), run.names.version)
    text = notes.absolute(found.text, f"{run.names.url}/blob/{run.names.tag}")
    install = f"helm install pdx {run.names.chart} --version {run.names.version} -n pdx-system --create-namespace"
    return run.write("NOTES.md", f"```sh\n{install}\n```\n\n{text}")


def _manifests(run: Run, helm: Path) -> str:
    chart = manifests.package_chart(helm, run.out, run.epoch)
    run.write("install.yaml", manifests.install_manifest(helm, chart, run.names.version))
    run.write("crds.yaml", manifests.crds())
    run.write(EXAMPLE, (ROOT / "examples" / EXAMPLE).read_text(encoding="utf-8"))
    moment = datetime.fromtimestamp(run.epoch, UTC).isoformat()
    run.write(run.names.files(machine())["chart SBOM"], bills.chart_bill(run.names, moment))
    return f"{chart.name}, install.yaml, crds.yaml"


def _package(run: Run) -> str:
    wheel = package.build(run.out, run.epoch)
    python = package.install(wheel, ROOT / ".cache" / "release-package")
    run.write("LICENCES.md", package.licences(python, run.names.version))
    run.write(run.names.files(machine())["package SBOM"], bills.environment_bill(python, run.epoch))
    return f"{wheel.name} and its sdist"


def _image(run: Run, image: str, args: argparse.Namespace) -> str:
    flags = ["--stand-in", args.stand_in, "--revision", os.environ.get("GITHUB_SHA", "unknown")]
    flags += ["--base", args.base] if args.base else []
    flags += ["--build-base", args.build_base] if args.build_base else []
    if images.main(["--out", str(run.out), "--image", image, *flags]):
        raise ReleaseError(f"The image {image} was not built")
    files = run.names.files(machine())
    archive = (run.out / f"{image}.tar").rename(run.out / files[f"image {image}"])
    run.write(files[f"image {image} SBOM"], bills.image_bill(archive, run.names, image, run.epoch))
    return archive.name


def create_parser() -> argparse.ArgumentParser:
    """Return the parser of the program's flags."""
    parser = argparse.ArgumentParser(prog="python -m scripts.release", description="Build a release, and push nothing.")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "release", metavar="DIR", help="(%(default)s)")
    parser.add_argument("--final", metavar="TAG", help="refuse what is not ready to be published under this tag")
    parser.add_argument("--names", action="store_true", help="only print the published names, for the workflow")
    parts = parser.add_mutually_exclusive_group()
    parts.add_argument("--without-images", action="store_true", help="leave out the images, which take minutes")
    parts.add_argument("--only-images", action="store_true", help="build the images alone, for a second platform")
    parser.add_argument("--stand-in", choices=["never", "auto", "always"], default="auto", help="see `make images`")
    parser.add_argument("--base", help="base of the images, with its digest")
    parser.add_argument("--build-base", help="the same with a C compiler")
    return parser


if __name__ == "__main__":
    sys.exit(main())
