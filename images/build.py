"""Builds the images from their Dockerfiles: `python images/build.py --out DIR` writes `operator.tar` and `gateway.tar`.

The archives have Docker's format: `docker load`, `podman load`, `kind load image-archive` and `ctr images import` read
them. Docker or podman builds if its service runs, otherwise buildah, which needs no daemon. A cache outside the
checkout keeps the archives by the hash of all inputs, so that only a change needs a build.
"""

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
BASE: Final = "docker.io/library/python:3.11-slim-bookworm"
"""The base that the Dockerfiles name."""
BUILD_BASE: Final = "docker.io/library/python:3.11-bookworm"
"""The same with a C compiler, for compiled modules; it is not part of the image."""
PACKAGES: Final[Mapping[str, tuple[str, ...]]] = {"operator": ("api", "operator"), "gateway": ("api", "proxy")}
"""Image -> folders of the checkout whose packages it contains."""
BUILDERS: Final = ("docker", "podman", "buildah")
STAND_IN_PACKAGES: Final = "python3,python3-venv,ca-certificates"
COMPILER_PACKAGES: Final = "gcc,libc6-dev,python3-dev"
_NOT_SEALED: Final = "sealing memfd copy"
KEPT: Final = 6
"""Archives of one image in the cache; the least recently used are removed. Each has 350 MB."""


class BuildError(Exception):
    """An image cannot be built; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Request:
    """One image to build."""

    image: str
    tag: str
    builder: str
    base: str = BASE
    build_base: str = BUILD_BASE
    stand_in: bool = False
    """Whether the base is made of Debian packages, because no registry can be reached."""
    revision: str = "unknown"
    registry: str = ""
    """What precedes the image's repository, as in the chart's value `imageRegistry`."""
    pip_conf: Path | None = None
    """Configuration of pip during the build: a mirror of the package index, a certificate."""

    @property
    def reference(self) -> str:
        """Name of the image after loading."""
        return f"{self.registry}{'/' if self.registry else ''}pdx/{self.image}:{self.tag}"

    @property
    def dockerfile(self) -> str:
        """Path in the checkout."""
        return f"images/{self.image}.Dockerfile"


@dataclass(frozen=True, slots=True)
class Built:
    """An image as an archive."""

    archive: str
    reference: str
    stand_in: bool
    layer_bytes: dict[str, int]
    """Each layer, the base's first, and its size after gzip, as in a registry."""


def inputs(root: Path, image: str) -> list[Path]:
    """Return the files that determine an image, relative to the checkout."""
    single = ("pyproject.toml", "packaging/pypi.md", "LICENSE", ".dockerignore", "images/build.lock", "images/build.py")
    files = [Path(name) for name in (*single, f"images/{image}.Dockerfile", f"requirements/{image}.lock")]
    for folder in PACKAGES[image]:
        files += [path.relative_to(root) for path in (root / folder).rglob("*") if path.is_file()]
    return sorted(path for path in files if "__pycache__" not in path.parts)


def key(root: Path, request: Request) -> str:
    """Return a hash of everything that determines an image's content."""
    bases = (request.base, request.build_base, request.stand_in)
    digest = hashlib.sha256(repr((request.reference, *bases, request.revision)).encode())
    for path in inputs(root, request.image):
        digest.update(f"\0{path}\0".encode() + hashlib.sha256((root / path).read_bytes()).digest())
    return digest.hexdigest()[:20]


def build_arguments(request: Request) -> list[str]:
    """Return the arguments of a build; Docker, podman and buildah accept the same."""
    arguments = ["-f", request.dockerfile, "-t", request.reference]
    for name, base in (("BASE", request.base), ("BUILD_BASE", request.build_base)):
        arguments += ["--build-arg", f"{name}={base}"]
    # With a LABEL from an ARG, buildah would reuse a layer with the argument's previous value.
    for label, value in (("version", request.tag), ("revision", request.revision)):
        arguments += ["--label", f"org.opencontainers.image.{label}={value}"]
    if request.pip_conf is not None:
        arguments += ["--secret", f"id=pip,src={request.pip_conf}"]
    return [*arguments, "."]


