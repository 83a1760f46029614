"""The gateway's flags about requests, for every program that runs a gateway. Pure.

They follow from `pdx_api.settings`. `pdx_api.render.gateway_flags` writes them from a PDDeployment.
"""

import argparse
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from pdx_api.names import TLS_CERTIFICATE_FLAG, TLS_KEY_FLAG
from pdx_api.settings.gateway import Tracing
from pdx_api.settings.groups import SETTINGS, Section
from pdx_api.settings.kinds import Kind, Seconds
from pdx_proxy.config.settings import Settings


class FlagsError(ValueError):
    """Flags that contradict each other. The text is one sentence without a full stop."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence, without the list of all flags."""

    def error(self, message: str) -> NoReturn:
        """Write the message to stderr and exit with 2."""
        self.exit(2, f"{self.prog}: {message}\n")


def seconds(text: str) -> float:
    """Seconds, 0 or more; raises ArgumentTypeError."""
    return float(_reader(Seconds(0, 0))(text))


def _reader(kind: Kind) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            return kind.read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return read


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add all flags to a parser."""
    for section in Section:
        group = parser.add_argument_group(section)
        for setting in (each for each in SETTINGS if each.group.section is section):
            usual = setting.default
            shown = usual if isinstance(usual, str) else setting.kind.written(usual)
            options = {"type": _reader(setting.kind), "default": usual, "metavar": setting.kind.metavar}
            if isinstance(usual, tuple):
                options |= {"action": "extend", "default": [*usual]}
            text = f"{setting.help}{f' ({shown})' if shown else ''}".replace("%", "%%")
            group.add_argument(setting.flag, help=text, **options)


def with_flags(settings: Settings, args: argparse.Namespace) -> Settings:
    """The settings with the values of the flags; raises FlagsError for flags that contradict each other."""
    parts: dict[str, dict[str, Any]] = {}
    for setting in SETTINGS:
        value = getattr(args, setting.flag.removeprefix("--").replace("-", "_"))
        parts.setdefault(setting.group.part, {})[setting.field] = tuple(value) if isinstance(value, list) else value
    tracing = parts.pop("tracing")
    changed = {part: dataclasses.replace(getattr(settings, part), **fields) for part, fields in parts.items()}
    changed["tracing"] = Tracing(**tracing) if tracing["endpoint"] is not None else None
    found = dataclasses.replace(settings, **changed)
    _check(found)
    return found


def _check(settings: Settings) -> None:
    deadlines, limits = settings.deadlines, settings.limits
    _check_order(
        "--first-event-seconds",
        {"--handoff-seconds": deadlines.handoff_seconds},
        deadlines.first_event_seconds,
        _number,
    )
    waits = {
        "--connect-seconds": deadlines.connect_seconds,
        "--prefill-seconds": deadlines.prefill_seconds,
        "--first-event-seconds": deadlines.first_event_seconds,
        "--idle-seconds": deadlines.idle_seconds,
        "--max-wait-seconds": limits.max_wait_seconds,
    }
    _check_order("--total-seconds", waits, deadlines.total_seconds, _number)
    if (settings.tls.certificate is None) != (settings.tls.key is None):
        raise FlagsError(f"TLS needs a certificate and its key; write {TLS_CERTIFICATE_FLAG} and {TLS_KEY_FLAG}")
    _check_order("--max-buffered-bytes", {"--max-body-size": limits.max_body_bytes}, limits.buffered_bytes, _bytes)


def _check_order(greatest: str, others: Mapping[str, float], most: float, shown: Callable[[float], str]) -> None:
    """Refuse a flag whose value is less than those of others; raises FlagsError."""
    above = {flag: value for flag, value in others.items() if value > most}
    if above:
        *first, last = (f"{flag} is {shown(value)}" for flag, value in above.items())
        values = f"{', '.join(first)} and {last}" if first else last
        lower = "the others" if first else next(iter(above))
        raise FlagsError(f"{greatest} is {shown(most)}, but {values}; raise {greatest}, or lower {lower}")


def _number(value: float) -> str:
    return f"{value:.9g}"


def _bytes(value: float) -> str:
    """Return a size in the largest unit of which it is a multiple."""
    whole = int(value)
    unit = next((power for power in (4, 3, 2, 1) if whole % 1024**power == 0), 0)
    return f"{whole // 1024**unit}{('', 'Ki', 'Mi', 'Gi', 'Ti')[unit]}"
