"""`pdx gateway`: only the gateway, in front of engines that already run."""

import argparse
import re
import sys
from typing import Final
from urllib.parse import urlsplit

from pdx_api.connectors.nixl import ENFORCE
from pdx_api.hosts import host_problem
from pdx_api.names import ADMIN_PORT, GATEWAY_PORT, Role
from pdx_api.user_info import shown_url
from pdx_api.version import pdx_version
from pdx_cli import usage
from pdx_cli.errors import CommandError, InputError
from pdx_cli.inputs import wiring
from pdx_proxy import compiled
from pdx_proxy.config.flags import FlagsError, add_flags, with_flags
from pdx_proxy.config.settings import MAX_WORKERS, Address, EndpointSpec, Settings, parse_address
from pdx_proxy.discovery.pods import MAX_RANKS, MAX_SEQUENCES

EPILOG: Final = """\
examples:
  pdx gateway --prefill http://10.0.0.1:8000 --decode http://10.0.0.2:8000
  pdx gateway --listen 0.0.0.0:8080 --prefill http://p0:8000 http://p1:8000 --decode http://d0:8000 \\
              --connector NIXL --order Concurrent --workers 2
  pdx gateway --aggregated http://10.0.0.1:8000 http://10.0.0.2:8000
  pdx gateway --prefill http://p0:8000 --decode http://d0:8000 --on-prefill-failure Local --handoff-seconds 60 \\
              --client-keys keys.txt

The engines must be configured for this connector and order; `pdx render FILE` prints how. Start them with
--enable-prompt-tokens-details: transfer probes (--verification-period-seconds) read the share of loaded tokens from
their answers. --listen serves clients, /health and /ready; --admin serves /metrics, /pdx/state and
/pdx/verification. The help of a flag ends with its default in parentheses.

Ctrl-C stops the gateway; the exit code is then 0. It is 2 if an address is in use: nothing was started."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `pdx gateway`."""
    parser.epilog = EPILOG
    parser.add_argument(
        "--listen",
        default=f"127.0.0.1:{GATEWAY_PORT}",
        metavar="HOST:PORT",
        help="address for clients (%(default)s)",
    )
    parser.add_argument(
        "--admin",
        default=None,
        metavar="HOST:PORT",
        help=f"address for /metrics and /pdx/state (127.0.0.1:{ADMIN_PORT})",
    )
    _add_engines(parser)
    parser.add_argument(
        "--workers", type=int, default=1, metavar="N", help="processes that share the port (%(default)s)"
    )
    parser.add_argument(
        "--debug-headers",
        action="store_true",
        help="name engines and phases in answers: x-pdx-prefill, x-pdx-decode, server-timing",
    )
    parser.add_argument(
        "--compile", action="store_true", help="only compile the gateway's hot modules for the next starts (minutes)"
    )
    parser.add_argument("--version", action="store_true", help="only print the version, and whether it is compiled")
    add_flags(parser)


def _add_engines(parser: argparse.ArgumentParser) -> None:
    _add_urls(parser, "--prefill", "engines that prefill; may be repeated")
    parser.add_argument(
        "--prefill-ranks",
        type=int,
        default=1,
        metavar="N",
        help="data-parallel ranks of each prefill engine (its --data-parallel-size) (%(default)s)",
    )
    _add_sequences(parser, "--prefill-max-num-seqs", "prefill engine")
    parser.add_argument(
        "--identity-ports",
        nargs="+",
        action="extend",
        default=[],
        metavar="PORT",
        help="one port per prefill engine that serves its identity: Mooncake's bootstrap (the connector's default)",
    )
    _add_urls(parser, "--decode", "engines that decode")
    _add_urls(parser, "--aggregated", "engines that do both")
    _add_sequences(parser, "--decode-max-num-seqs", "decode or aggregated engine")
    wiring.add_arguments(parser)
    parser.add_argument(
        "--any-patch-release",
        action="store_true",
        help="the engines have `enforce_handshake_compat: false`: those of other patch releases of vLLM pair, too",
    )


def _add_sequences(parser: argparse.ArgumentParser, flag: str, engine: str) -> None:
    parser.add_argument(
        flag,
        type=int,
        default=0,
        metavar="N",
        help=f"requests that each {engine} runs at a time (its --max-num-seqs, for each rank); an idle one gets so "
        "many at once; 0: not known (%(default)s)",
    )


