"""Looking at a PDDeployment in a cluster: everything that `pdx doctor` asks of the API server and of pods."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, TypeVar

from pdx_api.names import (
    ADMIN_PORT,
    ANNOTATION_TEMPLATE,
    ENGINE_CONTAINER,
    ENGINE_PORT,
    GATEWAY_CONTAINER,
    LABEL_DEPLOYMENT,
    LABEL_REVISION,
    LABEL_ROLE,
    ROLE_GATEWAY,
    Role,
    gateway_name,
)
from pdx_api.spec.parse import InvalidDeploymentError, parse
from pdx_api.spec.types import PDDeployment
from pdx_cli.errors import CommandError
from pdx_cli.sources.answers import CANARY_PATH, model_of, parsed, tokens_of, version_of
from pdx_cli.sources.kube import Kube, PodAnswerError
from pdx_cli.sources.picture import Body, Engine, Gateway, Happening, Operator, Picture, Rights, WantedSecret
from pdx_operator.kube.client import ApiError, MissingError
from pdx_operator.kube.resources import DEPLOYMENT, KIND_OF, PDDEPLOYMENT, POD, Kind
from pdx_operator.observed.workloads import PodView, observe_gateway, observe_pool, pod_view
from pdx_operator.status.diagnosis import logs_to_read

EVENT: Final = Kind("v1", "Event", "events")
"""Of the group that the cluster's role `view` holds."""
SECRET: Final = Kind("v1", "Secret", "secrets")
OPERATORS: Final = "app.kubernetes.io/part-of=pdx,app.kubernetes.io/component=operator"
MOST_ENGINES: Final = 16
"""Engines that are asked themselves: the first of each role and revision, then the others."""
LATE_SECONDS: Final = 600
"""How far back logs of running engines are read."""
LOG_LINES: Final = 3000

Answer = TypeVar("Answer")


