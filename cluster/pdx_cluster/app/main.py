"""The command line: `python -m pdx_cluster up|down|status|env|load|build`."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pdx_cluster.app import cluster, kind, kwok
from pdx_cluster.errors import ClusterError
from pdx_cluster.programs import kubernetes


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    args = _parser().parse_args(argv)
    try:
        return int(args.run(args))
    except ClusterError as error:
        print(f"pdx-cluster: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def default_state() -> Path:
    """Return the folder of the developer's only cluster."""
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "pdx-cluster"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pdx_cluster", description="A one-node Kubernetes on this machine.")
    parser.add_argument("--state", type=Path, default=default_state(), help="folder for its files (%(default)s)")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    up = commands.add_parser("up", help="start it, if it does not run")
    up.add_argument("--control-plane", action="store_true", help="without a node: pods stay Pending; needs no root")
    up.add_argument("--simulated-nodes", type=int, default=0, metavar="N", help="add nodes that run nothing (kwok)")
    up.set_defaults(run=_up)
    commands.add_parser("down", help="end it and remove all traces, also after a crash").set_defaults(run=_down)
    commands.add_parser("status", help="list what runs").set_defaults(run=_status)
    commands.add_parser("env", help="print `export KUBECONFIG=…`").set_defaults(run=_env)
    load = commands.add_parser("load", help="import images; the node cannot pull")
    load.add_argument("archives", nargs="+", type=Path, metavar="TAR", help="docker-archive or OCI archive")
    load.set_defaults(run=_load)
    commands.add_parser("build", help="find or build every program").set_defaults(run=_build)
    return parser


def _up(args: argparse.Namespace) -> int:
    if not args.control_plane and not args.simulated_nodes and kind.is_available():
        print(_export(kind.up(args.state, _report)))
        return 0
    kind.down(args.state)
    running = cluster.load(args.state)
    if running is None:
        with_node = not args.control_plane and not args.simulated_nodes
        running = cluster.up(args.state, _report, with_node=with_node)
    if args.simulated_nodes:
        kwok.start(running, args.simulated_nodes, _report)
    _report(f"Kubernetes {kubernetes.KUBERNETES_VERSION} at {running.url}, {_extent(running)}")
    print(_export(running.kubeconfig))
    return 0


def _down(args: argparse.Namespace) -> int:
    kind.down(args.state)
    cluster.down(args.state)
    return 0


def _status(args: argparse.Namespace) -> int:
    if kind_config := kind.kubeconfig(args.state):
        print(f"A cluster of kind: {_export(kind_config)}")
        return 0
    running = cluster.load(args.state)
    if running is None:
        print("No cluster runs.")
        return 1
    state = "ready" if running.plane.is_ready() else "not ready"
    print(f"{running.url}, {_extent(running)}: {state}")
    for process in running.plane.supervisor.recorded():
        runs = running.plane.supervisor.find(process.name) is not None
        print(f"  {process.name:<24} {f'pid {process.pid}' if runs else 'has ended'}")
    return 0 if state == "ready" else 1


def _env(args: argparse.Namespace) -> int:
    running = cluster.load(args.state)
    path = kind.kubeconfig(args.state) or (running.kubeconfig if running else None)
    if path is None:
        raise ClusterError("No cluster runs: start one with `make cluster`.")
    print(_export(path))
    return 0


def _load(args: argparse.Namespace) -> int:
    running = cluster.load(args.state)
    for archive in args.archives:
        if kind.kubeconfig(args.state):
            kind.load(archive)
        elif running is None or running.node is None:
            raise ClusterError("No node runs: start one with `make cluster`.")
        else:
            print("\n".join(running.node.import_image(archive)))
    return 0


def _build(args: argparse.Namespace) -> int:
    for name, path in kubernetes.cluster_programs(kubernetes.ALL, _report).items():
        print(f"{name:<24} {path}")
    return 0


def _extent(running: cluster.Cluster) -> str:
    return "with a node that runs containers" if running.node else "control plane only"


def _export(kubeconfig: Path) -> str:
    return f"export KUBECONFIG={kubeconfig}"


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
