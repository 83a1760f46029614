"""`pdx convert`: PDDeployments of PDX 0.1.0 with the present names of fields."""

import argparse
import asyncio
import codecs
import difflib
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

from pdx_cli import usage
from pdx_cli.errors import CommandError, ExitCode, InputError
from pdx_cli.inputs import names, target, yaml_source
from pdx_cli.inputs.conversion import Converted, converted_text
from pdx_cli.inputs.yaml_source import STDIN, source_name

MANAGER: Final = "pdx-convert"

EPILOG: Final = """\
examples:
  pdx convert qwen.yaml                    print what changes
  pdx convert --write deploy/*.yaml        change the files
  kubectl get pdd qwen -o yaml | pdx convert - | kubectl diff -f -
  pdx convert --cluster                    print what changes in the cluster
  pdx convert --cluster -o yaml > pdd.yaml
                                           save the converted objects, to apply them after the upgrade
  pdx convert --cluster --write            change the objects, after the upgrade

It reads every document of a file and changes only PDDeployments. Comments and layout stay, except around fields that
move. The operator reads the former names for one release, so neither the upgrade nor the conversion replaces engines.
docs/operator.md lists the names. Without --check, a file with nothing to convert is no error."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `pdx convert`."""
    parser.add_argument(
        "files", metavar="FILE", nargs="*", type=usage.file, help="YAML or JSON files; -: stdin to stdout"
    )
    parser.add_argument(
        "--cluster", action="store_true", help="convert the objects of a cluster (all namespaces, or -n)"
    )
    parser.add_argument("-w", "--write", action="store_true", help="change the files, or the objects in the cluster")
    parser.add_argument("--check", action="store_true", help="exit with 1 if anything needs conversion")
    parser.add_argument(
        "-o",
        "--format",
        choices=("diff", "yaml"),
        help="output: the differences, or the whole converted text (default: diff; for stdin yaml, with the "
        "differences on stderr)",
    )
    cluster = parser.add_argument_group("in a cluster")
    cluster.add_argument("-n", "--namespace", metavar="NAME", type=names.namespace, help="only this namespace")
    target.add_kubeconfig(cluster)
    parser.epilog = EPILOG.replace("  pdx ", f"  {parser.prog.removesuffix(' convert')} ")


def run(args: argparse.Namespace) -> int:
    """Convert, print, and write if requested."""
    _check(args)
    changed = asyncio.run(_convert_cluster(args)) if args.cluster else _convert_files(args)
    if not changed:
        print("Nothing needs converting.", file=sys.stderr)
    return ExitCode.FAILED if changed and args.check else ExitCode.DONE


def _check(args: argparse.Namespace) -> None:
    flags = [f"--{flag}" for flag in ("namespace", "kubeconfig", "context") if getattr(args, flag)]
    if args.cluster and args.files:
        raise InputError("--cluster converts the objects of a cluster; leave out FILE, or --cluster.")
    if not args.cluster and flags:
        raise InputError(f"{flags[0]} selects a cluster; add --cluster, or leave it out.")
    if not args.cluster and not args.files:
        raise InputError("Name a file, - for stdin, or --cluster.")
    if args.write and args.check:
        raise InputError("--check writes nothing; leave out --write or --check.")
    if args.write and STDIN in args.files:
        raise InputError("stdin cannot be written; leave out --write, or name a file.")


def _convert_files(args: argparse.Namespace) -> int:
    """Convert all files before the first one is written; returns the number of objects that change."""
    found = [(file, *_converted(file)) for file in args.files]
    for file, text, converted in found:
        name = source_name(file)
        for line in converted.rewritten:
            print(f"pdx: {name}:{line}: the comments of this document are lost; its layout is new.", file=sys.stderr)
        if args.write and converted.objects:
            _write(file, converted.text)
        printed = args.format or ("yaml" if file == STDIN else "diff")
        if printed == "yaml":
            sys.stdout.write(converted.text)
        print(_diff(name, text, converted.text), end="", file=sys.stderr if printed == "yaml" else sys.stdout)
    return sum(converted.objects for _, _, converted in found)


def _converted(file: Path) -> tuple[str, Converted]:
    """Return the text of a file and its conversion, which has the same line ends."""
    text = yaml_source.text_of(file)
    windows = "\r\n" in text and text.count("\n") == text.count("\r\n")
    plain = text.replace("\r\n", "\n") if windows else text
    converted = converted_text(plain, yaml_source.documents_of(plain, source_name(file)))
    return text, replace(converted, text=converted.text.replace("\n", "\r\n")) if windows else converted


def _write(file: Path, text: str) -> None:
    """Replace the file's text; a byte order mark stays."""
    try:
        mark = file.read_bytes().startswith(codecs.BOM_UTF8)
        file.write_bytes(text.encode("utf-8-sig" if mark else "utf-8"))
    except OSError as error:
        raise CommandError(f"{file} cannot be written: {error.strerror}.") from error


async def _convert_cluster(args: argparse.Namespace) -> int:
    # Their imports take longer than the conversion of a file.
    from pdx_cli.sources.kube import Kube
    from pdx_cli.sources.stored import check_crd, stored_objects, write

    kube, _ = await Kube.of(args.kubeconfig, args.context)
    try:
        found = await stored_objects(kube, args.namespace)
        if args.write and found:
            await check_crd(kube)
        for number, stored in enumerate(found):
            if args.format == "yaml":
                print(stored.after if number == 0 else f"---\n{stored.after}", end="")
            else:
                print(_diff(stored.name, stored.before, stored.after), end="")
            if args.write:
                await write(kube, stored, MANAGER)
        return len(found)
    finally:
        await kube.close()


def _diff(name: str, before: str, after: str) -> str:
    lines = difflib.unified_diff(before.splitlines(True), after.splitlines(True), name, f"{name} (converted)")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
