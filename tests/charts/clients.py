"""Clients of a gateway: each request goes to a pod that is an endpoint of its Service, as kube-proxy chooses one.

The pods are on loopback addresses, which Kubernetes refuses in EndpointSlices: so its rule is applied here.
"""

import contextlib
import http.client
import json
import random
import threading
from contextlib import closing
from typing import Any, Self

from pdx_api.kube.kinds import POD
from pdx_api.names import GATEWAY_PORT
from pdx_cluster.app.cluster import Cluster
from tests.cluster.runtime.harness import Api

TOKENS = 12
_AT_ONCE = 6
_LAG = 1.0
"""Seconds in which a change of endpoints arrives."""
_PAUSE = 0.05


class Clients:
    """Threads that send one request after the other, until the block ends, and what became of the requests."""

    def __init__(self, cluster: Cluster, namespace: str, selector: str) -> None:
        self._api = Api(cluster)
        self._namespace = namespace
        self._selector = selector
        self._over = threading.Event()
        self._addresses: tuple[str, ...] = ()
        self._threads = [threading.Thread(target=self._send_all, args=(seed,), daemon=True) for seed in range(_AT_ONCE)]
        self._threads.append(threading.Thread(target=self._follow, daemon=True))
        self.served = 0
        self.lost: list[str] = []
        self.used: set[str] = set()
        """Addresses that have served."""

    def __enter__(self) -> Self:
        self.read_endpoints()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def read_endpoints(self) -> tuple[str, ...]:
        """The addresses of pods that are ready and not terminating."""
        pods = self._api.items(POD, self._namespace, labelSelector=self._selector)
        self._addresses = tuple(pod["status"]["podIP"] for pod in pods if _is_endpoint(pod))
        return self._addresses

    def _follow(self) -> None:
        while not self._over.wait(_LAG):
            with contextlib.suppress(OSError):
                self.read_endpoints()

    def _send_all(self, seed: int) -> None:
        chance = random.Random(seed)
        while not self._over.wait(_PAUSE):
            address, stream = chance.choice(self._addresses or ("nowhere",)), chance.random() < 0.5
            try:
                found = _send(address, stream, f"{chance.random()} " * chance.randrange(1, 100))
            except (OSError, http.client.HTTPException, ValueError) as error:
                found = repr(error)
            if found:
                self.lost.append(f"{address}, stream {stream}: {found}")
            else:
                self.served += 1
                self.used.add(address)


def _is_endpoint(pod: dict[str, Any]) -> bool:
    conditions = pod["status"].get("conditions") or ()
    ready = any((each["type"], each["status"]) == ("Ready", "True") for each in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]


def _send(address: str, stream: bool, prompt: str) -> str:
    """What is wrong with the answer; empty if it is whole."""
    body = {"model": "m", "prompt": prompt, "max_tokens": TOKENS, "ignore_eos": True, "stream": stream}
    with closing(http.client.HTTPConnection(address, GATEWAY_PORT, timeout=60)) as connection:
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read().decode()
    if answer.status != 200:
        return f"{answer.status} {text[:300]}"
    if stream:
        events = [line for line in text.splitlines() if line.startswith("data: ")]
        return "" if events[-1:] == ["data: [DONE]"] and len(events) > TOKENS else f"cut short: {text[-300:]}"
    tokens = json.loads(text)["usage"]["completion_tokens"]
    return "" if tokens == TOKENS else f"{tokens} tokens"
