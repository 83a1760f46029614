"""Installs the Debian packages that images, clusters with a node, their tests and the benchmark need.

`python -m scripts.system_packages images|test|bench`, with cluster/ on PYTHONPATH; Python's own library is enough. Only
root can install. For others it names what is missing and succeeds: what needs it then fails, or is skipped by name.
"""

import sys
from collections.abc import Mapping
from typing import Final

from images.build import BuildError, find_builder
from pdx_cluster.errors import ClusterError, MissingError
from pdx_cluster.programs import packages

PURPOSES: Final = ("images", "test", "bench")
_BENCH: Final = {"valgrind": "valgrind", "callgrind_control": "valgrind"}
_SHELLS: Final = {"zsh": "zsh", "fish": "fish"}
_CLIENTS: Final = {"ab": "apache2-utils", "curl": "curl", "nginx": "nginx-light", "chromium": "chromium"}
"""Clients and proxies of the gateway; without one, its tests are skipped."""


def needed(purpose: str) -> Mapping[str, str]:
    """Command -> package, for one purpose."""
    if purpose == "bench":
        return _BENCH
    if purpose == "test":  # the tests build with buildah, whatever else is there
        return {**packages.COMMANDS, **packages.IMAGE_COMMANDS, **_SHELLS, **_CLIENTS}
    return packages.IMAGE_COMMANDS if _builds_with_buildah() else {}


def _builds_with_buildah() -> bool:
    """Whether neither Docker nor podman builds images here."""
    try:
        return find_builder() == "buildah"
    except BuildError:
        return True


def main(argv: list[str]) -> int:
    """Install what is missing for a purpose; 1 when apt-get fails, 2 for a wrong argument."""
    if len(argv) != 1 or argv[0] not in PURPOSES:
        sys.stderr.write(f"usage: python -m scripts.system_packages {'|'.join(PURPOSES)}\n")
        return 2
    try:
        packages.require(dict(needed(argv[0])), print, plugins=argv[0] == "test")
    except MissingError as error:
        sys.stdout.write(f"{error}\n")
    except ClusterError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
