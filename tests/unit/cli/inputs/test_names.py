"""Which names of images and namespaces are accepted, and the example of an image in messages."""

from pathlib import Path

import pytest

from pdx_cli.inputs.document import load
from pdx_cli.inputs.names import ENGINE_IMAGE_RULE, is_image, is_namespace

EXAMPLE = Path(__file__).parents[4] / "examples" / "tiny-cpu.yaml"


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("pdx/gateway:0.1.0", True),
        ("registry.example:5000/a/b__c@sha256:" + 64 * "a", True),
        ("[2001:db8::1]:5000/a:b", True),
        ("", False),
        ("A/B", False),
        ("a b", False),
        ("a:", False),
        ("a/", False),
        ("http://registry.example/a", False),
    ],
)
def test_images(text: str, valid: bool) -> None:
    assert is_image(text) is valid


@pytest.mark.parametrize(
    ("text", "valid"),
    [("llm", True), ("a" * 63, True), ("a" * 64, False), ("Bad NS", False), ("-a", False), ("", False)],
)
def test_namespaces(text: str, valid: bool) -> None:
    assert is_namespace(text) is valid


def test_the_example_image_of_an_engine_is_the_default() -> None:
    assert load(EXAMPLE, ["spec.engine.image=null"]).spec.engine.image in ENGINE_IMAGE_RULE
