"""`pdx sim`: one simulated engine."""

import argparse
import dataclasses
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

from pdx_api.connectors import family_of
from pdx_api.connectors.families import Pool
from pdx_api.connectors.nixl import SIDE_CHANNEL_PORT
from pdx_api.hosts import host_problem
from pdx_api.names import ENGINE_PORT, Order, Role
from pdx_api.vllm.versions import NEWEST, OLDEST, VERSIONS, minor
from pdx_cli import usage
from pdx_cli.errors import InputError
from pdx_cli.inputs import protocol
from pdx_sim.profiles import PROFILES
from pdx_sim.settings import OPTIONS, OnLoadFailure, OutOfBoundsError, SimSettings

_METAVARS: Final = {int: "N", float: "NUMBER", str: "TEXT"}

BOTH: Final = "both"

DEFAULTS: Final = SimSettings()

_TEXTS: Final = {
    "model": usage.text(f"write for example {DEFAULTS.model}"),
    "api_key": usage.text("write a key, or leave out --api-key"),
    "storage": usage.text("name a directory"),
}
"""Field of SimSettings that is a text -> the type of its flag."""

_PROFILES: Final = "".join(
    f"  {name}: {each.model}; {each.device}; measured {each.date}\n    source: {each.source}\n    {each.derivation}\n"
    for name, each in PROFILES.items()
)

EPILOG: Final = f"""\
examples:
  pdx sim --role aggregated
  pdx sim --listen 127.0.0.1:8001 --role prefill --side-channel 127.0.0.1:5601 --prefill-token-seconds 0.001
  pdx sim --listen 127.0.0.1:8002 --role decode --side-channel 127.0.0.1:5602
  pdx gateway --prefill http://127.0.0.1:8001 --decode http://127.0.0.1:8002

Profiles (--profile): settings of the step loop from published measurements. Other flags override a profile.
{_PROFILES}
Role {BOTH} accepts prefill and decode requests. Both engines of a pair need the same --model and --order.

Set faults while it runs with POST /sim/faults ([] clears them). GET /sim/state returns counts, blocks and faults:
  curl -s http://127.0.0.1:8002/sim/faults -d '{{"kind": "status", "status": 503, "leg": "decode", "count": 2}}'
  curl -s http://127.0.0.1:8002/sim/state

Ctrl-C stops the engine; the exit code is then 0. It is 2 if an address is in use: nothing was started."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `pdx sim`."""
    parser.add_argument(
        "--listen",
        default=f"{DEFAULTS.host}:{ENGINE_PORT}",
        metavar="HOST:PORT",
        help="address of its HTTP API (default: %(default)s)",
    )
    parser.add_argument("--role", choices=[*map(str, Role), BOTH], required=True, help="requests that it accepts")
    parser.add_argument("--connector", default=DEFAULTS.connector, help="KV connector (default: %(default)s)")
    parser.add_argument(
        "--order",
        choices=[str(order) for order in Order],
        default=str(DEFAULTS.order),
        help="order of the prefill and the decode request; NIXL pulls with PrefillFirst and pushes with the others "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--protocol",
        type=protocol.text,
        metavar="JSON",
        help="protocol of connector Custom: see `pdx gateway --help`",
    )
    parser.add_argument(
        "--side-channel",
        default=f"{DEFAULTS.side_channel_host}:{SIDE_CHANNEL_PORT}",
        metavar="HOST:PORT",
        help="address of its KV handshake, or of Mooncake's bootstrap (default: %(default)s)",
    )
    parser.add_argument(
        "--on-load-failure",
        choices=[str(choice) for choice in OnLoadFailure],
        default=str(DEFAULTS.on_load_failure),
        help="what a decode engine does if KV does not arrive (default: %(default)s)",
    )
    parser.add_argument(
        "--vllm-version",
        default=DEFAULTS.version,
        metavar="VERSION",
        help="version of vLLM that it simulates, with what this version has (default: %(default)s)",
    )
    parser.add_argument(
        "--profile", choices=list(PROFILES), help="settings of a published measurement; other flags override them"
    )
    for field, meaning in OPTIONS.items():
        default = getattr(DEFAULTS, field)
        parser.add_argument(
            f"--{field.replace('_', '-')}",
            type=_TEXTS.get(field, type(default)),
            metavar=_METAVARS[type(default)],
            help=f"{meaning} (default: {_default(field)})",
        )
    parser.add_argument(
        "--enable-prefix-caching",
        action="store_true",
        help="keep the KV of prompts for later prompts with the same beginning; needs --step-seconds or --profile",
    )
    parser.set_defaults(words=lambda: parser.given if isinstance(parser, usage.Parser) else ())
    parser.epilog = EPILOG


