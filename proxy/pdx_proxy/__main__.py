"""`python -m pdx_proxy`: the gateway in a cluster, in front of the engine pods of one PDDeployment."""

import argparse
import random
import re
import sys
from collections.abc import Sequence
from typing import Final

from pdx_api.names import ADMIN_PORT, GATEWAY_PORT
from pdx_proxy.config.flags import FlagsError, Parser, add_flags, seconds, with_flags
from pdx_proxy.config.settings import MAX_WORKERS, Address, Settings, parse_address
from pdx_proxy.discovery.pod_watcher import PodDiscovery
from pdx_proxy.process.main import run

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

EPILOG: Final = """\
The engines are found as pods with the label pdx.dev/deployment=NAME, by a list and a watch with the pod's service
account, or with KUBECONFIG where that is set. Pods list and watch in the namespace are all it needs.
The admin port answers /healthz, /readyz, /metrics and /pdx/state.
On SIGTERM /readyz says 503, clients are served on for --drain-seconds, then open requests end within
--shutdown-seconds. A second signal skips the drain."""


def create_parser() -> Parser:
    """The program's flags."""
    parser = Parser(
        prog="python -m pdx_proxy",
        description="The PDX gateway for the engine pods of one PDDeployment.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--deployment", required=True, type=_name, metavar="NAME", help="name of the PDDeployment")
    add("--namespace", required=True, type=_name, metavar="NS", help="its namespace")
    add(
        "--listen",
        type=_address,
        default=f"0.0.0.0:{GATEWAY_PORT}",
        metavar="HOST:PORT",
        help="where clients are served (%(default)s)",
    )
    add(
        "--admin",
        type=_address,
        default=f"0.0.0.0:{ADMIN_PORT}",
        metavar="HOST:PORT",
        help="where probes and metrics are (%(default)s)",
    )
    add("--workers", type=_workers, default=1, metavar="N", help="processes that share the port (%(default)s)")
    add(
        "--drain-seconds",
        type=seconds,
        default=5.0,
        metavar="S",
        help="how long after SIGTERM clients are served as before (%(default)g)",
    )
    add(
        "--shutdown-seconds",
        type=seconds,
        default=30.0,
        metavar="S",
        help="how long open requests may take after that (%(default)g)",
    )
    add_flags(parser)
    return parser


def settings_of(args: argparse.Namespace) -> Settings:
    """The gateway's settings from the flags; raises FlagsError for flags that contradict each other."""
    settings = Settings(
        listen=args.listen,
        admin=args.admin,
        workers=args.workers,
        drain_seconds=args.drain_seconds,
        shutdown_seconds=args.shutdown_seconds,
    )
    return with_flags(settings, args)


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until a signal; 2 for flags that are wrong, 1 when the gateway can not start."""
    parser = create_parser()
    args = parser.parse_args(argv)
    if args.listen == args.admin:
        parser.error(f"--listen and --admin are both {args.listen}; name two addresses")
    try:
        settings = settings_of(args)
    except FlagsError as error:
        parser.error(str(error))
    return run(settings, PodDiscovery(args.namespace, args.deployment, random.random))


def _address(text: str) -> Address:
    try:
        return parse_address(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no name; write lower-case letters, digits and dashes")
    return text


def _workers(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text) <= MAX_WORKERS:
        raise argparse.ArgumentTypeError(f"{text} is no number of workers; write one from 1 to {MAX_WORKERS}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
