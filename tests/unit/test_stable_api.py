"""The names of the API are stable: fields, conditions, reasons, Events, columns, labels, annotations, paths."""

from tests.stable_api import RECORD, surface

GONE = """these names are gone, but manifests, scripts and dashboards have them. Restore them, or \
say in CHANGELOG.md what users must change:
"""
NEW = "these names are new, and stay from now on. If each is a word of docs/glossary.md: python -m tests.stable_api\n"


def test_every_name_stays() -> None:
    recorded = RECORD.read_text(encoding="utf-8").splitlines()
    present = set(surface())
    gone = [line for line in recorded if line not in present]
    assert not gone, GONE + "\n".join(gone)


def test_every_new_name_is_recorded() -> None:
    recorded = set(RECORD.read_text(encoding="utf-8").splitlines())
    new = [line for line in surface() if line not in recorded]
    assert not new, NEW + "\n".join(new)


def test_the_list_contains_what_users_name() -> None:
    lines = set(surface())
    assert {
        "field spec.kvTransfer.verification.periodSeconds integer",
        "field spec.observability.scrapeFrom[].podSelector.matchLabels.* string",
        "value spec.kvTransfer.order PrefillFirst",
        "field status.roles[].readyReplicas integer",
        "condition Available",
        "reason AsSpecified",
        "reason PortsBlocked",
        "event RolloutStarted",
        "label pdx.dev/role",
    } <= lines
