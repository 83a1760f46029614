"""The files of examples/connectors on a cluster: one connector peer to peer, and one with a side service."""

import time
from pathlib import Path
from typing import Final

from pdx_api.render.engines import side_services
from pdx_api.spec.parse import parse
from pdx_cluster.errors import ClusterError
from tests.cluster.tiny import objects, steps
from tests.cluster.tiny.scene import ATTEMPTS, PROBE_SECONDS, Scene, Transfer
from tests.engines.support import mooncake

EXAMPLES: Final = ("mooncake", "lmcache")
_COMPUTED: Final = {"mooncake": 0, "lmcache": 1, "lmcache-p2p": 1}
"""Name of the object -> tokens of a prompt that D always computes."""
LENGTH: Final = 257
"""Tokens of a prompt: two of LMCache's chunks, and one more token."""
PROMPTS: Final = 3


def prove(scene: Scene) -> Transfer:
    """Apply the example: D loads whole prompts, the texts equal a single engine's, and removal leaves nothing.

    The single engine is P, with a `cache_salt`: it is part of LMCache's keys, so P finds nothing in the pool.
    """
    example = _example(scene)
    steps.bring_up(scene, example)
    _check_services(scene, example)
    found = [steps.checked(each, _COMPUTED[scene.name]) for each in _transfers(scene)]
    steps.remove(scene)
    return found[0]


def reach_service(scene: Scene) -> None:
    """Apply the example with engines that no node takes: its side service answers another pod through its Service."""
    example = _example(scene)
    for part in ("prefill", "decode"):
        example["spec"][part]["podTemplate"]["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "none"}
    scene.apply(objects.client())
    scene.apply(example)
    (service,) = [service for service in side_services(parse(example).spec) if not service.is_sidecar]
    labels = f"pdx.dev/deployment={scene.name},pdx.dev/service={service.name}"
    scene.kubectl("wait", "--for=create", "pod", "-l", labels, "--timeout=60s", seconds=70)
    for pod in ((objects.CLIENT,), ("-l", labels)):
        scene.kubectl("wait", "--for=condition=Ready", "pod", *pod, "--timeout=150s", seconds=160)
    (found,) = scene.read("services", "-l", labels)["items"]
    ports = {port["name"]: port["port"] for port in found["spec"]["ports"]}
    for name in ("requests", "admin"):
        code = f"import socket; socket.create_connection(({found['metadata']['name']!r}, {ports[name]}), 10)"
        scene.kubectl("exec", objects.CLIENT, "--", objects.PYTHON, "-c", code)
    steps.remove(scene)


def _example(scene: Scene) -> objects.Manifest:
    try:
        env = mooncake.libraries()  # LMCache loads Mooncake too
    except ImportError as error:
        raise ClusterError(str(error)) from error
    folders = [Path(folder) for folder in env.get("LD_LIBRARY_PATH", "").split(":") if folder]
    return objects.example(f"connectors/{scene.name}", [mooncake.PLUGIN, *folders], env)


def _check_services(scene: Scene, example: objects.Manifest) -> None:
    expected = [service.name for service in side_services(parse(example).spec) if not service.is_sidecar]
    running = [pod["metadata"]["labels"]["pdx.dev/service"] for pod in scene.pods("pdx.dev/service")]
    if running != expected:
        raise ClusterError(f"side services: {running}, not {expected}")


def _transfers(scene: Scene) -> list[Transfer]:
    """Send several prompts, one after the other; skip those during which a transfer probe was counted."""
    clean: list[Transfer] = []
    for attempt in range(ATTEMPTS):
        prompt = [3 + (attempt + 37 * n) % 500 for n in range(LENGTH)]
        found = scene.compare("/v1/completions", {"prompt": prompt})
        if found.without_probe:
            clean.append(found)
        else:
            time.sleep(PROBE_SECONDS)
        if len(clean) == PROMPTS:
            return clean
    raise ClusterError("a transfer probe was counted with nearly every prompt")
