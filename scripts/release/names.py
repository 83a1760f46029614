"""The names of a release: its version from pyproject.toml, its places from packaging/release.toml."""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

IMAGES: Final = ("gateway", "operator")
PLACEHOLDER: Final = "your--org"
"""The owner until somebody sets one."""
_STATED: Final = re.compile(
    r"^version: (\S+)$.*^  - https://github\.com/([^/\s]+)/([^/\s]+)$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Names:
    """One release, and where it is published."""

    registry: str
    owner: str
    repository: str
    version: str

    @property
    def image_registry(self) -> str:
        """What precedes the images' repositories: the chart's value `imageRegistry`."""
        return f"{self.registry}/{self.owner}"

    def image(self, name: str) -> str:
        """Full name of an image, with its tag."""
        return f"{self.image_registry}/pdx/{name}:{self.version}"

    @property
    def charts(self) -> str:
        """Where charts are pushed to."""
        return f"oci://{self.image_registry}/charts"

    @property
    def chart(self) -> str:
        """What `helm install` takes."""
        return f"{self.charts}/pdx"

    @property
    def path(self) -> str:
        """The repository's name on GitHub, with its owner."""
        return f"{self.owner}/{self.repository}"

    @property
    def url(self) -> str:
        """The repository's page."""
        return f"https://github.com/{self.path}"

    @property
    def downloads(self) -> str:
        """Where the manifests of the newest release are."""
        return f"{self.url}/releases/latest/download"

    @property
    def tag(self) -> str:
        """The tag that starts the release workflow."""
        return f"v{self.version}"

    def files(self, machine: str) -> dict[str, str]:
        """Every file of a release but the checksums, by what it is; `machine` is that of the images, such as amd64."""
        package, images = (
            f"pdx_serving-{self.version}",
            {name: f"pdx-{name}-{self.version}-{machine}" for name in IMAGES},
        )
        found = {
            "sdist": f"{package}.tar.gz",
            "wheel": f"{package}-py3-none-any.whl",
            "package SBOM": f"{package}.cdx.json",
        }
        found |= {"chart": f"pdx-{self.version}.tgz", "chart SBOM": f"pdx-{self.version}.cdx.json"}
        found |= {"licences": "LICENCES.md", "notes": "NOTES.md"}
        found |= {name: f"{name}.yaml" for name in ("install", "crds", "qwen")}
        found |= {f"image {name}": f"{file}.tar" for name, file in images.items()}
        return found | {f"image {name} SBOM": f"{file}.cdx.json" for name, file in images.items()}

    def outputs(self) -> str:
        """The names as lines that GitHub Actions reads from a step's output file."""
        named = {"registry": self.registry, "charts": self.charts, "chart": self.chart.removeprefix("oci://")}
        named |= {"version": self.version, "tag": self.tag, "repository": self.path}
        named |= {name: self.image(name).rpartition(":")[0] for name in IMAGES}
        return "".join(f"{key}={value}\n" for key, value in named.items())


def read(root: Path) -> Names:
    """Return the names that the checkout states."""
    place = tomllib.loads((root / "packaging" / "release.toml").read_text(encoding="utf-8"))
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return Names(place["registry"], place["owner"], place["repository"], project["version"])


def stated(chart: str, registry: str) -> Names:
    """Return the names that a Chart.yaml states: those that the pages were written with. Raises ValueError."""
    match = _STATED.search(chart)
    if match is None:
        raise ValueError("charts/pdx/Chart.yaml states no version and no source; restore it from Git")
    return Names(registry, match[2], match[3], match[1])


def with_owner(text: str, old: Names, new: Names) -> str:
    """A text that states published names, with the new owner and repository instead of the old ones."""
    text = re.sub(rf"{re.escape(old.url)}(?![\w-])", new.url, text)
    text = re.sub(rf"(?<![\w/-]){re.escape(old.path)}(?![\w-])", new.path, text)
    return re.sub(rf"(?<=/){re.escape(old.owner)}(?![\w-])", new.owner, text)


def with_version(text: str, old: Names, new: Names) -> str:
    """A text that states the version, with the new one instead of the old one."""
    return re.sub(rf"(?<![\w.]){re.escape(old.version)}(?![\w-]|\.\d)", new.version, text)
