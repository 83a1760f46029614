"""The CustomResourceDefinition, with the schema of the types and the columns of `kubectl get`."""

from pdx_api.names import GROUP, KIND, PLURAL, SHORT_NAME, VERSION, ConditionType, Role
from pdx_api.spec.schema import Schema, object_schema


def custom_resource_definition() -> Schema:
    """The CRD, ready to be written as YAML."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": [SHORT_NAME],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": object_schema()},
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": printer_columns(),
                }
            ],
        },
    }


def printer_columns() -> list[Schema]:
    """The columns of `kubectl get pdd`; those of priority 1 with -o wide.

    The others fit into 100 columns of a terminal, with a name of 20 characters.
    """

    def column(name: str, path: str, description: str, *, kind: str = "string", priority: int = 0) -> Schema:
        return {"name": name, "type": kind, "jsonPath": path, "description": description, "priority": priority}

    def engines(role: Role, *, priority: int = 0) -> Schema:
        path = f'.status.roles[?(@.role=="{role}")].ready'
        return column(role.capitalize(), path, f"Ready and desired {role} engines.", priority=priority)

    def wide(name: str, path: str, description: str) -> Schema:
        return column(name, path, description, priority=1)

    def condition(name: ConditionType) -> str:
        return f'.status.conditions[?(@.type=="{name}")].status'

    return [
        engines(Role.PREFILL),
        engines(Role.DECODE),
        column("Ready", condition(ConditionType.READY), "Whether everything is as specified."),
        column("KV", condition(ConditionType.KV_TRANSFER_VERIFIED), "Whether transfer probes show that KV moves."),
        column("Reason", ".status.reason", "Reason of what is not as it should be."),
        column("Age", ".metadata.creationTimestamp", "Time since creation.", kind="date"),
        wide("Model", ".spec.model.name", "The model."),
        wide("Available", condition(ConditionType.AVAILABLE), "Whether requests are answered."),
        wide("Gateway", ".status.gateway.ready", "Ready and desired gateway pods."),
        engines(Role.AGGREGATED, priority=1),
        wide("Mode", ".spec.mode", "Disaggregated or Aggregated."),
        wide("Connector", ".status.connector", "The KV connector in force."),
        wide("Order", ".status.order", "The leg that is sent first."),
        wide("URL", ".status.url", "URL of the gateway."),
        wide("Revision", ".status.revision", "Hash of everything that must be equal on P and D."),
    ]
