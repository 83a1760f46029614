"""From the kubelet's message about an image to its remedy. Pure."""

import re
from typing import Final

from pdx_operator.status.causes import Cause, found, sentence

NO_IMAGE: Final = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "RegistryUnavailable", "ImageInspectError"}
    | {"SignatureValidationFailed"}
)
"""Reasons of a waiting container whose image is missing."""
_REMEDIES: Final = (
    (r"no space left|disk quota", "free the node's disk, or give it a larger one: kubectl describe node"),
    (r"no match for platform|no matching manifest|exec format error", "use an image of the node's architecture"),
    (
        r"HTTP response to HTTPS client",
        "the registry speaks HTTP: give it TLS, or allow it as an http:// registry in the nodes' container runtime",
    ),
    (
        r"x509|certificate",
        "let the nodes trust the registry: add the authority of its certificate to the container runtime's",
    ),
    (r"no such host|server misbehaving|lookup \S+", "correct the registry's name, or the name servers of the nodes"),
    (r"\b429\b|toomanyrequests|rate limit", "the registry limits pulls: wait, use a mirror, or set imagePullSecrets"),
    (r"does not exist or", "correct the image's name, or set imagePullSecrets in podTemplate if it is private"),
    (
        r"unauthorized|authentication|authorization failed|denied|forbidden|\b40[13]\b|no basic auth",
        "correct the image's name, or, if it is private, set imagePullSecrets in podTemplate",
    ),
    (
        r"i/o timeout|deadline exceeded|connection (?:refused|reset)|no route to host|unreachable|unexpected EOF",
        "let the nodes reach the registry: its address, firewalls, a proxy",
    ),
    (r"\b50[0234]\b|internal server error", "the registry fails: try again later, or use a mirror"),
    (r"not present with pull policy of Never", "load the image on the nodes, or change imagePullPolicy"),
    (r"signature|policy", "sign the image, or change the node's policy of signatures"),
)
_OTHERWISE: Final = "correct the name, or set imagePullSecrets in podTemplate if the registry requires credentials"


def no_image(image: str, waiting: str, text: str) -> Cause:
    """The cause of a container without its image. `waiting` is one of `NO_IMAGE`, and `text` the kubelet's message."""
    cause = re.sub(r'^Back-off pulling image "[^"]*"(: )?', "", text)
    cause = re.sub(r"^(ErrImagePull|ImagePullBackOff|SignatureValidationFailed|RegistryUnavailable): ", "", cause)
    # The runtime repeats the image before the registry's message.
    cause = cause.split(f"{image}: ")[-1].removeprefix("failed to resolve reference ").strip()
    why = f": {sentence(cause)}" if cause else ""
    sought = "signature" if waiting == "SignatureValidationFailed" else cause
    if waiting == "ImageInspectError":
        hint = "the container runtime of the node fails: restart it, or remove the image from the node"
    else:
        hint = next((hint for pattern, hint in _REMEDIES if re.search(pattern, sought, re.IGNORECASE)), _OTHERWISE)
    return found("image", "ImagePullFailed", f"the image {image} cannot be pulled{why}; {hint}")
