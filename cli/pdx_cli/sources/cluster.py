"""Observes a PDDeployment in a cluster: its objects, its pods and the operator; and samples its gateways."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal
from urllib.parse import urlsplit

from pdx_api.kube.client import ApiError, MissingError
from pdx_api.kube.kinds import DEPLOYMENT, KIND_OF, POD, ROLE, Kind
from pdx_api.names import ADMIN_PORT, LABEL_DEPLOYMENT, ROLE_GATEWAY, gateway_name
from pdx_api.spec.parse import InvalidDeploymentError, parse
from pdx_api.spec.types import PDDeployment
from pdx_api.vllm_metrics import EngineMetrics, read_metrics
from pdx_cli.sources.access import ObjectAccess, unreadable
from pdx_cli.sources.figures import Reading, Sample
from pdx_cli.sources.kube import PodAnswerError
from pdx_cli.sources.objects import is_stalled, lists_pods, role_of, warnings_about
from pdx_cli.sources.observation import Body, Observation, Operator, Rights, SecretReference
from pdx_cli.sources.pods import PodReader
from pdx_cli.sources.sampling import NoAnswerError, loads_of, reading_of
from pdx_operator.observed.workloads import observe_gateway, observe_pool, pod_view
from pdx_operator.render.rbac import binding_names

EVENT: Final = Kind("v1", "Event", "events")
"""In the core group, which the cluster role `view` includes."""
SECRET: Final = Kind("v1", "Secret", "secrets")
OPERATORS: Final = "app.kubernetes.io/part-of=pdx,app.kubernetes.io/component=operator"


@dataclass(frozen=True, slots=True)
class ClusterObserver:
    """Observes one PDDeployment."""

    access: ObjectAccess
    complete: bool = False
    """Whether to read everything, for a support bundle."""

    async def observe(self, now: Callable[[], datetime]) -> Observation:
        """Read everything; raises CommandError with code 2 if the object itself cannot be read."""
        access = self.access
        body = await access.object()
        deployment = _parse(body)
        selector = f"{LABEL_DEPLOYMENT}={access.name}"
        pods, deployments, events, operator, secrets, rights = await asyncio.gather(
            access.items(POD, "pods", labelSelector=selector),
            access.items(DEPLOYMENT, "Deployments", labelSelector=selector),
            access.items(EVENT, "Events"),
            self._operator(),
            self._secrets(deployment),
            self._rights(deployment),
        )
        views, reader = tuple(pod_view(pod) for pod in pods), PodReader(access, self.complete)
        logs, gateways, engines = await asyncio.gather(
            reader.ended_logs(views), reader.gateways(pods), reader.engines(pods, deployments)
        )
        gateway = next((d for d in deployments if role_of(d) == ROLE_GATEWAY), None)
        return Observation(
            name=access.name,
            now=now(),
            namespace=access.namespace,
            mode=deployment.spec.mode if deployment else None,
            body=body,
            deployment=deployment,
            operator=operator,
            pools=tuple(pool for d in deployments if (pool := observe_pool(d)) is not None),
            stalled=tuple(d["metadata"]["name"] for d in deployments if is_stalled(d)),
            gateway=observe_gateway(gateway) if gateway else None,
            pods=views,
            ended_logs=logs,
            secrets=secrets,
            rights=rights,
            events=tuple(warnings_about(events, access.name)),
            gateways=gateways,
            engines=engines,
            unseen=tuple(f"{what} ({why})" for what, why in access.unseen.items()),
        )

    async def _operator(self) -> Operator:
        try:
            found = (await self.access.kube.list(DEPLOYMENT, None, labelSelector=OPERATORS))["items"]
        except ApiError:
            # A user with rights in one namespace only cannot list Deployments of the cluster. That is no finding.
            return Operator()
        states = [observe_gateway(body) for body in found]
        return Operator(
            seen=True,
            ready=sum(state.ready for state in states),
            replicas=sum(state.replicas for state in states),
            namespaces=tuple(body["metadata"]["namespace"] for body in found),
        )

    async def _secrets(self, deployment: PDDeployment | None) -> tuple[SecretReference, ...]:
        if deployment is None:
            return ()
        spec = deployment.spec
        auth = spec.gateway.auth
        fields = (
            ("spec.gateway.auth.secretRef", auth.secret_ref if auth else None),
            ("spec.engine.apiKeySecretRef", spec.engine.api_key_secret_ref),
            ("spec.model.tokenSecretRef", spec.model.token_secret_ref),
        )
        return tuple([await self._secret(field, ref.name, ref.key) for field, ref in fields if ref is not None])

    async def _secret(self, field: str, name: str, key: str) -> SecretReference:
        try:
            # Only the metadata: the CLI must not hold keys.
            exists = await self.access.kube.head(SECRET, self.access.namespace, name) is not None
        except ApiError:
            return SecretReference(name, key, field, None)
        return SecretReference(name, key, field, exists)

    async def _rights(self, deployment: PDDeployment | None) -> Rights:
        if deployment is None:
            return Rights()
        name = gateway_name(self.access.name)
        missing = []
        if await self._child(KIND_OF["ServiceAccount"], name) is False:
            missing.append(f"ServiceAccount {name}")
        # The name of the binding depends on the operator's installation; `pdx render` gives it the gateway's name.
        bindings = [await self._child(KIND_OF["RoleBinding"], each) for each in (*binding_names(name), name)]
        binding = next((found for found in bindings if isinstance(found, Mapping)), None)
        if binding is None:
            missing += [f"RoleBinding {name}"] if all(found is False for found in bindings) else []
            return Rights(tuple(missing))
        reference = binding.get("roleRef") or {}
        role = await self._child(ROLE, reference.get("name", "")) if reference.get("kind") == "Role" else None
        if role is False:
            missing.append(f"Role {reference['name']}")
        return Rights(tuple(missing), lists_pods(role) if isinstance(role, Mapping) else None)

    async def _child(self, kind: Kind, name: str) -> Body | Literal[False] | None:
        """An object of the namespace; False if it does not exist, None if it cannot be read."""
        try:
            return await self.access.kube.get(kind, self.access.namespace, name)
        except MissingError:
            return False
        except ApiError:
            return None


def _parse(body: Body) -> PDDeployment | None:
    try:
        return parse(body, tolerant=True)
    except InvalidDeploymentError:
        return None


@dataclass(slots=True)
class ClusterSampler:
    """Samples the gateways of a PDDeployment."""

    access: ObjectAccess
    clock: Callable[[], float]

    @property
    def name(self) -> str:
        """See `Sampler`."""
        return self.access.name

    @property
    def location(self) -> str:
        """See `Sampler`."""
        return f"namespace {self.access.namespace}"

    @property
    def names(self) -> Mapping[str, str]:
        """See `Sampler`."""
        return {}

    async def sample(self) -> Sample:
        """See `Sampler`."""
        try:
            names = await self.access.gateway_pods()
        except ApiError as error:
            raise unreadable(error) from error
        answers = await asyncio.gather(*(self._read(name) for name in names))
        readings = tuple(answer for answer in answers if isinstance(answer, Reading))
        loads, unanswered = await loads_of(readings, self._load)
        silent = tuple(answer for answer in answers if isinstance(answer, str))
        return Sample(self.clock(), readings, silent, loads, unanswered)

    async def _read(self, pod: str) -> Reading | str:
        """Return the reading, or the reason why there is none."""

        async def query(path: str) -> str:
            try:
                body = await self.access.kube.query_pod(self.access.namespace, pod, ADMIN_PORT, path)
            except PodAnswerError as error:
                raise NoAnswerError(str(error)) from error
            return body.decode(errors="replace")

        try:
            return await reading_of(pod, query)
        except NoAnswerError as error:
            return f"{pod}: {error}"

    async def _load(self, endpoint: Body) -> EngineMetrics | None:
        port = urlsplit(str(endpoint["url"])).port
        if not endpoint.get("pod") or port is None:
            return None
        try:
            page = await self.access.kube.query_pod(self.access.namespace, endpoint["pod"], port, "/metrics")
        except PodAnswerError as error:
            if error.reached:
                raise NoAnswerError(str(error)) from error
            return None
        return read_metrics(page, endpoint.get("rank"))
