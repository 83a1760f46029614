"""Which deployment a command looks at: one of a cluster, or one that runs on this machine."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from pdx_cli.errors import CommandError
from pdx_cli.local.run_record import default_root
from pdx_cli.sources.local import Local, living, local_of

WHERE: Final = """\
Without a flag that names a place, what `pdx up` runs on this machine is meant, if it has that name (or, without a
name, if it is the only one), and otherwise the cluster of your kubeconfig. `kubectl pdx` always means the cluster."""


@dataclass(frozen=True, slots=True)
class InCluster:
    """A PDDeployment of a cluster."""

    name: str | None
    """None: the only one of the namespace."""
    namespace: str | None
    """None: that of the context."""
    kubeconfig: str | None
    context: str | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of every command that looks at one deployment."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="name of the PDDeployment (default: the only one)")
    cluster = parser.add_argument_group("in a cluster")
    cluster.add_argument("-n", "--namespace", metavar="NAME", help="its namespace (default: that of the context)")
    cluster.add_argument("--kubeconfig", metavar="FILE", help="how to reach the cluster (default: KUBECONFIG, ~/.kube)")
    cluster.add_argument("--context", metavar="NAME", help="which context of it (default: the current one)")
    here = parser.add_argument_group("on this machine")
    here.add_argument("--local", action="store_true", help="what `pdx up` runs, and nothing else")
    here.add_argument("--admin", metavar="URL", help="a gateway by its admin port, for example http://127.0.0.1:9090")
    here.add_argument(
        "--run-dir", type=Path, metavar="DIR", help=f"where `pdx up` keeps its runs (default: {default_root()})"
    )


def target_of(args: argparse.Namespace) -> Local | InCluster:
    """What is meant; raises CommandError with code 2."""
    named = {flag: getattr(args, flag) for flag in ("namespace", "kubeconfig", "context") if getattr(args, flag)}
    here = [
        flag for flag, said in (("--local", args.local), ("--admin", args.admin), ("--run-dir", args.run_dir)) if said
    ]
    if named and here:
        raise CommandError(f"--{next(iter(named))} means a cluster and {here[0]} this machine; leave one out.", code=2)
    if args.admin:
        return Local(args.name or _host(args.admin), args.admin.rstrip("/"))
    if not named and (here or not args.plugin):
        found = local_of(living(args.run_dir or default_root()), args.name)
        if found is not None:
            return found
        if here:
            what = f"No `pdx up` of the name {args.name} runs" if args.name else "No `pdx up` runs"
            raise CommandError(f"{what} on this machine; `pdx status` shows what does.", code=2)
    return InCluster(args.name, args.namespace, args.kubeconfig, args.context)


def _host(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.netloc:
        raise CommandError(f"--admin {url} is no URL; write for example http://127.0.0.1:9090.", code=2)
    return parts.netloc