def _default(field: str) -> str:
    default = getattr(DEFAULTS, field)
    profiled = any(field in each.settings for each in PROFILES.values())
    return f"{'none' if default == '' else default}{', or that of --profile' if profiled else ''}"


def run(args: argparse.Namespace) -> int:
    """Serve until a signal."""
    settings = settings_of(args)
    from pdx_sim.main import run as run_sim  # what is refused needs none of it

    return run_sim(settings)


def settings_of(args: argparse.Namespace) -> SimSettings:
    """Return the simulator's settings from the flags; raises InputError."""
    host, port = _address("--listen", args.listen)
    side_host, side_port = _address("--side-channel", args.side_channel)
    plain: dict[str, Any] = {field: getattr(args, field) for field in OPTIONS if getattr(args, field) is not None}
    profile = dict(PROFILES[args.profile].settings) if args.profile else {}
    if args.enable_prefix_caching and not {**profile, **plain}.get("step_seconds", DEFAULTS.step_seconds):
        raise InputError("--enable-prefix-caching needs steps; add --step-seconds or --profile.")
    own_protocol = args.protocol or DEFAULTS.protocol
    protocol.check(args.connector, own_protocol)
    try:
        _check_storage(args)
        return dataclasses.replace(
            DEFAULTS,
            role=Role.DECODE if args.role == BOTH else Role(args.role),
            kv_both=args.role == BOTH,
            order=Order(args.order),
            connector=args.connector,
            protocol=own_protocol,
            host=host,
            port=port,
            side_channel_host=side_host,
            side_channel_port=side_port,
            version=_version(args.vllm_version),
            on_load_failure=OnLoadFailure(args.on_load_failure),
            enable_prefix_caching=args.enable_prefix_caching,
            **{**profile, **plain},
        )
    except OutOfBoundsError as error:
        flag = f"--{error.field.replace('_', '-')}"
        raise InputError(f"{flag} is {_written(args, flag) or error.value}; write {error.possible}.") from error
    except ValueError as error:
        raise InputError(usage.ended(str(error))) from error


def _written(args: argparse.Namespace, flag: str) -> str:
    """Return the value of a flag as it was written: Python prints another number for some; empty if it is not there."""
    words: Sequence[str] = args.words()
    for word, following in reversed(list(pairwise((*words, "")))):
        name, equals, text = word.partition("=")
        if name == flag:
            return text if equals else following
    return ""


def _version(text: str) -> str:
    if minor(text) not in VERSIONS:
        known = f"write a version from {OLDEST.version} to {NEWEST.version}."
        raise InputError(f"--vllm-version is {text or 'empty'}; {known}")
    return text


def _check_storage(args: argparse.Namespace) -> None:
    """Refuse a pool without its directory; raises ValueError for a connector or an order that does not exist."""
    family = family_of(args.connector, Order(args.order), args.protocol or DEFAULTS.protocol)
    if args.role != Role.AGGREGATED and isinstance(family, Pool) and not args.storage:
        raise InputError(f"Connector {args.connector} needs a directory that the engines share; add --storage DIR.")


def _address(flag: str, text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    is_url = usage.is_url(text)
    if is_url or not host or not (port.isascii() and port.isdecimal()) or not 0 < int(port) < 65536:
        given = f"{text} is {'a URL' if is_url else 'not an address'}" if text.strip() else "is empty"
        raise InputError(f"{flag} {given}; write HOST:PORT, for example 127.0.0.1:{ENGINE_PORT}.")
    if problem := host_problem(host):
        example = f"127.0.0.1:{ENGINE_PORT}"
        raise InputError(f"{flag} {text} is not an address: {problem}; write HOST:PORT, for example {example}.")
    return host.strip("[]"), int(port)
