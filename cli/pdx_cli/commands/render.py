"""`pdx render`: the objects that the operator applies for a PDDeployment, without its own annotations."""

import argparse
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

import yaml

from pdx_api.names import ANNOTATION_INPUTS, ANNOTATION_TEMPLATE
from pdx_api.render.engines import pairing_revision
from pdx_cli.errors import CommandError
from pdx_cli.inputs import document
from pdx_operator.render.children import Installation, children
from pdx_operator.render.objects import DEFAULT_NAMESPACE, Manifest
from pdx_operator.render.overlay import OverlayError

EPILOG = """\
examples:
  pdx render examples/qwen.yaml
  pdx render examples/qwen.yaml --set spec.mode=Aggregated
  pdx render examples/qwen.yaml --namespace llm | kubectl diff -f -

The output names Secrets (tokens, API keys) but does not contain them: create them before you apply it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `pdx render`."""
    document.add_arguments(parser)
    parser.add_argument(
        "-n",
        "--namespace",
        metavar="NAME",
        help=f"namespace, if FILE has none (default: {DEFAULT_NAMESPACE})",
    )
    parser.add_argument(
        "--gateway-image",
        metavar="IMAGE",
        default=f"pdx-gateway:{version('pdx-serving')}",
        help="image of the gateway, if spec.gateway.image is not set (default: %(default)s)",
    )
    parser.epilog = EPILOG


def run(args: argparse.Namespace) -> int:
    """Print the manifests as YAML documents."""
    deployment = document.load(args.file, args.assignments)
    if args.namespace and deployment.metadata.namespace is None:
        metadata = deployment.metadata.model_copy(update={"namespace": args.namespace})
        deployment = deployment.model_copy(update={"metadata": metadata})
    try:
        revision = pairing_revision(deployment.spec)
        manifests = children(deployment, revision, Installation(args.gateway_image), uid=None)
    except OverlayError as error:
        raise CommandError(f"{args.file}: {error}.") from error
    print(to_yaml(manifests), end="")
    return 0


def to_yaml(manifests: Iterable[Manifest]) -> str:
    """Return the manifests as one text of several YAML documents."""
    printed = (_without_records(manifest) for manifest in manifests)
    return yaml.dump_all(printed, Dumper=_Dumper, sort_keys=False, width=120)


class _Dumper(yaml.SafeDumper):
    """Writes no aliases: they are valid YAML, but unusual in manifests."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _without_records(manifest: Manifest) -> Manifest:
    """Remove the annotations in which the operator records what it applied."""
    annotations = manifest["metadata"].get("annotations", {})
    kept = {key: value for key, value in annotations.items() if key not in (ANNOTATION_INPUTS, ANNOTATION_TEMPLATE)}
    metadata = {key: value for key, value in manifest["metadata"].items() if key != "annotations"}
    return {**manifest, "metadata": {**metadata, **({"annotations": kept} if kept else {})}}
