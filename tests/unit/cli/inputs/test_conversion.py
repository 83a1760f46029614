"""`pdx convert` changes names in a text and leaves the rest of it."""

import json
from pathlib import Path

import pytest
import yaml

from pdx_cli.inputs.conversion import converted_text
from pdx_cli.inputs.yaml_source import documents_of
from tests.former_objects import FORMER, PRESENT

FOLDER = Path(__file__).parent / "data"


def convert(text: str) -> tuple[str, int, tuple[int, ...]]:
    """The converted text, the number of changed objects, and the rewritten documents."""
    found = converted_text(text, documents_of(text, "f.yaml"))
    return found.text, found.objects, found.rewritten


HEAD = "apiVersion: pdx.dev/v1alpha1\nkind: PDDeployment\nmetadata: {name: m}\n"

TEXTS = {
    "a comment moves with its field": (
        "spec:\n  routing:\n    # probes\n    canarySeconds: 20  # often\n    slowStartSeconds: 1\n  model: {}\n",
        "spec:\n  routing:\n    # probes\n    slowStartSeconds: 1\n  model: {}\n  kvTransfer:\n    verification:\n"
        "      periodSeconds: 20  # often\n",
    ),
    "into an existing block": (
        "spec:\n  kvTransfer:\n    connector: NIXL # pull\n\n  routing: {canarySeconds: 0, slowStartSeconds: 1}\n",
        "spec:\n  kvTransfer:\n    connector: NIXL # pull\n    verification:\n      periodSeconds: 0\n\n"
        "  routing: {slowStartSeconds: 1}\n",
    ),
    "into an existing flow mapping": (
        "spec: {kvTransfer: {connector: NIXL}, routing: {canarySeconds: 9}}\n",
        "spec: {kvTransfer: {connector: NIXL, verification: {periodSeconds: 9}}}\n",
    ),
    "a renamed mapping and its field": (
        "spec:\n  routing:\n    ejection:  # faults\n      consecutiveFailures: 3\n",
        "spec:\n  routing:\n    outlierDetection:  # faults\n      consecutiveErrors: 3\n",
    ),
    "selectors": (
        "spec:\n  observability:\n    scrapeFrom:\n      - namespaceLabels:\n          a: b  # team\n          c: d\n"
        "        podLabels: {e: f}\n      # another\n      - podLabels:\n          g: h\n",
        "spec:\n  observability:\n    scrapeFrom:\n      - namespaceSelector:\n          matchLabels:\n"
        "            a: b  # team\n            c: d\n        podSelector: {matchLabels: {e: f}}\n      # another\n"
        "      - podSelector:\n          matchLabels:\n            g: h\n",
    ),
    "a required mapping stays when it is empty": (
        "spec:\n  prefill:\n    parallelism:\n      nodes: 1\n  decode: {parallelism: {nodes: 1, tensor: 2}}\n",
        "spec:\n  prefill: {}\n  decode: {parallelism: {tensor: 2}}\n",
    ),
    "an autoscaled gateway": (
        "spec:\n  gateway:\n    autoscaled: true\n    replicas: 2\n    workers: 2\n",
        "spec:\n  gateway:\n    workers: 2\n",
    ),
    "an old field beside the new one": (
        "spec:\n  engine:\n    shutdownSeconds: 60\n    drainSeconds: 5\n",
        "spec:\n  engine:\n    drainSeconds: 5\n",
    ),
    "a value": (
        "spec:\n  kvTransfer: {connector: Custom, custom: {className: A, family: 'Serial'}} # mine\n",
        "spec:\n  kvTransfer: {connector: Custom, custom: {className: A, family: Pull}} # mine\n",
    ),
    "one value with two names": (
        "spec:\n  prefill: &p   # shared\n    parallelism: {nodes: 1, tensor: 2}\n  decode: *p\n",
        "spec:\n  prefill: &p   # shared\n    parallelism: {tensor: 2}\n  decode: *p\n",
    ),
    "no line feed at the end": (
        "spec:\n  model: {name: m}\n  routing:\n    canarySeconds: 5",
        "spec:\n  model: {name: m}\n  kvTransfer:\n    verification:\n      periodSeconds: 5\n",
    ),
    "nothing to convert": ("spec: {model:   {name: m}}  # as it was\n", "spec: {model:   {name: m}}  # as it was\n"),
}


@pytest.mark.parametrize(("before", "after"), TEXTS.values(), ids=TEXTS)
def test_the_layout_stays(before: str, after: str) -> None:
    text, objects, rewritten = convert(HEAD + before)
    assert text == HEAD + after
    assert (objects, rewritten) == (int(before != after), ())


@pytest.mark.parametrize("indent", [None, 2])
def test_json(indent: int | None) -> None:
    text, objects, rewritten = convert(json.dumps(FORMER, indent=indent))
    assert json.loads(text) == PRESENT
    assert (objects, rewritten) == (1, ())


def test_yaml_of_every_field() -> None:
    for flow in (True, False, None):
        text, *_, rewritten = convert(yaml.safe_dump(FORMER, default_flow_style=flow))
        assert yaml.safe_load(text) == PRESENT
        assert rewritten == ()


def test_other_documents_stay() -> None:
    other = "# of the cluster\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {canarySeconds: '1'}\n"
    foreign = "apiVersion: example.org/v1\nkind: PDDeployment\nspec: {routing: {canarySeconds: 1}}\n"
    old = f"{HEAD}spec: {{engine: {{shutdownSeconds: 7}}}}\n"
    text, objects, _ = convert(f"{other}---\n{old}---\n{foreign}---\n{old}")
    new = old.replace("shutdown", "drain")
    assert (text, objects) == (f"{other}---\n{new}---\n{foreign}---\n{new}", 2)


def test_a_list_of_objects() -> None:
    listed = {"apiVersion": "v1", "kind": "List", "items": [FORMER, {"kind": "ConfigMap"}, FORMER]}
    expected = {**listed, "items": [PRESENT, {"kind": "ConfigMap"}, PRESENT]}
    for text in (json.dumps(listed), yaml.safe_dump(json.loads(json.dumps(listed)))):
        found, objects, _ = convert(text)
        assert (yaml.safe_load(found), objects) == (expected, 2)
    many = {**listed, "items": [FORMER] * 40}
    found, objects, rewritten = convert(json.dumps(many))
    assert (json.loads(found)["items"], objects, rewritten) == ([PRESENT] * 40, 40, ())


def test_what_the_text_cannot_follow_is_written_anew() -> None:
    text = f"{HEAD}spec:\n  routing: &r {{canarySeconds: 1}} # shared\n  gateway: {{x: *r}}\n  decode: {{<<: *r}}\n"
    found, objects, rewritten = convert(f"---\n# a comment\n{text}")
    assert yaml.safe_load(found)["spec"]["kvTransfer"] == {"verification": {"periodSeconds": 1}}
    assert (objects, rewritten) == (1, (3,))
