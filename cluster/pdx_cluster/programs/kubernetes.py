"""Kubernetes' own programs: found on this machine, or built once from Go's module proxy into a cache.

The search order is KUBEBUILDER_ASSETS, the cache, PATH. A program of another version is reported and skipped. A missing
program is built. The name of a cache folder is the hash of everything that determines the build.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pdx_cluster.errors import ClusterError, MissingError

KUBERNETES_VERSION: Final = "v1.36.3"
TOOLS: Final = Path(__file__).resolve().parents[2] / "tools"

Report = Callable[[str], None]
"""Prints one line about the progress."""


@dataclass(frozen=True, slots=True)
class Program:
    """One program and its source."""

    name: str
    module: str
    """Folder under cluster/tools."""
    package: str
    """Argument of `go build` in that folder."""
    version_arguments: tuple[str, ...]
    """Arguments that make it print its version."""
    version: str
    """Required start of the version, without the leading v."""


def _kubernetes(name: str, *version_arguments: str) -> Program:
    package = f"k8s.io/kubernetes/cmd/{name}"
    return Program(name, "kubernetes", package, version_arguments or ("--version",), "1.36.")


ETCD: Final = Program("etcd", "etcd", ".", ("--version",), "3.6.")
APISERVER: Final = _kubernetes("kube-apiserver")
CONTROLLER_MANAGER: Final = _kubernetes("kube-controller-manager")
SCHEDULER: Final = _kubernetes("kube-scheduler")
KUBECTL: Final = _kubernetes("kubectl", "version", "--client")
KUBELET: Final = _kubernetes("kubelet")
KUBE_PROXY: Final = _kubernetes("kube-proxy")
HELM: Final = Program("helm", "helm", "helm.sh/helm/v4/cmd/helm", ("version", "--short"), "4.")
KWOK: Final = Program("kwok", "kwok", "sigs.k8s.io/kwok/cmd/kwok", ("--version",), "0.8.")
COREDNS: Final = Program("coredns", "coredns", ".", ("-version",), "1.15.")
COLLECTOR: Final = Program("otelcol", "otelcol", ".", ("--version",), "0.160.")
_ACTIONLINT: Final = "github.com/rhysd/actionlint/cmd/actionlint"
ACTIONLINT: Final = Program("actionlint", "actionlint", _ACTIONLINT, ("--version",), "1.7.")
PAUSE: Final = Program("pdx-pause", "pause", ".", ("--version",), "none")

CONTROL_PLANE: Final = (ETCD, APISERVER, CONTROLLER_MANAGER, KUBECTL, SCHEDULER)
NODE: Final = (KUBELET, KUBE_PROXY, COREDNS, PAUSE)
ALL: Final = (*CONTROL_PLANE, *NODE, HELM, KWOK)

_VERSIONED: Final = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
"""Go packages with Kubernetes' version; if they are empty, kubectl fails to parse its own version."""


def linker_flags(module: str) -> str:
    """Return the -ldflags of a module's build."""
    flags = ["-s", "-w"]
    if module == "kubernetes":
        major, minor = KUBERNETES_VERSION.removeprefix("v").split(".")[:2]
        values = {"gitVersion": KUBERNETES_VERSION, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
        flags += [f"-X {package}.{key}={value}" for package in _VERSIONED for key, value in values.items()]
    return " ".join(flags)


def cache_root(environ: Mapping[str, str]) -> Path:
    """Return the folder of all builds, outside the checkout, so that `make clean` keeps it."""
    base = environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "pdx" / "cluster"


def cache_folder(module: str, root: Path) -> Path:
    """Return the folder of one module's programs; its name has the hash of every committed input of the build."""
    digest = hashlib.sha256(linker_flags(module).encode())
    for name in ("go.mod", "go.sum", "main.go"):
        path = TOOLS / module / name
        digest.update(path.read_bytes() if path.is_file() else b"")
    return root / f"{module}-{digest.hexdigest()[:12]}"


def parse_version(text: str) -> str:
    """Return the first version in a program's output, without the v; empty if there is none."""
    found = re.search(r"v?(\d+\.\d+\.\d+)", text)
    return found[1] if found else ""


def cluster_programs(programs: Iterable[Program], report: Report = lambda line: None) -> dict[str, Path]:
    """Return the paths of programs by name, and build those that are missing; raises ClusterError."""
    root = cache_root(os.environ)
    required = tuple(programs)
    found = {program.name: path for program in required if (path := _find(program, root, report))}
    missing = [program for program in required if program.name not in found]
    for module in dict.fromkeys(program.module for program in missing):
        found |= _build([program for program in missing if program.module == module], root, report)
    return found


def _find(program: Program, root: Path, report: Report) -> Path | None:
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets and (path := _accept(program, Path(assets) / program.name, report)):
        return path
    cached = cache_folder(program.module, root) / program.name
    if cached.is_file():
        return cached
    on_path = shutil.which(program.name)
    return _accept(program, Path(on_path), report) if on_path else None


def _accept(program: Program, path: Path, report: Report) -> Path | None:
    if not path.is_file():
        return None
    try:
        # Programs print their version on stdout; some wrappers print warnings on stderr.
        command = [str(path), *program.version_arguments]
        output = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        output = ""
    version = parse_version(output)
    if version.startswith(program.version):
        return path
    report(
        f"{path} is version {version or 'unknown'}; {program.name} {program.version}x is required, so it is skipped."
    )
    return None


def _build(programs: list[Program], root: Path, report: Report) -> dict[str, Path]:
    module = programs[0].module
    folder = cache_folder(module, root)
    names = ", ".join(program.name for program in programs)
    go = shutil.which("go")
    if go is None:
        raise MissingError(
            f"{names} not found in KUBEBUILDER_ASSETS or on PATH, and there is no Go to build with: install Go 1.26."
        )
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        todo = [program for program in programs if not (folder / program.name).is_file()]
        if todo:
            for left in folder.glob(".build-*"):
                shutil.rmtree(left)  # of a build that was killed
            report(f"Building {names} into {folder} (once; it takes minutes)")
            started = time.monotonic()
            _compile(go, todo, folder)
            report(f"Built {names} in {time.monotonic() - started:.0f} s")
    return {program.name: folder / program.name for program in programs}


def _compile(go: str, programs: list[Program], folder: Path) -> None:
    module = programs[0].module
    with tempfile.TemporaryDirectory(prefix=".build-", dir=folder) as new:
        # Without the checkout's state, the same sources give the same program everywhere.
        command = [
            go,
            "build",
            "-mod=readonly",
            "-buildvcs=false",
            "-trimpath",
            "-ldflags",
            linker_flags(module),
            "-o",
            f"{new}/",
        ]
        command += [program.package for program in programs]
        environment = os.environ | {"CGO_ENABLED": "0"}
        done = subprocess.run(command, cwd=TOOLS / module, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            last = "\n".join(done.stderr.strip().splitlines()[-8:])
            raise ClusterError(f"`go build` of {module} failed in {TOOLS / module}:\n{last}")
        for program in programs:
            (Path(new) / program.name).replace(folder / program.name)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, so that builds run one at a time."""
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
