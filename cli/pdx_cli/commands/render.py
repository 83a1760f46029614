"""`pdx render`: what the operator would apply for a PDDeployment, less what it notes for itself."""

import argparse
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

import yaml

from pdx_api.names import ANNOTATION_INPUTS, ANNOTATION_TEMPLATE
from pdx_api.render.engines import pairing_revision
from pdx_cli.errors import CommandError
from pdx_cli.inputs import document
from pdx_operator.render.children import children
from pdx_operator.render.objects import DEFAULT_NAMESPACE, Manifest
from pdx_operator.render.overlay import OverlayError

EPILOG = """\
examples:
  pdx render examples/qwen.yaml
  pdx render examples/qwen.yaml --set spec.mode=Aggregated
  pdx render examples/qwen.yaml --namespace llm | kubectl diff -f -

Secrets (tokens, API keys) are named in what is printed, never read: they must be there when it is applied."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `pdx render`."""
    document.add_arguments(parser)
    parser.add_argument(
        "-n",
        "--namespace",
        metavar="NAME",
        help=f"namespace of an object that names none (default: {DEFAULT_NAMESPACE})",
    )
    parser.add_argument(
        "--gateway-image",
        metavar="IMAGE",
        default=f"pdx-gateway:{version('pdx-serving')}",
        help="image of the gateway where spec.gateway.image names none (default: %(default)s)",
    )
    parser.epilog = EPILOG


def run(args: argparse.Namespace) -> int:
    """Print the manifests as one multi-document YAML."""
    deployment = document.load(args.file, args.assignments)
    if args.namespace and deployment.metadata.namespace is None:
        metadata = deployment.metadata.model_copy(update={"namespace": args.namespace})
        deployment = deployment.model_copy(update={"metadata": metadata})
    try:
        revision = pairing_revision(deployment.spec)
        manifests = children(deployment, revision, uid=None, gateway_image=args.gateway_image)
    except OverlayError as error:
        raise CommandError(f"{args.file}: {error}.") from error
    print(to_yaml(manifests), end="")
    return 0


def to_yaml(manifests: Iterable[Manifest]) -> str:
    """The manifests as one YAML text of several documents."""
    printed = (_without_notes(manifest) for manifest in manifests)
    return yaml.dump_all(printed, Dumper=_Dumper, sort_keys=False, width=120)


class _Dumper(yaml.SafeDumper):
    """Aliases are YAML, but nobody expects them in manifests."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _without_notes(manifest: Manifest) -> Manifest:
    annotations = manifest["metadata"].get("annotations", {})
    told = {key: value for key, value in annotations.items() if key not in (ANNOTATION_INPUTS, ANNOTATION_TEMPLATE)}
    metadata = {key: value for key, value in manifest["metadata"].items() if key != "annotations"}
    return {**manifest, "metadata": {**metadata, **({"annotations": told} if told else {})}}
