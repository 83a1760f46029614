"""The flags --connector, --order and --protocol: how engines that already run are wired. Pure."""

import argparse

from pdx_api.connectors import CONNECTORS, choose
from pdx_api.connectors.base import Connector
from pdx_api.names import Order
from pdx_api.words import did_you_mean
from pdx_cli import usage
from pdx_cli.errors import InputError
from pdx_cli.inputs import protocol


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.add_argument(
        "--connector",
        type=usage.text("write for example NIXL"),
        default="NIXL",
        help=f"KV connector of the engines: {', '.join(CONNECTORS)} (%(default)s)",
    )
    parser.add_argument(
        "--order",
        type=usage.text(f"write for example {Order.PREFILL_FIRST}"),
        default=None,
        help=f"order for which the engines are configured: {', '.join(Order)} (the connector's first)",
    )
    parser.add_argument(
        "--protocol",
        type=protocol.text,
        metavar="JSON",
        help="protocol of connector Custom, for example "
        """{"family": "Pull", "prefillParams": {"do_remote_decode": true}}""",
    )


def chosen(args: argparse.Namespace) -> tuple[Connector, Order]:
    """Return the connector and the order of the flags; raises InputError."""
    if args.order is not None and args.order not in list(Order):
        hint = did_you_mean(args.order, Order) or f"write one of: {', '.join(Order)}."
        raise InputError(f"--order {args.order} does not exist; {hint}")
    own_protocol = args.protocol or ""
    protocol.check(args.connector, own_protocol)
    try:
        return choose(args.connector, Order(args.order) if args.order else None, own_protocol)
    except ValueError as error:
        raise InputError(usage.ended(str(error))) from error