def cache_root(environ: Mapping[str, str]) -> Path:
    """Return the folder of archives and layers, outside the checkout."""
    home = environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "pdx" / "images"


def project_version(root: Path) -> str:
    """Return the version in pyproject.toml, which is the images' tag."""
    version: str = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    return version


def published_registry(root: Path) -> str:
    """Return where releases are published, from packaging/release.toml: what precedes `pdx/gateway`."""
    place = tomllib.loads((root / "packaging" / "release.toml").read_text(encoding="utf-8"))
    return f"{place['registry']}/{place['owner']}"


def find_builder(required: str | None = None) -> str:
    """Return the first builder that works on this machine; raises BuildError."""
    for builder in BUILDERS if required is None else (required,):
        if shutil.which(builder) is None:
            continue
        if builder != "docker" or _succeeds(["docker", "info"]):
            return builder
    names = required or "Docker with a running daemon, podman or buildah"
    raise BuildError(f"Images cannot be built: {names} was not found. On Debian: apt-get install buildah mmdebstrap")


class Store:
    """buildah's layers in the cache. Real bases and stand-ins have separate stores, because their names are equal."""

    def __init__(self, root: Path) -> None:
        """`root` is the folder of the layers."""
        # Overlay needs support by kernel and file system; vfs always works, but copies every layer completely.
        driver = "overlay" if _overlay_works(root) else "vfs"
        self._command = ["buildah", "--root", str(root / driver), "--runroot", str(root / f"{driver}-run")]
        self._command += ["--storage-driver", driver]
        self._mounts = root / "mounts.lock"

    def buildah(self, *arguments: str, cwd: Path | None = None) -> str:
        """Run buildah and return what it prints; raises BuildError."""
        command = [*self._command, *arguments]
        try:
            return _run(command, cwd)
        except BuildError as error:
            # buildah runs itself from a memory file, and Linux does not seal one whose pages are in use (fcntl(2)).
            if _NOT_SEALED not in str(error):
                raise
        return _run(command, cwd)

    def has(self, reference: str) -> bool:
        """Whether an image is in the store."""
        return _succeeds([*self._command, "inspect", "--type", "image", reference])

    def pull(self, reference: str) -> bool:
        """Pull an image, and return whether that succeeded."""
        return _succeeds([*self._command, "pull", "--quiet", reference])

    def make_stand_in(self, base: str, packages: str) -> None:
        """Create a stand-in for a base from Debian packages, with everything that the Dockerfiles use."""
        if self.has(base):
            return
        if shutil.which("mmdebstrap") is None:
            raise BuildError("The stand-in for the base needs mmdebstrap: apt-get install mmdebstrap")
        with tempfile.TemporaryDirectory() as folder:
            tar = f"{folder}/base.tar"
            _run(["mmdebstrap", "--quiet", "--variant=minbase", f"--include={packages}", "bookworm", tar])
            container = self.buildah("from", "scratch").strip()
            self.buildah("add", "--quiet", container, tar)
            self.buildah("commit", "--quiet", "--rm", container, base)

    @contextlib.contextmanager
    def mounted(self, identity: str) -> Iterator[Path]:
        """Mount a container of an image, and remove it afterwards."""
        with _flock(self._mounts, fcntl.LOCK_SH):
            container = self.buildah("from", "--pull-never", identity).strip()
            try:
                yield Path(self.buildah("mount", container).strip())
            finally:
                self.buildah("rm", container)

    def remove_containers(self) -> None:
        """Remove what killed processes left, unless a process has one mounted. The caller holds the lock of builds."""
        with contextlib.suppress(BlockingIOError), _flock(self._mounts, fcntl.LOCK_EX | fcntl.LOCK_NB):
            _succeeds([*self._command, "rm", "--all"])

    def build(self, request: Request, root: Path) -> str:
        """Build an image and return its id."""
        self.remove_containers()
        common = ["build", "--quiet", "--isolation", "chroot", "--layers", "--format", "docker"]
        if request.stand_in:
            self.make_stand_in(request.base, STAND_IN_PACKAGES)
            if "BUILD_BASE" in (root / request.dockerfile).read_text(encoding="utf-8"):
                self.make_stand_in(request.build_base, f"{STAND_IN_PACKAGES},{COMPILER_PACKAGES}")
            common.append("--pull-never")
        certificates = Path("/etc/ssl/certs")
        if certificates.is_dir():  # the package index may have a private certificate
            common += ["-v", f"{certificates}:{certificates}:ro"]
        # With a name, the layers of the first stage are not pruned, and the next build reuses them.
        stage = ["--target", "build", "-t", f"pdx-build/{request.image}"]
        self.buildah(*common, *stage, *_without_name(build_arguments(request)), cwd=root)
        identity = self.buildah(*common, *build_arguments(request), cwd=root).split()[-1]
        try:
            self.buildah("rmi", "--prune")
        except BuildError as error:
            # A mounted container keeps its image; a later build prunes that image.
            if "in use by a container" not in str(error):
                raise
        return identity


