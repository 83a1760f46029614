"""Whether the cluster's CRD has everything that this version writes and reads.

The API server publishes the schema to every authenticated client, also to an operator that may not read CRDs.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pdx_api.kube.client import Cluster
from pdx_api.names import API_VERSION, KIND, ConditionType
from pdx_api.spec.schema import object_schema

_PATH: Final = f"/openapi/v3/apis/{API_VERSION}"
_TYPES: Final = ".status.conditions[].type"


async def missing_fields(cluster: Cluster) -> tuple[str, ...]:
    """The fields that the CRD lacks; empty when it has all, or when its schema is not published. Raises ApiError."""
    served = _schema(await cluster.document(_PATH))
    return tuple(gaps(served, object_schema())) if served is not None else ()


def gaps(served: Mapping[str, Any], needed: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Paths of the properties that a served schema lacks, and of conditions that it does not allow."""
    properties = served.get("properties") or {}
    for name, schema in (needed.get("properties") or {}).items():
        where = f"{path}.{name}"
        if where in (".apiVersion", ".kind", ".metadata"):
            continue
        if name not in properties:
            yield where
        else:
            yield from gaps(properties[name], schema, where)
    if "items" in needed:
        yield from gaps(served.get("items") or {}, needed["items"], f"{path}[]")
    if path == _TYPES and "enum" in served:
        yield from (f"{path} {kind}" for kind in ConditionType if kind not in served["enum"])


def _schema(document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    schemas: Mapping[str, Mapping[str, Any]] = (document.get("components") or {}).get("schemas") or {}
    for schema in schemas.values():
        kinds = schema.get("x-kubernetes-group-version-kind") or ()
        if any(each.get("kind") == KIND for each in kinds):
            return schema
    return None
