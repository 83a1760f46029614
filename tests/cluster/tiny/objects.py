"""The objects of the run with real engines: examples with the test's engine image, and the client's pod.

No engine image of gigabytes is built: the image is empty, and the pods mount the machine's own Python environment.
NIXL's progress thread sleeps between events, because idle engines would keep both cores busy.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import yaml

from pdx_api.render.engines import side_services
from pdx_api.spec.parse import parse
from pdx_cluster.node import pods

CHECKOUT: Final = Path(__file__).resolve().parents[3]
MODEL: Final = Path("/tmp/pdx/models/tiny")
ENGINE_IMAGE: Final = pods.empty_image()
CLIENT: Final = "client"
SCRIPT: Final = Path(__file__).with_name("client.py")
PYTHON: Final = str(Path(sys.prefix) / "bin" / "python")

SLEEPING_NIXL: Final = CHECKOUT / "tests" / "engines" / "support" / "sleeping_nixl"

_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})

Manifest = dict[str, Any]


def tiny() -> Manifest:
    """The example of one prefill and one decode engine."""
    return example("tiny-cpu")


def example(name: str, folders: Sequence[Path] = (), env: Mapping[str, str] = _NOTHING) -> Manifest:
    """An example with an overlay that names the test's engine image and mounts.

    `folders` of the machine and `env` are what its connector needs beside Python's environment. Relative paths of the
    example are the checkout's, as for `pdx up`; those in its PYTHONPATH stay.
    """
    found: Manifest = yaml.safe_load((CHECKOUT / "examples" / f"{name}.yaml").read_text())
    spec = found["spec"]
    spec["engine"] |= {"image": ENGINE_IMAGE.reference, "imagePullPolicy": "Never", "drainSeconds": 20}
    own = {each["name"]: each["value"] for each in spec["engine"]["env"]}
    added = {
        "PATH": f"{Path(sys.prefix) / 'bin'}:/usr/bin:/bin",
        "UCX_TLS": "tcp,self",
        "PYTHONPATH": os.pathsep.join([str(SLEEPING_NIXL), *filter(None, [own.get("PYTHONPATH")])]),
    }
    spec["engine"]["env"] = [{"name": name, "value": value} for name, value in {**own, **added, **env}.items()]
    mounted = pods.host_folders([*pods.SYSTEM, *_python(), SLEEPING_NIXL, MODEL, *folders])
    for part, container in (("prefill", "engine"), ("decode", "engine"), ("kvTransfer", "service")):
        patch = {"name": container, "volumeMounts": mounted.mounts, "workingDir": str(CHECKOUT)}
        spec.setdefault(part, {})["podTemplate"] = {"spec": {"containers": [patch], "volumes": mounted.volumes}}
    sidecars = [each.name for each in side_services(parse(found).spec) if each.is_sidecar]
    for part in ("prefill", "decode"):
        patches = [{**patch, "name": name} for name in sidecars]
        spec[part]["podTemplate"]["spec"] |= {"initContainers": patches} if patches else {}
    return found


def client() -> Manifest:
    """A pod that waits for commands."""
    mounted = pods.host_folders([*pods.SYSTEM, *_python(), SCRIPT.parent])
    container = {
        "name": CLIENT,
        "image": ENGINE_IMAGE.reference,
        "imagePullPolicy": "Never",
        "command": ["/bin/sleep", "infinity"],
        "volumeMounts": [*mounted.mounts, {"name": "tmp", "mountPath": "/tmp"}],
    }
    volumes = [*mounted.volumes, {"name": "tmp", "emptyDir": {}}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": CLIENT},
        "spec": {"containers": [container], "volumes": volumes, "terminationGracePeriodSeconds": 0},
    }


def _python() -> list[Path]:
    return list(dict.fromkeys([Path(sys.base_prefix), Path(sys.prefix)]))