def _add_urls(parser: argparse.ArgumentParser, flag: str, meaning: str) -> None:
    kind = usage.text("write for example http://10.0.0.1:8000")
    parser.add_argument(flag, nargs="+", action="extend", type=kind, default=[], metavar="URL", help=meaning)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal, or only compile or print what serves."""
    if args.version:
        sys.stdout.write(f"pdx gateway {pdx_version()}: {compiled.state()}\n")
        return 0
    if args.compile:
        return _compile()
    settings = settings_of(args)
    from pdx_proxy.process.main import run as run_gateway  # what is refused needs none of it

    return run_gateway(settings)


def _compile() -> int:
    sys.stdout.write("pdx gateway: compiling, which takes one to three minutes\n")
    sys.stdout.flush()
    try:
        folder = compiled.build()
    except compiled.CompileError as error:
        raise CommandError(f"The gateway cannot be compiled: {error}.") from error
    sys.stdout.write(f"pdx gateway: compiled in {folder}\n")
    return 0


def settings_of(args: argparse.Namespace) -> Settings:
    """Return the gateway's settings from the flags; raises InputError."""
    if args.workers < 1 or args.workers > MAX_WORKERS:
        raise InputError(f"--workers is {args.workers}; write a number from 1 to {MAX_WORKERS}.")
    admin = f"127.0.0.1:{ADMIN_PORT}" if args.admin is None else args.admin
    if admin == args.listen:
        raise InputError(f"--listen and --admin are both {admin}; name two addresses.")
    settings = Settings(
        listen=_address("--listen", args.listen),
        admin=_address("--admin", admin),
        endpoints=_endpoints(args),
        workers=args.workers,
        debug_headers=args.debug_headers,
    )
    try:
        return with_flags(settings, args)
    except FlagsError as error:
        raise InputError(f"{error}.") from error


def _endpoints(args: argparse.Namespace) -> tuple[EndpointSpec, ...]:
    if args.aggregated and (args.prefill or args.decode):
        raise InputError("--aggregated excludes --prefill and --decode; remove them.")
    if not args.aggregated and not (args.prefill and args.decode):
        raise InputError("The gateway needs engines: write --prefill URL and --decode URL, or --aggregated URL.")
    connector, order = wiring.chosen(args)
    if args.any_patch_release and not connector.any_patch({ENFORCE: False}):
        raise InputError(f"--any-patch-release is for connector NIXL, not {connector.name}; leave it out.")
    if not 1 <= args.prefill_ranks <= MAX_RANKS:
        raise InputError(f"--prefill-ranks is {args.prefill_ranks}; write a number from 1 to {MAX_RANKS}.")
    identity_ports = _identity_ports(args)
    for flag, number in (
        ("--prefill-max-num-seqs", args.prefill_max_num_seqs),
        ("--decode-max-num-seqs", args.decode_max_num_seqs),
    ):
        if not 0 <= number <= MAX_SEQUENCES:
            raise InputError(f"{flag} is {number}; write a number from 0 to {MAX_SEQUENCES}.")
    ranks = {Role.PREFILL: args.prefill_ranks}
    by_role = {Role.PREFILL: args.prefill, Role.DECODE: args.decode, Role.AGGREGATED: args.aggregated}
    specs = tuple(
        EndpointSpec(
            _url(url),
            role,
            connector=connector.name,
            order=order,
            protocol=args.protocol or "",
            identity_port=identity_ports.get(url, 0),
            ranks=ranks.get(role, 1),
            any_patch=args.any_patch_release,
            sequences=args.prefill_max_num_seqs if role is Role.PREFILL else args.decode_max_num_seqs,
        )
        for role, urls in by_role.items()
        for url in urls
    )
    names = [spec.name for spec in specs]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{name} is given twice; give every engine once, in one role.")
    return specs


def _identity_ports(args: argparse.Namespace) -> dict[str, int]:
    """Return the ports by URL of the prefill engine."""
    try:
        ports = [usage.port(text) for text in args.identity_ports]
    except argparse.ArgumentTypeError as error:
        raise InputError(f"--identity-ports: {error}.") from error
    if ports and len(ports) != len(args.prefill):
        given = usage.amount(len(ports), "port")
        raise InputError(f"--identity-ports has {given}; write one for each engine of --prefill.")
    return dict(zip(args.prefill, ports, strict=False))


def _url(text: str) -> Address:
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, 80 if parts.port is None else parts.port
    except ValueError as error:
        raise _invalid_url(text) from error
    is_host = bool(host) and not re.search(r"[\s@]", text)
    if parts.scheme != "http" or not host or not is_host or not port or parts.path not in ("", "/") or parts.query:
        raise _invalid_url(text)
    if problem := host_problem(host):
        raise _invalid_url(text, problem)
    return Address(host, port)


def _invalid_url(text: str, problem: str = "") -> InputError:
    why = problem and f": {problem}"
    return InputError(f"{shown_url(text.strip())} is not the URL of an engine{why}; write http://HOST:PORT.")


def _address(flag: str, text: str) -> Address:
    if not text.strip():
        raise InputError(f"{flag} is empty; write HOST:PORT, for example 127.0.0.1:{GATEWAY_PORT}.")
    if usage.is_url(text):
        raise InputError(f"{flag} {text} is a URL; write HOST:PORT, for example 127.0.0.1:{GATEWAY_PORT}.")
    try:
        address = parse_address(text)
    except ValueError as error:
        raise InputError(f"{flag} {error}.") from error
    if problem := host_problem(address.host):
        example = f"127.0.0.1:{GATEWAY_PORT}"
        raise InputError(f"{flag} {text} is not an address: {problem}; write HOST:PORT, for example {example}.")
    return address
