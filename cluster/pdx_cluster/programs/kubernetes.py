"""Kubernetes' own programs: found ready-made, or built once from Go's module proxy into a cache outside the checkout.

A program is looked for in KUBEBUILDER_ASSETS, in the cache, on PATH; one of another version than wanted is named and
passed over. What is then missing is built. The cache's folder is named by the hash of what determines the build.
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
"""Takes a line that says what goes on."""


@dataclass(frozen=True, slots=True)
class Program:
    """One program and where it comes from."""

    name: str
    module: str
    """Folder under cluster/tools."""
    package: str
    """What `go build` is given, in that folder."""
    ask: tuple[str, ...]
    """Arguments that make it say its version."""
    wanted: str
    """Start of the version that is accepted, without the leading v."""


def _kubernetes(name: str, *ask: str) -> Program:
    return Program(name, "kubernetes", f"k8s.io/kubernetes/cmd/{name}", ask or ("--version",), "1.36.")


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
PAUSE: Final = Program("pdx-pause", "pause", ".", ("--version",), "none")

CONTROL_PLANE: Final = (ETCD, APISERVER, CONTROLLER_MANAGER, KUBECTL, SCHEDULER)
NODE: Final = (KUBELET, KUBE_PROXY, COREDNS, PAUSE)
ALL: Final = (*CONTROL_PLANE, *NODE, HELM, KWOK)

_VERSIONED: Final = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
"""Go packages that hold Kubernetes' version: kubectl fails to parse its own when they are empty."""


def linker_flags(module: str) -> str:
    """The -ldflags of a module's build."""
    flags = ["-s", "-w"]
    if module == "kubernetes":
        major, minor = KUBERNETES_VERSION.removeprefix("v").split(".")[:2]
        values = {"gitVersion": KUBERNETES_VERSION, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
        flags += [f"-X {package}.{key}={value}" for package in _VERSIONED for key, value in values.items()]
    return " ".join(flags)


def cache_root(environ: Mapping[str, str]) -> Path:
    """Where builds are kept: outside the checkout, and where `make clean` does not look."""
    base = environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "pdx" / "cluster"


def cache_folder(module: str, root: Path) -> Path:
    """The folder of one module's programs, named by the hash of everything committed that the build depends on."""
    digest = hashlib.sha256(linker_flags(module).encode())
    for name in ("go.mod", "go.sum", "main.go"):
        path = TOOLS / module / name
        digest.update(path.read_bytes() if path.is_file() else b"")
    return root / f"{module}-{digest.hexdigest()[:12]}"


def parse_version(text: str) -> str:
    """The first version in a program's answer, without the v; empty when there is none."""
    found = re.search(r"v?(\d+\.\d+\.\d+)", text)
    return found[1] if found else ""


def cluster_programs(programs: Iterable[Program], report: Report = lambda line: None) -> dict[str, Path]:
    """The paths of programs by name; what is not found is built. ClusterError when that cannot be done."""
    root = cache_root(os.environ)
    wanted = tuple(programs)
    found = {program.name: path for program in wanted if (path := _find(program, root, report))}
    missing = [program for program in wanted if program.name not in found]
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
        # `kubectl version --client` and the like answer on stdout; some wrappers complain on stderr.
        answer = subprocess.run([path, *program.ask], capture_output=True, text=True, timeout=20, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        answer = ""
    version = parse_version(answer)
    if version.startswith(program.wanted):
        return path
    report(f"{path} is version {version or 'unknown'}; {program.name} {program.wanted}x is wanted, so it is not used.")
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
                shutil.rmtree(left)  # by a build that was killed
            report(f"Building {names} into {folder} (once, takes minutes)")
            started = time.monotonic()
            _compile(go, todo, folder)
            report(f"Built {names} in {time.monotonic() - started:.0f} s")
    return {program.name: folder / program.name for program in programs}


def _compile(go: str, programs: list[Program], folder: Path) -> None:
    module = programs[0].module
    with tempfile.TemporaryDirectory(prefix=".build-", dir=folder) as new:
        # The checkout's state is no part of what is built: the same sources give the same program anywhere.
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
    """Let one builder at a time into a folder."""
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
