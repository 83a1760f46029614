"""One example in a cluster: how to change it, wait for it, and send requests to it."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from pdx_api.names import ConditionType
from pdx_cli.local.evidence import external_tokens
from pdx_cluster.app.cluster import Cluster
from pdx_cluster.errors import ClusterError
from tests.cluster.tiny import objects

NAME: Final = "tiny"
MODEL: Final = "tiny"
PROMPT: Final = "The quick brown fox jumps over the lazy dog and runs into the woods. " * 6
ATTEMPTS: Final = 40
PROBE_SECONDS: Final = 3.0
"""On a busy machine the gateway's first transfer probes last for a minute."""
UNSCHEDULABLE_SECONDS: Final = 20.0
"""How long an engine may find no room: an engine that ends keeps its room until its last answer has ended."""
SHORT_PROMPT: Final = "The quick brown fox."
"""For steady requests: four engines of a rollout share the machine's few cores."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """Results of one request through P and D, and of the same request to one engine."""

    text: str
    alone: str
    prompt_tokens: int
    external_tokens: int
    """Prompt tokens that came through the connector, by the decode engine's counter."""

    @property
    def without_probe(self) -> bool:
        """Whether no transfer probe of the gateway was counted with the request."""
        return self.external_tokens <= self.prompt_tokens


@dataclass(slots=True)
class Room:
    """Ends a wait in which an engine finds no room on the node."""

    found: float = field(default_factory=time.monotonic)
    """When no engine lacked room."""

    def check(self, conditions: Mapping[str, Mapping[str, str]]) -> None:
        """Raise ClusterError with the message of Degraded if an engine has had no room for UNSCHEDULABLE_SECONDS."""
        degraded = conditions.get(ConditionType.DEGRADED, {})
        if degraded.get("reason") != "Unschedulable":
            self.found = time.monotonic()
        elif time.monotonic() > self.found + UNSCHEDULABLE_SECONDS:
            raise ClusterError(degraded["message"])


