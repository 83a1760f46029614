"""Chart.yaml, from the names of the release, the changelog and the examples. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import yaml

from scripts.release.names import IMAGES, Names

_HEAD: Final = "# Written by `make generate` from pyproject.toml, packaging/release.toml, CHANGELOG.md and examples/.\n"
_REQUIRED: Final = """\
# Engines and gateways sleep before they stop (lifecycle.preStop.sleep), which is on by default since 1.30: an older API
# server drops the field and the requests with it.
kubeVersion: ">=1.30.0-0"
"""
_DESCRIPTION: Final = "Operator for vLLM whose prefill and decode run on different pods, with the CRD PDDeployment"
_CRD: Final = {
    "kind": "PDDeployment",
    "version": "v1alpha1",
    "name": "pddeployments.pdx.dev",
    "displayName": "PDDeployment",
    "description": "Prefill and decode engines of one model, the KV connector between them, and their gateway",
}


def metadata(names: Names, changes: Iterable[tuple[str, str]], examples: Iterable[str]) -> str:
    """The text of Chart.yaml."""
    first = {
        "apiVersion": "v2",
        "name": "pdx",
        "description": _DESCRIPTION,
        "type": "application",
        "version": names.version,
        "appVersion": names.version,
    }
    second = {
        "keywords": ["vllm", "llm", "prefill", "decode", "disaggregation", "kv-cache"],
        "home": names.url,
        "sources": [names.url],
        "maintainers": [{"name": "The maintainers of PDX", "url": f"{names.url}/issues"}],
        "annotations": _annotations(names, changes, examples),
    }
    return _HEAD + _written(first) + _REQUIRED + _written(second)


def _annotations(names: Names, changes: Iterable[tuple[str, str]], examples: Iterable[str]) -> Mapping[str, str]:
    links = {
        "Install": "docs/install.md",
        "Values": "docs/reference-chart.md",
        "What is proven, and where": "README.md#what-is-proven-and-where",
    }
    lists: dict[str, list[Any]] = {
        "images": [
            {"name": name, "image": names.image(name), "platforms": ["linux/amd64", "linux/arm64"]} for name in IMAGES
        ],
        "crds": [_CRD],
        "crdsExamples": [yaml.safe_load(text) for text in examples],
        "links": [{"name": name, "url": f"{names.url}/blob/{names.tag}/{page}"} for name, page in links.items()],
        "changes": [{"kind": kind, "description": text} for kind, text in changes],
    }
    single = {"license": "Apache-2.0", "operator": "true", "prerelease": "true"}
    found = single | {name: _written(entries) for name, entries in lists.items()}
    return {f"artifacthub.io/{name}": text for name, text in found.items()}


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks, and lists indented."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def _written(value: Any) -> str:
    written: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=10**6, allow_unicode=True)
    return written
