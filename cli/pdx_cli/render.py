"""`pdx render`: what the operator would apply for a PDDeployment."""

import argparse

import yaml

from pdx_cli import document
from pdx_operator.manifests import engine_manifests

EPILOG = """\
examples:
  pdx render examples/qwen.yaml
  pdx render examples/qwen.yaml --set spec.mode=Aggregated
  pdx render examples/qwen.yaml | kubectl diff -f -"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `pdx render`."""
    document.add_arguments(parser)
    parser.epilog = EPILOG


def run(args: argparse.Namespace) -> int:
    """Print the manifests as one multi-document YAML."""
    deployment = document.load(args.file, args.assignments)
    print(yaml.safe_dump_all(engine_manifests(deployment), sort_keys=False, width=120), end="")
    return 0
