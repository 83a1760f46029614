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
    """The columns of `kubectl get pdd`; those of priority 1 with -o wide."""

    def column(name: str, path: str, description: str, *, kind: str = "string", priority: int = 0) -> Schema:
        return {"name": name, "type": kind, "jsonPath": path, "description": description, "priority": priority}

    def engines(role: Role, *, priority: int) -> list[Schema]:
        path, title = f'.status.roles[?(@.role=="{role}")]', role.capitalize()
        return [
            column(title, f"{path}.readyReplicas", f"Ready {role} engines.", kind="integer", priority=priority),
            column(
                f"{title} Desired", f"{path}.desiredReplicas", f"Desired {role} engines.", kind="integer", priority=1
            ),
        ]

    def condition(name: ConditionType) -> str:
        return f'.status.conditions[?(@.type=="{name}")].status'

    return [
        column("Mode", ".spec.mode", "Disaggregated or Aggregated."),
        column("Connector", ".status.connector", "The KV connector in force."),
        column("Order", ".status.order", "The leg that is sent first."),
        *engines(Role.PREFILL, priority=0),
        *engines(Role.DECODE, priority=0),
        *engines(Role.AGGREGATED, priority=1),
        column("Available", condition(ConditionType.AVAILABLE), "Whether requests are answered."),
        column("Ready", condition(ConditionType.READY), "Whether everything is as specified."),
        column(
            "KV Verified", condition(ConditionType.KV_TRANSFER_VERIFIED), "Whether transfer probes show that KV moves."
        ),
        column("URL", ".status.url", "URL of the gateway.", priority=1),
        column("Revision", ".status.revision", "Hash of everything that must be equal on P and D.", priority=1),
        column("Age", ".metadata.creationTimestamp", "Time since creation.", kind="date"),
    ]
