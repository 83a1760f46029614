"""The objects of the run with real engines: examples/tiny-cpu.yaml with the test's engine image, and the client's pod.

No engine image of gigabytes is built: the image is empty, and the pods mount the machine's own Python environment.
"""

import sys
from pathlib import Path
from typing import Any, Final

import yaml

from pdx_cluster import pods

CHECKOUT: Final = Path(__file__).resolve().parents[3]
MODEL: Final = Path("/tmp/pdx/models/tiny")
ENGINE_IMAGE: Final = pods.empty_image()
CLIENT: Final = "client"
SCRIPT: Final = Path(__file__).with_name("client.py")
PYTHON: Final = str(Path(sys.prefix) / "bin" / "python")

Manifest = dict[str, Any]


def tiny() -> Manifest:
    """The example, with an overlay that names the test's engine image and mounts."""
    example: Manifest = yaml.safe_load((CHECKOUT / "examples" / "tiny-cpu.yaml").read_text())
    spec = example["spec"]
    spec["engine"] |= {"image": ENGINE_IMAGE.reference, "imagePullPolicy": "Never", "shutdownSeconds": 20}
    spec["engine"]["env"] += [
        {"name": "PATH", "value": f"{Path(sys.prefix) / 'bin'}:/usr/bin:/bin"},
        {"name": "UCX_TLS", "value": "tcp,self"},
    ]
    mounted = pods.host_folders([*pods.SYSTEM, *_python(), MODEL])
    container = {"name": "engine", "volumeMounts": mounted.mounts}
    for role in ("prefill", "decode"):
        spec[role]["podTemplate"] = {"spec": {"containers": [container], "volumes": mounted.volumes}}
    return example


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