def build(request: Request, cache: Path, root: Path = ROOT) -> Built:
    """Build an image, or return it from the cache; raises BuildError."""
    folder = cache / "archives" / f"{request.image}-{key(root, request)}"
    cache.mkdir(parents=True, exist_ok=True)
    with _flock(cache / "lock", fcntl.LOCK_EX):  # builds share the layers
        record = folder / "built.json"
        if not record.is_file():
            _build_archive(request, folder, cache, root)
        folder.touch()
        _remove_old(cache, request.image)
        fields: dict[str, Any] = json.loads(record.read_text(encoding="utf-8"))
        return Built(**fields)


def layer_sizes(archive: Path, measured: Mapping[str, int]) -> dict[str, int]:
    """Return the compressed bytes of each layer of an archive. A layer's name is the hash of its content."""
    with tarfile.open(archive) as tar:
        layers = json.load(_member(tar, "manifest.json"))[0]["Layers"]
        return {layer: measured.get(layer) or _compressed_bytes(_member(tar, layer)) for layer in layers}


def store_of(cache: Path, stand_in: bool) -> Store:
    """Return buildah's store for one kind of base."""
    return Store(cache / ("stand-in" if stand_in else "storage"))


def _build_archive(request: Request, folder: Path, cache: Path, root: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    archive = folder / f"{request.image}.tar"
    if request.builder == "buildah":
        store = store_of(cache, request.stand_in)
        store.buildah("push", "--quiet", store.build(request, root), f"docker-archive:{archive}:{request.reference}")
    else:
        _run([request.builder, "build", *build_arguments(request)], root)
        save = ["--format", "docker-archive"] if request.builder == "podman" else []
        _run([request.builder, "save", *save, "-o", str(archive), request.reference])
    records = [json.loads(path.read_text(encoding="utf-8")) for path in folder.parent.glob("*/built.json")]
    measured = {layer: size for record in records for layer, size in record["layer_bytes"].items()}
    built = Built(str(archive), request.reference, request.stand_in, layer_sizes(archive, measured))
    (folder / "built.json").write_text(json.dumps(asdict(built)), encoding="utf-8")


def _remove_old(cache: Path, image: str) -> None:
    folders = sorted((cache / "archives").glob(f"{image}-*"), key=lambda path: path.stat().st_mtime, reverse=True)
    for folder in folders[KEPT:]:
        shutil.rmtree(folder)


def _without_name(arguments: Sequence[str]) -> list[str]:
    at = arguments.index("-t")
    return [*arguments[:at], *arguments[at + 2 :]]


def _overlay_works(root: Path) -> bool:
    """Whether the kernel mounts an overlay with an upper folder in `root`."""
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root) as folder:
        for name in ("lower", "upper", "work", "merged"):
            Path(folder, name).mkdir()
        options = f"lowerdir={folder}/lower,upperdir={folder}/upper,workdir={folder}/work"
        mounted = _succeeds(["mount", "-t", "overlay", "overlay", "-o", options, f"{folder}/merged"])
        if mounted:
            _run(["umount", f"{folder}/merged"])
        return mounted


@contextlib.contextmanager
def _flock(path: Path, operation: int) -> Iterator[None]:
    """Hold a lock on a file. With LOCK_NB, raises BlockingIOError if another holder excludes it."""
    with path.open("w", encoding="utf-8") as file:
        fcntl.flock(file, operation)
        yield


