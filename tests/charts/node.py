"""A node for PDX's pods: it runs simulated engines and real gateways as processes, each on a loopback address."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pdx_api.kube.kinds import POD
from pdx_api.names import ADMIN_PORT, ENGINE_PORT, LABEL_ROLE, ROLE_GATEWAY
from pdx_cluster.app.cluster import Cluster
from tests.cluster.runtime.harness import Api

Body = dict[str, Any]

_FINALIZER = "pdx.dev/test"
"""Keeps a deleted pod until its process has ended, as a kubelet does."""
_PAUSE = 0.2
SLOW = "0.1"
"""Seconds for each token, so that requests are in flight whenever a gateway is told to end."""


@dataclass
class _Running:
    process: "subprocess.Popen[bytes]"
    address: str
    probe: str
    ending: bool = False
    ready: bool = False


class Node(threading.Thread):
    """Runs the pods of one namespace until the block ends. New gateways are of the version in `wheel`, or this one."""

    def __init__(self, cluster: Cluster, namespace: str, folder: Path, wheel: Path | None) -> None:
        super().__init__(daemon=True)
        self.wheel = wheel
        self._cluster = cluster
        self._api = Api(cluster)
        self._namespace = namespace
        self._folder = folder
        self._over = threading.Event()
        self._running: dict[str, _Running] = {}
        self._subnet = 1 + os.getpid() % 250
        self._number = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()
        for running in self._running.values():
            running.process.kill()
            running.process.wait()

    def run(self) -> None:
        """Until the block ends."""
        while not self._over.wait(_PAUSE):
            with contextlib.suppress(OSError):
                for pod in self._api.items(POD, self._namespace):
                    self._care(pod)

    def _care(self, pod: Body) -> None:
        metadata = pod["metadata"]
        running = self._running.get(metadata["uid"])
        if "deletionTimestamp" in metadata:
            self._end(metadata, running)
        elif running is None:
            self._patch(metadata["name"], {"metadata": {"finalizers": [_FINALIZER]}})
            self._running[metadata["uid"]] = self._launch(pod)
        else:
            assert running.process.poll() is None, f"{metadata['name']} has ended: {running.process.returncode}"
            self._report(pod, running)

    def _launch(self, pod: Body) -> _Running:
        self._number += 1
        address = f"127.{self._subnet}.{self._number // 250}.{1 + self._number % 250}"
        role, name = pod["metadata"]["labels"][LABEL_ROLE], pod["metadata"]["name"]
        environment = dict(os.environ)
        if role == ROLE_GATEWAY:
            arguments = [arg.replace("0.0.0.0", address) for arg in pod["spec"]["containers"][0]["args"]]
            command, probe = ["pdx_proxy", *arguments], f"http://{address}:{ADMIN_PORT}/readyz"
            environment |= {"KUBECONFIG": str(self._kubeconfig(pod["spec"]["serviceAccountName"]))}
            if self.wheel is not None:
                environment |= {"PYTHONPATH": str(self.wheel)}
        else:
            engine = ["--listen", f"{address}:{ENGINE_PORT}", "--side-channel", f"{address}:5600", "--role", role]
            command, probe = (
                ["pdx_cli", "sim", *engine, "--model", "m", "--decode-token-seconds", SLOW, "--shutdown-seconds", "60"],
                f"http://{address}:{ENGINE_PORT}/health",
            )
        with (self._folder / f"{name}.log").open("wb") as log:
            full = [sys.executable, "-m", *command]
            process = subprocess.Popen(full, cwd=self._folder, stdout=log, stderr=log, env=environment)
        return _Running(process, address, probe)

    def _end(self, metadata: Body, running: _Running | None) -> None:
        if running is not None and running.process.poll() is None:
            if not running.ending:
                running.ending = True
                running.process.send_signal(signal.SIGTERM)
            return
        if metadata.get("finalizers"):
            self._patch(metadata["name"], {"metadata": {"finalizers": None}})

    def _report(self, pod: Body, running: _Running) -> None:
        ready = _answers(running.probe)
        if ready == running.ready and "podIP" in pod["status"]:
            return
        running.ready = ready
        # Long ago, so that minReadySeconds are over.
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 60))
        state = {"running": {"startedAt": since}}
        container = {"name": pod["spec"]["containers"][0]["name"], "image": "", "imageID": "", "restartCount": 0}
        status = {
            "phase": "Running",
            "podIP": running.address,
            "podIPs": [{"ip": running.address}],
            "conditions": [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": since},
                {"type": "Ready", "status": str(ready), "lastTransitionTime": since},
            ],
            "containerStatuses": [
                {**container, "containerID": f"sim://{pod['metadata']['uid']}", "ready": ready, "state": state}
            ],
        }
        self._patch(pod["metadata"]["name"], {"status": status}, "status")

    def _patch(self, name: str, body: Body, subresource: str = "") -> None:
        self._api.patch(POD, self._namespace, name, body, subresource)

    def _kubeconfig(self, account: str) -> Path:
        """What the gateway's pod would have: its own ServiceAccount's token."""
        token = self._cluster.kubectl("create", "token", account, "--namespace", self._namespace).strip()
        config = json.loads(self._cluster.kubectl("config", "view", "--raw", "--output=json"))
        config["users"][0]["user"] = {"token": token}
        path = self._folder / f"{account}-{self._number}.kubeconfig"
        path.write_text(json.dumps(config))
        return path


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