@dataclass(frozen=True, slots=True)
class Scene:
    """An example in one namespace of a cluster."""

    cluster: Cluster
    namespace: str
    report: Callable[[str], None]
    name: str = NAME
    """Name of the PDDeployment."""

    @property
    def service(self) -> str:
        """URL of the gateway's Service."""
        return f"http://{self.name}-gateway"

    def kubectl(self, *arguments: str, stdin: str | None = None, seconds: float = 120.0) -> str:
        """Run kubectl in the namespace."""
        return self.cluster.kubectl("-n", self.namespace, *arguments, stdin=stdin, timeout_seconds=seconds)

    def read(self, *what: str) -> dict[str, Any]:
        """An object or a list, as JSON."""
        found: dict[str, Any] = json.loads(self.kubectl("get", *what, "-o", "json"))
        return found

    def apply(self, manifest: dict[str, Any]) -> None:
        """Apply a manifest."""
        self.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))

    def patch(self, spec: dict[str, Any]) -> None:
        """Change the spec."""
        self.kubectl("patch", "pdd", self.name, "--type=merge", "-p", json.dumps({"spec": spec}))

    def wait_until_settled(self, seconds: float) -> float:
        """Wait until the newest spec is Ready and rolled out; return the seconds that it took.

        Raises ClusterError when the time is over, or when an engine finds no room.
        """
        began, room = time.monotonic(), Room()
        last = ""
        while time.monotonic() < began + seconds:
            body = self.read("pdd", self.name)
            status, conditions = body.get("status") or {}, _conditions(body)
            line = "; ".join(f"{name}={c['status']} {c.get('message', '')}" for name, c in conditions.items())
            if line != last:
                self.report(f"  {time.monotonic() - began:4.0f} s  {line}")
                last = line
            if (
                status.get("observedGeneration") == body["metadata"]["generation"]
                and conditions.get("Ready", {}).get("status") == "True"
                and conditions.get("Progressing", {}).get("status") == "False"
            ):
                return time.monotonic() - began
            room.check(conditions)
            time.sleep(0.5)
        raise ClusterError(f"not settled after {seconds:.0f} s: {last}\n{self.kubectl('get', 'pods', '-o', 'wide')}")

    def conditions(self) -> Mapping[str, Mapping[str, str]]:
        """The object's conditions, by type."""
        return _conditions(self.read("pdd", self.name))

    def pods(self, selector: str = "pdx.dev/role in (prefill,decode)") -> list[dict[str, Any]]:
        """Return the object's pods of that label, by default its engines."""
        return list(self.read("pods", "-l", f"pdx.dev/deployment={self.name},{selector}")["items"])

    def engine_starts(self) -> set[tuple[str, int]]:
        """Return each engine pod with its number of restarts, to show that none was replaced or restarted."""
        return {
            (pod["metadata"]["uid"], status["restartCount"])
            for pod in self.pods()
            for status in pod["status"].get("containerStatuses", ())
        }

    def client(self, *arguments: str, seconds: float = 180.0) -> str:
        """Run the client's script in its pod."""
        script = (objects.PYTHON, str(objects.SCRIPT), *arguments)
        return self.kubectl("exec", objects.CLIENT, "--", *script, seconds=seconds)

    def send(self, url: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send one request from the client's pod; return the answer, which must be a 200."""
        answer = json.loads(self.client("send", f"{url}{path}", json.dumps(body)))
        if answer["status"] != 200:
            raise ClusterError(f"{url}{path} answered {answer['status']}: {answer['text']}")
        content: dict[str, Any] = json.loads(answer["text"])
        return content

    def external_tokens(self) -> int:
        """Return the prompt tokens that decode engines loaded through the connector, by vLLM's counters."""
        total = 0
        for pod in self.pods("pdx.dev/role=decode"):
            url = f"http://{pod['status']['podIP']}:8000/metrics"
            page = json.loads(self.client("send", url))["text"]
            total += external_tokens(page)
        return total

    def transfer(self, seed: int) -> Transfer:
        """Send a chat request to the gateway's Service, and the same to a prefill engine."""
        for attempt in range(ATTEMPTS):
            messages = [{"role": "user", "content": f"{seed}.{attempt}. {PROMPT}"}]
            found = self.compare("/v1/chat/completions", {"messages": messages})
            if found.without_probe:
                break
            time.sleep(PROBE_SECONDS)
        return found

    def compare(self, path: str, prompt: dict[str, Any]) -> Transfer:
        """Send a prompt to the gateway's Service, and the same to a prefill engine."""
        body = {"model": MODEL, **prompt, "max_tokens": 24, "temperature": 0}
        before = self.external_tokens()
        answer = self.send(self.service, path, body)
        moved = self.external_tokens() - before
        engine = self.pods("pdx.dev/role=prefill")[0]["status"]["podIP"]
        alone = self.send(f"http://{engine}:8000", path, {**body, "cache_salt": "alone"})
        return Transfer(_text(answer), _text(alone), answer["usage"]["prompt_tokens"], moved)

    @contextmanager
    def steady_requests(self, every: float = 0.1) -> Iterator[list[dict[str, Any]]]:
        """Send a request every `every` seconds in this context; afterwards, the list has the result of each."""
        stop = f"/tmp/stop-{time.monotonic_ns()}"
        body = json.dumps({"model": MODEL, "prompt": SHORT_PROMPT, "max_tokens": 2, "temperature": 0})
        answers: list[dict[str, Any]] = []
        with ThreadPoolExecutor(1) as pool:
            arguments = ("steady", f"{self.service}/v1/completions", body, stop, str(every))
            lines = pool.submit(self.client, *arguments, seconds=1200)
            try:
                yield answers
            finally:
                self.kubectl("exec", objects.CLIENT, "--", "/usr/bin/touch", stop)
            answers += [json.loads(line) for line in lines.result(400).splitlines()]


def _conditions(body: dict[str, Any]) -> dict[str, dict[str, str]]:
    return {each["type"]: each for each in (body.get("status") or {}).get("conditions") or ()}


def _text(answer: dict[str, Any]) -> str:
    choice = answer["choices"][0]
    text: str = choice["message"]["content"] if "message" in choice else choice["text"]
    return text
