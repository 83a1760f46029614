"""The images from the Dockerfiles, and a way to run programs in them."""

import json
import os
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from images.build import BASE, PACKAGES, Built, Request, build, cache_root, needs_stand_in, pip_conf, store_of
from pdx_cluster.errors import MissingError
from pdx_cluster.programs import packages

TAG = "test"
BUILD_SECONDS = 1500
SCRIPT = """
mount --bind "$ROOT" "$ROOT"
mount -o remount,ro,bind "$ROOT"
mount -t proc proc "$ROOT/proc"
mount --bind /dev "$ROOT/dev"
exec chroot --userspec="$USERSPEC" --groups="${USERSPEC#*:}" "$ROOT" env -i "$@"
"""
"""Runs in a mount namespace with the image as its read-only root, as in the pods."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Allow time for the first test of an image, which builds it: beside other tests, compilation takes minutes."""
    for item in items:
        if "tests/images" in str(item.path):
            item.add_marker(pytest.mark.timeout(BUILD_SECONDS))


@dataclass(frozen=True)
class Image:
    """An image whose file system is mounted."""

    name: str
    built: Built
    config: dict[str, Any]
    root: Path

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a program as the image's user in the image's environment; root and /tmp are read-only."""
        environment = {"ROOT": str(self.root), "USERSPEC": self.config["User"], "PATH": os.environ["PATH"]}
        script = ["unshare", "--mount", "sh", "-ec", SCRIPT, "sh", *self.config["Env"], *command]
        return subprocess.run(script, env=environment, capture_output=True, text=True, check=False)

    def start(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the image's entrypoint with arguments."""
        return self.run(*self.config["Entrypoint"], *arguments)


@pytest.fixture(scope="session")
def images() -> Iterator[Callable[[str], Image]]:
    """Return an image by its name, mounted."""
    if os.geteuid():
        pytest.skip("only root can mount an image as the tests do")
    try:
        packages.require(packages.IMAGE_COMMANDS, print)
    except MissingError as error:
        pytest.skip(f"images cannot be built: {error}")
    mounted: dict[str, Image] = {}
    with ExitStack() as stack:

        def image(name: str) -> Image:
            if name not in mounted:
                mounted[name] = stack.enter_context(_mounted(name))
            return mounted[name]

        yield image


@pytest.fixture(params=sorted(PACKAGES))
def image(request: pytest.FixtureRequest, images: Callable[[str], Image]) -> Image:
    """Every image, one after the other."""
    return images(request.param)


@contextmanager
def _mounted(name: str) -> Iterator[Image]:
    cache = cache_root(os.environ)
    stand_in = needs_stand_in("auto", "buildah", BASE, cache)
    built = build(Request(name, TAG, "buildah", stand_in=stand_in, pip_conf=pip_conf(os.environ)), cache)
    store = store_of(cache, stand_in)
    identity = store.buildah("pull", "--quiet", f"docker-archive:{built.archive}").strip()
    with store.mounted(identity) as root:
        yield Image(name, built, _config(Path(built.archive)), root)


def _config(archive: Path) -> dict[str, Any]:
    with tarfile.open(archive) as tar:
        manifest = json.loads(_text(tar, "manifest.json"))[0]
        config: dict[str, Any] = json.loads(_text(tar, manifest["Config"]))["config"]
        return config


def _text(tar: tarfile.TarFile, name: str) -> bytes:
    member = tar.extractfile(name)
    assert member is not None
    return member.read()