@dataclass(slots=True)
class Look:
    """One look at one object. What may not be seen is noted, and the look goes on."""

    kube: Kube
    namespace: str
    name: str
    unseen: dict[str, str] = field(default_factory=dict)

    async def picture(self, now: Callable[[], datetime]) -> Picture:
        """Everything; raises CommandError with code 2 when the object itself cannot be seen."""
        body = await self.object()
        deployment = _read(body)
        selector = f"{LABEL_DEPLOYMENT}={self.name}"
        pods, deployments, events, operator, secrets, rights = await asyncio.gather(
            self._items(POD, "pods", labelSelector=selector),
            self._items(DEPLOYMENT, "Deployments", labelSelector=selector),
            self._items(EVENT, "Events"),
            self._operator(),
            self._secrets(deployment),
            self._rights(deployment),
        )
        views = tuple(pod_view(pod) for pod in pods)
        logs, gateways, engines = await asyncio.gather(
            self._ended_logs(views), self._gateways(pods), self._engines(pods, deployments)
        )
        mine = [d for d in deployments if (d["metadata"].get("labels") or {}).get(LABEL_ROLE) == ROLE_GATEWAY]
        return Picture(
            name=self.name,
            now=now(),
            namespace=self.namespace,
            mode=deployment.spec.mode if deployment else None,
            body=body,
            deployment=deployment,
            operator=operator,
            pools=tuple(pool for d in deployments if (pool := observe_pool(d)) is not None),
            stalled=tuple(d["metadata"]["name"] for d in deployments if _is_stalled(d)),
            gateway=observe_gateway(mine[0]) if mine else None,
            pods=views,
            ended_logs=logs,
            secrets=secrets,
            rights=rights,
            events=tuple(_happenings(events, self.name)),
            gateways=gateways,
            engines=engines,
            unseen=tuple(f"{what} ({why})" for what, why in self.unseen.items()),
        )

    async def object(self) -> Body:
        """The PDDeployment; raises CommandError with code 2."""
        try:
            return await self.kube.get(PDDEPLOYMENT, self.namespace, self.name)
        except MissingError as error:
            raise CommandError(await self._absent(str(error)), code=2) from error
        except ApiError as error:
            raise CommandError(f"The cluster cannot be looked at: {str(error).rstrip('.')}.", code=2) from error

    async def _absent(self, words: str) -> str:
        if "could not find the requested resource" in words:
            return "This cluster does not know PDDeployments: install the chart, or apply crds/."
        found = await self._items(PDDEPLOYMENT, "PDDeployments")
        names = ", ".join(item["metadata"]["name"] for item in found) or "none"
        return (
            f"There is no PDDeployment {self.name} in namespace {self.namespace} (there: {names}); "
            "name its namespace with -n."
        )

    async def _items(self, kind: Kind, what: str, **query: str) -> list[dict[str, Any]]:
        body = await self._seen(what, self.kube.list(kind, self.namespace, **query), {"items": []})
        return list(body["items"])

    async def _seen(self, what: str, asked: Awaitable[Answer], otherwise: Answer) -> Answer:
        try:
            return await asked
        except MissingError:
            return otherwise
        except ApiError as error:
            self.unseen[what] = "not allowed" if error.status == 403 else str(error)
            return otherwise

    async def _operator(self) -> Operator:
        try:
            found = (await self.kube.list(DEPLOYMENT, None, labelSelector=OPERATORS))["items"]
        except ApiError:
            # Who may look into his own namespace only cannot see it; nothing is wrong with that.
            return Operator()
        states = [observe_gateway(body) for body in found]
        return Operator(
            seen=True,
            ready=sum(state.ready for state in states),
            wanted=sum(state.replicas for state in states),
            namespaces=tuple(body["metadata"]["namespace"] for body in found),
        )

    async def _secrets(self, deployment: PDDeployment | None) -> tuple[WantedSecret, ...]:
        if deployment is None:
            return ()
        spec = deployment.spec
        auth = spec.gateway.auth
        named = (
            ("spec.gateway.auth.secretRef", auth.secret_ref if auth else None),
            ("spec.engine.apiKeySecretRef", spec.engine.api_key_secret_ref),
            ("spec.model.tokenSecretRef", spec.model.token_secret_ref),
        )
        return tuple([await self._secret(where, ref.name, ref.key) for where, ref in named if ref is not None])

    async def _secret(self, where: str, name: str, key: str) -> WantedSecret:
        try:
            # Its metadata alone: nobody here wants to hold keys.
            exists = await self.kube.head(SECRET, self.namespace, name) is not None
        except ApiError:
            return WantedSecret(name, key, where, None)
        return WantedSecret(name, key, where, exists)

    async def _rights(self, deployment: PDDeployment | None) -> Rights:
        if deployment is None:
            return Rights()
        missing = []
        role: Body | None = None
        for kind in ("ServiceAccount", "Role", "RoleBinding"):
            try:
                found = await self.kube.get(KIND_OF[kind], self.namespace, gateway_name(self.name))
            except MissingError:
                missing.append(f"{kind} {gateway_name(self.name)}")
            except ApiError:
                continue
            else:
                role = found if kind == "Role" else role
        return Rights(tuple(missing), None if role is None else _lists_pods(role))

    async def _ended_logs(self, pods: tuple[PodView, ...]) -> dict[str, str]:
        requests = logs_to_read(pods, most=6)
        texts = await asyncio.gather(
            *(
                self._seen(
                    "logs of containers that ended",
                    self.kube.log(self.namespace, r.pod, r.container, previous=r.previous),
                    "",
                )
                for r in requests
            )
        )
        return {r.pod: text for r, text in zip(requests, texts, strict=True) if text}

    async def _gateways(self, pods: list[dict[str, Any]]) -> tuple[Gateway, ...]:
        running = [pod for pod in pods if _role(pod) == ROLE_GATEWAY and _runs(pod)]
        return tuple(await asyncio.gather(*(self.gateway(pod["metadata"]["name"]) for pod in running)))

    async def gateway(self, pod: str) -> Gateway:
        """One gateway, asked for its state; its log is read where that says less than it should."""
        state, trouble = None, ""
        try:
            state = parsed(await self.kube.ask_pod(self.namespace, pod, ADMIN_PORT, "/pdx/state"))
        except PodAnswerError as error:
            if error.asked:
                trouble = str(error)
            else:
                self.unseen["what gateways say"] = str(error)
        if state and state.get("endpoints"):
            return Gateway(pod, state, canary=await self._canary(pod))
        asked = self.kube.log(self.namespace, pod, GATEWAY_CONTAINER, previous=False)
        return Gateway(pod, state, trouble, log=await self._seen("the gateway's log", asked, ""))

    async def _canary(self, pod: str) -> Body | None:
        body = await _or_nothing(self.kube.ask_pod(self.namespace, pod, ADMIN_PORT, CANARY_PATH))
        return parsed(body) or None

    async def _engines(self, pods: list[dict[str, Any]], deployments: list[dict[str, Any]]) -> tuple[Engine, ...]:
        running = [pod for pod in pods if _role(pod) in list(Role) and _runs(pod)]
        rendered = {_group(d): _template_args(d) for d in deployments}
        counts: dict[tuple[str, str], int] = {}
        ranked = []
        for pod in running:
            place = counts[_group(pod)] = counts.get(_group(pod), 0) + 1
            ranked.append((place, pod["metadata"]["name"], pod))
        asked = [pod for *_, pod in sorted(ranked, key=lambda entry: entry[:2])[:MOST_ENGINES]]
        if len(asked) < len(running):
            self.unseen[f"{len(running) - len(asked)} of {len(running)} engines"] = "the first were asked"
        return tuple(await asyncio.gather(*(self._engine(pod, rendered.get(_group(pod))) for pod in asked)))

    async def _engine(self, pod: dict[str, Any], rendered: tuple[str, ...] | None) -> Engine:
        name = pod["metadata"]["name"]
        known = {
            "name": name,
            "role": Role(_role(pod)),
            "revision": _group(pod)[1],
            "args": _args(pod.get("spec") or {}),
            "rendered": rendered,
        }
        log = self.kube.lines(self.namespace, name, ENGINE_CONTAINER, count=LOG_LINES, seconds=LATE_SECONDS)
        text, said = await asyncio.gather(self._seen("the engines' logs", log, ""), self._answers(name))
        return Engine(**known, log=text, **said)

    async def _answers(self, pod: str) -> dict[str, Any]:
        async def ask(path: str) -> bytes:
            return await self.kube.ask_pod(self.namespace, pod, ENGINE_PORT, path)

        try:
            await ask("/health")
        except PodAnswerError as error:
            if error.asked:
                return {"trouble": str(error)}
            self.unseen["what engines say"] = str(error)
            return {}
        version, models, metrics = await asyncio.gather(
            *(_or_nothing(ask(path)) for path in ("/version", "/v1/models", "/metrics"))
        )
        return {"version": version_of(version), "model": model_of(models), "tokens": tokens_of(metrics)}


