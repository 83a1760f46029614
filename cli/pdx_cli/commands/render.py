"""`pdx render`: the objects that the operator applies for a PDDeployment, without the operator's own annotations."""

import argparse
from typing import Final

from pdx_api.defaults import GATEWAY_REPOSITORY
from pdx_api.names import DEFAULT_NAMESPACE
from pdx_api.version import pdx_version
from pdx_cli import streams
from pdx_cli.inputs import document_arguments, formats, names

EPILOG: Final = """\
examples:
  pdx render examples/qwen.yaml
  pdx render examples/qwen.yaml --set spec.mode=Aggregated
  pdx render examples/qwen.yaml --namespace llm | kubectl diff -f -
  kubectl get pdd qwen -o yaml | pdx render -
  pdx render examples/qwen.yaml -o name
  pdx render -f deploy/              every PDDeployment in the files of a directory

The gateway's image is that of the Helm chart; if you have built another, name it with --gateway-image.
The output names Secrets (tokens, API keys) but does not contain them: create them before you apply it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `pdx render`."""
    document_arguments.add(parser, several=True)
    parser.add_argument(
        "-n",
        "--namespace",
        metavar="NAME",
        type=names.namespace,
        help=f"namespace, if FILE has none (default: {DEFAULT_NAMESPACE})",
    )
    parser.add_argument(
        "--gateway-image",
        metavar="IMAGE",
        type=names.image,
        default=f"{GATEWAY_REPOSITORY}:{pdx_version()}",
        help="image of the gateway, if spec.gateway.image is not set (default: the chart's, %(default)s)",
    )
    formats.add_arguments(parser, "yaml", "json", "name")
    parser.epilog = EPILOG.replace("  pdx ", f"  {parser.prog.removesuffix(' render')} ")


def run(args: argparse.Namespace) -> int:
    """Print the manifests of every PDDeployment in the files."""
    from pdx_cli.inputs import document  # not for --help

    found = [(f, each) for f in document.sources_of(args) for each in document.load_all(f, args.assignments, args.name)]
    from pdx_cli.display.manifests import in_namespace, manifests_of, printed, without_devices  # not for errors

    manifests = [
        each
        for file, deployment in found
        for each in manifests_of(in_namespace(deployment, args.namespace), file, args.gateway_image)
    ]
    print(printed(manifests, args.format, streams.encoding()), end="", flush=True)
    streams.report(*without_devices(manifests))
    return 0