def _member(tar: tarfile.TarFile, name: str) -> IO[bytes]:
    member = tar.extractfile(name)
    if member is None:
        raise BuildError(f"The archive has no {name}")
    return member


def _compressed_bytes(file: IO[bytes]) -> int:
    compressor = zlib.compressobj()
    chunks = iter(lambda: file.read(1 << 20), b"")
    return sum(len(compressor.compress(chunk)) for chunk in chunks) + len(compressor.flush())


def _succeeds(command: Sequence[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False, timeout=120).returncode == 0  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return False


def _run(command: Sequence[str], cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise BuildError(f"{' '.join(command)}\n{done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def needs_stand_in(choice: str, builder: str, base: str, cache: Path) -> bool:
    """Whether to build on a stand-in for the base; `choice` is never, auto or always. Raises BuildError."""
    if builder != "buildah":
        if choice == "always":
            raise BuildError(
                f"Only buildah can create a stand-in for the base, but {builder} builds here; remove --stand-in always"
            )
        return False
    if choice == "always" or (choice == "auto" and store_of(cache, stand_in=True).has(base)):
        return True
    store = store_of(cache, stand_in=False)
    if store.has(base) or store.pull(base):
        return False
    if choice == "never":
        raise BuildError(f"No registry provides {base}. For tests, not for publishing: --stand-in auto")
    return True


def main(argv: Sequence[str] | None = None) -> int:
    """Build the images and print what was built; return 1 on failure."""
    args = create_parser().parse_args(argv)
    cache = cache_root(os.environ)
    try:
        builder = find_builder(args.builder)
        request = Request(
            image="",
            tag=args.tag or project_version(ROOT),
            builder=builder,
            base=args.base,
            build_base=args.build_base,
            stand_in=needs_stand_in(args.stand_in, builder, args.base, cache),
            revision=args.revision,
            registry=published_registry(ROOT) if args.registry is None else args.registry,
            pip_conf=pip_conf(os.environ),
        )
        for image in args.image or sorted(PACKAGES):
            built = build(replace(request, image=image), cache)
            path = args.out / f"{image}.tar"
            _copy(Path(built.archive), path)
            megabytes = sum(built.layer_bytes.values()) / 1e6
            note = ", with a stand-in for the base: not for publishing" if built.stand_in else ""
            sys.stdout.write(f"{path}: {built.reference}, {megabytes:.0f} MB compressed{note}\n")
    except BuildError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def create_parser() -> argparse.ArgumentParser:
    """Return the parser of the program's flags."""
    parser = argparse.ArgumentParser(description="Build the images of PDX as archives.")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the archives <image>.tar")
    parser.add_argument("--image", choices=sorted(PACKAGES), action="append", help="build only this image (repeatable)")
    parser.add_argument("--tag", help="tag of the images (default: the version in pyproject.toml)")
    parser.add_argument("--registry", help="what precedes pdx/gateway (default: that of packaging/release.toml)")
    parser.add_argument("--revision", default="unknown", help="commit, for the label `revision`")
    parser.add_argument("--base", default=BASE, help="base image, preferably with its digest (%(default)s)")
    parser.add_argument("--build-base", default=BUILD_BASE, help="the same with a C compiler (%(default)s)")
    parser.add_argument("--builder", choices=BUILDERS, help="program that builds (default: the first that works)")
    parser.add_argument(
        "--stand-in",
        choices=["never", "auto", "always"],
        default="never",
        help="use a base made of Debian packages, for tests: always, or if no registry answers (auto) (%(default)s)",
    )
    return parser


def pip_conf(environ: Mapping[str, str]) -> Path | None:
    """Return the machine's configuration of pip; None if it has none."""
    named = environ.get("PIP_CONFIG_FILE")
    candidates = [Path(named)] if named else [Path.home() / ".config/pip/pip.conf", Path("/etc/pip.conf")]
    return next((path for path in candidates if path.is_file()), None)


def _copy(source: Path, target: Path) -> None:
    """Link if both are on one file system, because an archive has hundreds of megabytes; copy otherwise."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, target)


if __name__ == "__main__":
    sys.exit(main())