async def _or_nothing(asked: Awaitable[bytes]) -> bytes:
    try:
        return await asked
    except PodAnswerError:
        return b""


def _read(body: Body) -> PDDeployment | None:
    try:
        return parse(body)
    except InvalidDeploymentError:
        return None


def _role(pod: Body) -> str:
    return str((pod["metadata"].get("labels") or {}).get(LABEL_ROLE, ""))


def _group(body: Body) -> tuple[str, str]:
    labels = body["metadata"].get("labels") or {}
    return labels.get(LABEL_ROLE, ""), labels.get(LABEL_REVISION, "")


def _runs(pod: Body) -> bool:
    status = pod.get("status") or {}
    started = any((c.get("state") or {}).get("running") for c in status.get("containerStatuses") or ())
    return started and "deletionTimestamp" not in pod["metadata"]


def _args(spec: Body) -> tuple[str, ...]:
    container: Body = next((c for c in spec.get("containers") or () if c.get("name") == ENGINE_CONTAINER), {})
    words = (*(container.get("command") or ()), *(container.get("args") or ()))
    return tuple(words[1:]) if words[:1] == ("vllm",) else ()


def _template_args(deployment: Body) -> tuple[str, ...] | None:
    try:
        template = json.loads((deployment["metadata"].get("annotations") or {})[ANNOTATION_TEMPLATE])
        return _args(template["spec"]) or None
    except (KeyError, TypeError, ValueError):
        return None


def _is_stalled(deployment: Body) -> bool:
    conditions = (deployment.get("status") or {}).get("conditions") or ()
    return any(c.get("reason") == "ProgressDeadlineExceeded" for c in conditions)


def _lists_pods(role: Body) -> bool:
    def gives(rule: Body, verb: str) -> bool:
        return (
            bool({"", "*"} & set(rule.get("apiGroups") or ()))
            and bool({"pods", "*"} & set(rule.get("resources") or ()))
            and bool({verb, "*"} & set(rule.get("verbs") or ()))
        )

    rules = role.get("rules") or ()
    return all(any(gives(rule, verb) for rule in rules) for verb in ("list", "watch"))


def _happenings(events: list[dict[str, Any]], name: str) -> list[Happening]:
    """The warnings that name the object or what carries its name, the newest first."""
    found = []
    for event in sorted(events, key=_when, reverse=True):
        about = event.get("involvedObject") or {}
        its = str(about.get("name", ""))
        if event.get("type") == "Warning" and (its == name or its.startswith(f"{name}-")):
            found.append(
                Happening(about.get("kind", ""), its, event.get("reason", ""), str(event.get("message") or ""))
            )
    return found


def _when(event: Body) -> str:
    series = event.get("series") or {}
    metadata = event.get("metadata") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return next((str(time) for time in times if time), str(metadata.get("creationTimestamp", "")))


async def sole_name(kube: Kube, namespace: str) -> str:
    """The only PDDeployment of a namespace; raises CommandError with code 2."""
    try:
        found = (await kube.list(PDDEPLOYMENT, namespace))["items"]
    except ApiError as error:
        raise CommandError(f"The cluster cannot be looked at: {str(error).rstrip('.')}.", code=2) from error
    names = [str(item["metadata"]["name"]) for item in found]
    if len(names) == 1:
        return names[0]
    said = f"there are {', '.join(names)}" if names else "there is none"
    raise CommandError(f"Name a PDDeployment: in namespace {namespace} {said}.", code=2)
