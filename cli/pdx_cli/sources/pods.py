"""Reads a deployment's pods: the gateways' admin ports, the engines' HTTP APIs, and logs."""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pdx_api.names import ADMIN_PORT, ENGINE_CONTAINER, ENGINE_PORT, GATEWAY_CONTAINER, ROLE_GATEWAY, Role
from pdx_api.verification import PAIRS_PATH
from pdx_cli.sources.access import ObjectAccess
from pdx_cli.sources.answers import ENGINE_PATHS, STATE_PATH, engine_fields, parsed
from pdx_cli.sources.kube import PodAnswerError
from pdx_cli.sources.objects import group_of, is_running, rendered_args, role_of, vllm_args
from pdx_cli.sources.observation import Body, Engine, Gateway
from pdx_operator.observed.workloads import PodView
from pdx_operator.status.diagnosis import logs_to_read

MAX_ENGINES: Final = 16
"""Engines that are queried: the first of each role and revision, then the others."""
MAX_ENDED_LOGS: Final = 6
RECENT_SECONDS: Final = 600
"""How far back logs of running engines are read."""
LOG_LINES: Final = 3000


@dataclass(frozen=True, slots=True)
class PodReader:
    """Queries the running pods of one PDDeployment."""

    access: ObjectAccess
    complete: bool = False
    """Whether to read everything, for a support bundle, and not only what the checks need."""

    async def ended_logs(self, pods: tuple[PodView, ...]) -> dict[str, str]:
        """Return the logs of containers that failed, by pod."""
        kube, namespace = self.access.kube, self.access.namespace
        requests = logs_to_read(pods, most=MAX_ENDED_LOGS)
        logs = (kube.log(namespace, r.pod, r.container, previous=r.previous) for r in requests)
        texts = await asyncio.gather(*(self.access.read("logs of containers that ended", log, "") for log in logs))
        return {r.pod: text for r, text in zip(requests, texts, strict=True) if text}

    async def gateways(self, pods: Sequence[Body]) -> tuple[Gateway, ...]:
        """Query every running gateway."""
        running = [pod for pod in pods if role_of(pod) == ROLE_GATEWAY and is_running(pod)]
        return tuple(await asyncio.gather(*(self.gateway(pod["metadata"]["name"]) for pod in running)))

    async def gateway(self, pod: str) -> Gateway:
        """Query one gateway; read its log if it reports no endpoint."""
        kube, namespace = self.access.kube, self.access.namespace
        state, problem = None, ""
        try:
            state = parsed(await kube.query_pod(namespace, pod, ADMIN_PORT, STATE_PATH))
        except PodAnswerError as error:
            if error.reached:
                problem = str(error)
            else:
                self.access.unseen["the state of gateways"] = str(error)
        verification = await self._verification(pod) if state and state.get("endpoints") else None
        log, metrics = "", b""
        if verification is None or self.complete:
            lines = kube.log(namespace, pod, GATEWAY_CONTAINER, previous=False)
            log = await self.access.read("the gateway's log", lines, "")
        if self.complete:
            metrics = await _or_empty(kube.query_pod(namespace, pod, ADMIN_PORT, "/metrics"))
        source = self._log_command(pod, GATEWAY_CONTAINER)
        return Gateway(pod, state, problem, verification, log, source, metrics.decode(errors="replace"))

    def _log_command(self, pod: str, container: str) -> str:
        return f"kubectl logs -n {self.access.namespace} {pod} -c {container}"

    async def _verification(self, pod: str) -> Body | None:
        query = self.access.kube.query_pod(self.access.namespace, pod, ADMIN_PORT, PAIRS_PATH)
        return parsed(await _or_empty(query)) or None

    async def engines(self, pods: Sequence[Body], deployments: Sequence[Body]) -> tuple[Engine, ...]:
        """Query up to MAX_ENGINES running engines."""
        running = [pod for pod in pods if role_of(pod) in list(Role) and is_running(pod)]
        rendered = {group_of(deployment): rendered_args(deployment) for deployment in deployments}
        selected = _first_of_each_group(running)[:MAX_ENGINES]
        if len(selected) < len(running):
            rest = len(running) - len(selected)
            self.access.unseen[f"{rest} of {len(running)} engines"] = f"only {len(selected)} were queried"
        return tuple(await asyncio.gather(*(self._engine(pod, rendered.get(group_of(pod))) for pod in selected)))

    async def _engine(self, pod: Body, rendered: tuple[str, ...] | None) -> Engine:
        name = pod["metadata"]["name"]
        role, revision = group_of(pod)
        lines = self.access.kube.lines(
            self.access.namespace, name, ENGINE_CONTAINER, count=LOG_LINES, seconds=RECENT_SECONDS
        )
        log, answers = await asyncio.gather(self.access.read("the engines' logs", lines, ""), self._answers(name))
        args = vllm_args(pod.get("spec") or {})
        source = self._log_command(name, ENGINE_CONTAINER)
        return Engine(name, Role(role), revision, args, rendered, log=log, log_source=source, **answers)

    async def _answers(self, pod: str) -> Mapping[str, Any]:
        """Return what the engine reports, as fields of `Engine`."""

        async def query(path: str) -> bytes:
            return await self.access.kube.query_pod(self.access.namespace, pod, ENGINE_PORT, path)

        try:
            await query("/health")
        except PodAnswerError as error:
            if error.reached:
                return {"problem": str(error)}
            self.access.unseen["the answers of engines"] = str(error)
            return {}
        return engine_fields(*await asyncio.gather(*(_or_empty(query(path)) for path in ENGINE_PATHS)))


def _first_of_each_group(pods: Sequence[Body]) -> list[Body]:
    """Order the pods: the first of each role and revision, then the second of each, and so on."""
    counts: dict[tuple[str, str], int] = {}
    ranked = []
    for pod in pods:
        rank = counts[group_of(pod)] = counts.get(group_of(pod), 0) + 1
        ranked.append((rank, pod["metadata"]["name"], pod))
    return [pod for *_, pod in sorted(ranked, key=lambda entry: entry[:2])]


async def _or_empty(query: Awaitable[bytes]) -> bytes:
    try:
        return await query
    except PodAnswerError:
        return b""
