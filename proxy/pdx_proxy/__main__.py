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
The gateway discovers engines as pods with the label pdx.dev/deployment=NAME. It uses the pod's service account, or
KUBECONFIG if it is set, and needs the right to list and watch pods in the namespace.
The admin port serves /healthz, /readyz, /metrics and /pdx/state.
On SIGTERM, /readyz answers 503 and the gateway still serves for --drain-seconds. After that, open requests have
--shutdown-seconds to end. A second signal skips the drain."""


def create_parser() -> Parser:
    """Create the parser of the program's flags."""
    parser = Parser(
        prog="python -m pdx_proxy",
        description="The PDX gateway for the engine pods of one PDDeployment.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--deployment", required=True, type=_name, metavar="NAME", help="name of the PDDeployment")
    add("--namespace", required=True, type=_name, metavar="NS", help="namespace of the PDDeployment")
    add(
        "--listen",
        type=_address,
        default=f"0.0.0.0:{GATEWAY_PORT}",
        metavar="HOST:PORT",
        help="address for clients (%(default)s)",
    )
    add(
        "--admin",
        type=_address,
        default=f"0.0.0.0:{ADMIN_PORT}",
        metavar="HOST:PORT",
        help="address for probes and metrics (%(default)s)",
    )
    add("--workers", type=_workers, default=1, metavar="N", help="processes that share the port (%(default)s)")
    add(
        "--drain-seconds",
        type=seconds,
        default=5.0,
        metavar="S",
        help="seconds that the gateway still serves after SIGTERM (%(default)g)",
    )
    add(
        "--shutdown-seconds",
        type=seconds,
        default=30.0,
        metavar="S",
        help="seconds that open requests have after the drain (%(default)g)",
    )
    add_flags(parser)
    return parser


def settings_of(args: argparse.Namespace) -> Settings:
    """Return the settings from the flags; raises FlagsError for flags that contradict each other."""
    settings = Settings(
        listen=args.listen,
        admin=args.admin,
        workers=args.workers,
        drain_seconds=args.drain_seconds,
        shutdown_seconds=args.shutdown_seconds,
    )
    return with_flags(settings, args)


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until a signal and return the exit code: 2 for wrong flags, 1 if the gateway cannot start."""
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
        raise argparse.ArgumentTypeError(f"{text!r} is not a name; write lower-case letters, digits and dashes")
    return text


def _workers(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text) <= MAX_WORKERS:
        raise argparse.ArgumentTypeError(f"{text} is not a number of workers; write one from 1 to {MAX_WORKERS}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
