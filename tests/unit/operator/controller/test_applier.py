"""The writes of a plan, each one independent of the others."""

from typing import Any

from pdx_api.kube.client import ConflictError, MissingError
from pdx_operator.controller.applier import Applier
from pdx_operator.kube.cache import Cache
from pdx_operator.kube.resources import ChildKey, Key
from pdx_operator.plan.operations import Apply, Problem
from pdx_operator.plan.reconcile_plan import Plan

Body = dict[str, Any]

MISSING = 'roles.rbac.authorization.k8s.io "pdx-gateway" not found'


class _Cluster:
    """Lacks the role of a RoleBinding, and every Deployment."""

    async def get(self, kind: object, namespace: str, name: str) -> Body:
        raise MissingError("not found", status=404)

    async def apply(self, kind: object, manifest: Body, *, uid: str | None, **_: str) -> Body:
        if manifest["kind"] == "RoleBinding":
            raise MissingError(MISSING, status=404)
        if uid:
            raise ConflictError("Precondition failed: UID", status=409)
        metadata = {"uid": "u", "resourceVersion": "7", "namespace": "ns", **manifest["metadata"]}
        return {**manifest, "metadata": metadata}


def _apply(kind: str, uid: str = "", **spec: object) -> Apply:
    labels = {"pdx.dev/deployment": "m"}
    metadata = {"name": f"m-{kind.lower()}", "namespace": "ns", "labels": labels}
    versions = {"RoleBinding": "rbac.authorization.k8s.io/v1", "Deployment": "apps/v1"}
    return Apply(
        {"apiVersion": versions.get(kind, "v1"), "kind": kind, "metadata": metadata, "spec": spec},
        uid,
        "spec" if uid else "",
    )


def _applier() -> Applier:
    return Applier(_Cluster(), Cache(lambda key, spec_changed: None), Key("ns", "m"), "uid")  # type: ignore[arg-type]


async def test_something_missing_that_a_child_needs_is_a_problem_of_this_child() -> None:
    result = await _applier().perform(Plan(None, applies=(_apply("RoleBinding"), _apply("Service"))))
    assert result.problems == (Problem(ChildKey("RoleBinding", "m-rolebinding"), MISSING),)
    assert result.created == (ChildKey("Service", "m-service"),)
    assert result.error is None


async def test_a_deployment_that_is_gone_before_its_replicas_are_handed_over_makes_the_plan_stale() -> None:
    result = await _applier().perform(Plan(None, applies=(_apply("Deployment", "u"),)))
    assert (result.problems, result.error, result.stale) == ((), None, True)
