"""The names of the API that users, manifests and programs have: `python -m tests.stable_api` writes the list again.

A name of the list stays: manifests, scripts and dashboards of users have it.
"""

import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pdx_api import names, verification
from pdx_api.connectors import CONNECTORS
from pdx_api.connectors.custom import FamilyName
from pdx_api.spec.schema import object_schema
from pdx_operator.controller import reconciler
from pdx_operator.plan.rollout import Phase
from pdx_operator.status import conditions
from scripts.crd import printer_columns
from tests.documents import ROOT
from tests.reasons import reasons, reasons_of_degraded

RECORD: Final = ROOT / "tests" / "unit" / "stable_api.txt"
_PATHS: Final = (verification.PAIRS_PATH, verification.RESULT_PATH)


def main() -> int:
    """Write the list."""
    RECORD.write_text("".join(f"{line}\n" for line in surface()), encoding="utf-8")
    return 0


def surface() -> list[str]:
    """One line for each name."""
    spec = object_schema()["properties"]
    return [
        *(line for part in ("spec", "status") for line in _fields(spec[part], part)),
        *(f"value spec.kvTransfer.connector {name}" for name in CONNECTORS),
        *(f"value spec.kvTransfer.custom.family {name}" for name in FamilyName),
        *(f"condition {name}" for name in names.ConditionType),
        *(f"reason {name}" for name in sorted(_reasons())),
        *(f"event {name}" for name in sorted(reasons(conditions, "Event") | reasons(reconciler, "Event"))),
        *(f"column {column['name']} {column['jsonPath']}" for column in printer_columns()),
        *(f"label {text}" for name, text in sorted(vars(names).items()) if name.startswith("LABEL_")),
        *(f"annotation {text}" for name, text in sorted(vars(names).items()) if name.startswith("ANNOTATION_")),
        *(f"path {path}" for path in _PATHS),
    ]


def _reasons() -> set[str]:
    return {*reasons(conditions, "_Outcome"), *reasons_of_degraded(), *Phase, *verification.Cause}


def _fields(schema: Mapping[str, Any], path: str) -> Iterator[str]:
    kind = schema.get("type", "integer or string" if "x-kubernetes-int-or-string" in schema else "any")
    yield f"field {path} {kind}"
    yield from (f"value {path} {value}" for value in schema.get("enum", ()))
    for name, inner in schema.get("properties", {}).items():
        yield from _fields(inner, f"{path}.{name}")
    if "items" in schema:
        yield from _fields(schema["items"], f"{path}[]")
    if "properties" not in schema and isinstance(schema.get("additionalProperties"), Mapping):
        yield from _fields(schema["additionalProperties"], f"{path}.*")


if __name__ == "__main__":
    sys.exit(main())
