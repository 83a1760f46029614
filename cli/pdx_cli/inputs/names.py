"""Names that Kubernetes and container registries accept. Pure."""

import argparse
import re
from collections.abc import Callable
from typing import Final

NAMESPACE_RULE: Final = "at most 63 lower-case letters, digits and -, with a letter or digit at both ends"
_IMAGE_RULE: Final = "an image as NAME:TAG or NAME@DIGEST, for example"
IMAGE_RULE: Final = f"{_IMAGE_RULE} registry.example/pdx/gateway:0.1.0"
"""Of the gateway."""
ENGINE_IMAGE_RULE: Final = f"{_IMAGE_RULE} vllm/vllm-openai:v0.32.0"

# distribution/reference, reference.go: domain and path components, tag, digest.
_DOMAIN: Final = (
    r"(?:[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?)(?:\.[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?)*(?::[0-9]+)?"
)
_COMPONENT: Final = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_IMAGE: Final = re.compile(
    rf"(?:(?:{_DOMAIN}|\[[0-9a-fA-F:]+\](?::[0-9]+)?)/)?{_COMPONENT}(?:/{_COMPONENT})*"
    r"(?::[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127})?(?:@[a-zA-Z][a-zA-Z0-9]*(?:[-_+.][a-zA-Z][a-zA-Z0-9]*)*:[0-9a-fA-F]{32,})?"
)


def is_namespace(text: str) -> bool:
    """Whether Kubernetes accepts the name of a namespace: a DNS label (RFC 1123)."""
    return re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", text) is not None


def is_image(text: str) -> bool:
    """Whether a container runtime accepts the name of an image."""
    return len(text) <= 512 and _IMAGE.fullmatch(text) is not None


def _checked(holds: Callable[[str], bool], rule: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if not holds(text):
            raise argparse.ArgumentTypeError(f"{text!r} is not valid; write {rule}")
        return text

    return parse


namespace: Final = _checked(is_namespace, NAMESPACE_RULE)
"""Type of a flag that names a namespace."""
image: Final = _checked(is_image, IMAGE_RULE)
"""Type of a flag that names an image."""
